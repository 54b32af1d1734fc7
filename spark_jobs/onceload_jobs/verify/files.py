"""Compare files with the digests of their receipts, byte by byte."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
from sqlalchemy import Engine

from onceload_core.declaration import LoadedByAnother, LoadedUnderOtherName
from onceload_core.errors import OnceloadError
from onceload_core.names import Position, ProducerId
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.audit import CopyOfFile, FileReceipts, OpenSpans, files_up_to
from onceload_core.postgres.rewound import Owed
from onceload_core.spans import SEQUENCE_END, Span, SpanSet
from onceload_jobs.files.addresses import errors_naming, shown
from onceload_jobs.files.compression import Incomplete, is_compressed
from onceload_jobs.files.fingerprints import Fingerprint
from onceload_jobs.files.listing import Listed, Listing, list_files, url_of
from onceload_jobs.files.notes import Note, notes_of_refused
from onceload_jobs.files.reading import look_at, open_stream
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.declared import Declared, Source
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.read.digests import Digests, digests_in, digests_up_to, possible_digests
from onceload_jobs.verify.findings import Difference, Findings, Kind
from onceload_jobs.verify.gaps import Gaps
from onceload_jobs.verify.rewound import Rewound

_BLOCK_BYTES = 2**20


def compare_files(
    declared: Declared,
    engine: Engine,
    findings: Findings,
    position: Position,
    *,
    open_spans: Sequence[OpenSpans],
    owed: Sequence[Owed],
) -> "ComparedFiles":
    """Compare all files as of one position, with the deliveries that were open then, and with what was rewound."""
    gaps = Gaps(declared.source, findings, open_spans)
    compared = ComparedFiles(declared, engine, findings, gaps)
    named: set[str] = set()
    for file in files_up_to(engine, declared.name, position):
        compared.compare(file)
        compared.compare_copies(file)
        named |= {file.name, *(copy.name for copy in file.copies)}
    named |= Rewound(declared, engine, findings, gaps, loaded=frozenset(named)).compare(owed)
    listing = _listing_of(declared.source, findings)
    for note in notes_of_refused(listing):
        gaps.note_refused(note)
    new = list(_new_files(listing, but=named))
    findings.notes += _notes_of_others(
        declared, engine, [*(each.name for each in new), *(each.producer for each in owed)]
    )
    for each in new:
        gaps.note_new(each)
        named.add(each.name)
    gaps.note_dead_letters(but=named)
    gaps.note_rest()
    return compared


def _listing_of(source: Source, findings: Findings) -> Listing:
    if source.is_of_program:
        return Listing(())
    try:
        return list_files(source.path, root=source.root)
    except OnceloadError as error:
        # The loaded files of a lost source are missing.
        findings.notes.append(Note.of(shown(source.path), error))
        return Listing(())


def _notes_of_others(declared: Declared, engine: Engine, names: Sequence[str]) -> Iterator[Note]:
    """Why no load reads some of these files: another pipeline has loaded them, or this one under other names."""
    try:
        PostgresLedger(engine).refuse_files_of_others(pipeline_with_declaration(declared), names)
    except (LoadedByAnother, LoadedUnderOtherName) as error:
        yield Note.of(shown(declared.source.path), error)


def _new_files(listing: Listing, *, but: Container[str]) -> Iterator[Listed]:
    """Files of the source with content but no receipt."""
    # A file with several names is loaded under one of them.
    groups = [[each.name for each in group] for group in listing.names_of_one]
    others = {name for names in groups if any(name in but for name in names) for name in names}
    return (listed for listed in listing.files if listed.size and listed.name not in but and listed.name not in others)


class ComparedFiles:
    """Compares one file after the other, each read once from its start."""

    def __init__(self, declared: Declared, engine: Engine, findings: Findings, gaps: Gaps) -> None:
        self._pipeline = declared.name
        self._source = declared.source
        self._ledger = PostgresLedger(engine)
        self._findings = findings
        self._gaps = gaps
        self.files = 0
        self.bytes = 0
        #: Producers whose file no longer matches what was loaded.
        self.unproven: set[ProducerId] = set()

    def compare(self, file: FileReceipts) -> None:
        if file.is_replaced:
            self.unproven.add(file.producer_id)
            return
        found = list(self._differences(file)) if file.is_latest else []
        if found or not file.is_latest:
            self.unproven.add(file.producer_id)
        if not file.is_latest or (found and self._has_begun_again(file)):
            reason = f"not comparable: generation {file.generation} is loaded, but the file has a later one"
            self._findings.notes.append(Note(name=file.name, reason=reason))
            return
        for difference in (*found, *self._gaps.within(file)):
            self._findings.add(difference)
        self.files += 1

    def compare_copies(self, file: FileReceipts) -> None:
        """Compare the copies of a file with its receipts, as far as each contained it."""
        for copy in () if file.is_replaced else file.copies:
            found = list(self._differences(_of_copy(self._source, file, copy)))
            if any(each.kind is Kind.FILE_MISSING for each in found):
                reason = f"this copy is gone from the source; its records are loaded as {file.name}"
                self._findings.notes.append(Note(name=copy.name, reason=reason))
                continue
            for difference in found:
                self._findings.add(difference)
            self.files += 1

    def _has_begun_again(self, file: FileReceipts) -> bool:
        """Whether a load found the file rewritten during the comparison."""
        latest = self._ledger.find(self._pipeline, [file.name]).get(file.name)
        return latest is not None and latest.producer_id != file.producer_id

    def _differences(self, file: FileReceipts) -> Iterator[Difference]:
        url = url_of(self._source.path, file.name, root=self._source.root)
        try:
            if self._source.format.is_whole:
                yield from self._compare_row_groups(file, url)
            else:
                yield from self._compare_stream(file, url)
        except Incomplete as error:
            yield _of_file(file, Kind.FILE_SHORTER, f"it breaks off after {error.end} unpacked bytes")
        except (OnceloadError, OSError, pa.ArrowException) as error:
            if isinstance(error.__cause__ or error, FileNotFoundError):
                yield _of_file(file, Kind.FILE_MISSING, "no such file")
            else:
                yield _of_file(file, Kind.FILE_UNREADABLE, str(error))

    def _compare_stream(self, file: FileReceipts, url: str) -> Iterator[Difference]:
        checks = sorted((_Check(span, digest) for span, digest in digests_in(file.digests)), key=_first_of)
        with open_stream(url) as stream:
            end, settled = 0, 0
            while settled < len(checks):
                with errors_naming(url):
                    block = memoryview(stream.read(_BLOCK_BYTES))
                if not block:
                    yield _of_file(file, Kind.FILE_SHORTER, f"it ends at {end}")
                    return
                for check in islice(checks, settled, None):
                    if check.span.first >= end + len(block):
                        break
                    check.feed(block, at=end)
                end += len(block)
                while settled < len(checks) and checks[settled].span.end <= end:
                    self.bytes += len(checks[settled].span)
                    yield from checks[settled].differences(file)
                    settled += 1
            yield from self._compare_end(file, url, stream, end=end)

    def _compare_end(self, file: FileReceipts, url: str, stream: BinaryIO, *, end: int) -> Iterator[Difference]:
        """Look after the end of the loaded part; a file that was read to its end has nothing there."""
        size = look_at(url).size
        if not is_compressed(url):
            self._gaps.note_end(file, end=size)
        elif file.size == size:
            while block := stream.read(_BLOCK_BYTES):
                end += len(block)
            yield from self._gaps.behind(file, end=end)
        else:
            self._gaps.note_unread_end(file)

    def _compare_row_groups(self, file: FileReceipts, url: str) -> Iterator[Difference]:
        """Compare row groups; their ids count rows, so only the file's footer locates their bytes."""
        expected = dict(digests_in(file.digests))
        size = look_at(url).size
        if file.size is not None and size < file.size:
            yield _of_file(file, Kind.FILE_SHORTER, f"{size} instead of {file.size} bytes")
            return
        end = 0
        for part in read_parts(_whole(file, url, size=size), self._source):
            raw, end = part.part.raw, part.part.end
            digest = expected.pop(Span(part.part.first, part.part.end), None) if raw else None
            if digest is not None:
                self.bytes += len(raw)
                yield from _changed(file, Span(part.part.first, part.part.end), digest, possible_digests(raw))
        for span, digest in expected.items():
            yield _bytes_changed(file, span, digest, "no row group with exactly these rows")
        if file.size == size:
            yield from self._gaps.behind(file, end=end)
        else:
            self._gaps.note_end(file, end=end)


def _of_copy(source: Source, file: FileReceipts, copy: CopyOfFile) -> FileReceipts:
    """The receipts of a file, as far as a copy contains it."""
    end = SEQUENCE_END if source.format.is_whole else Fingerprint.from_bytes(copy.fingerprint).stream.end
    held = SpanSet([Span(0, end)]) if end else SpanSet()
    return replace(
        file,
        name=copy.name,
        generation=copy.generation,
        size=copy.size,
        digests=digests_up_to(file.digests, end=end),
        spans=tuple((position, spans & held) for position, spans in file.spans),
    )


def _whole(file: FileReceipts, url: str, *, size: int) -> Chunk:
    return Chunk(producer_id=file.producer_id, name=file.name, url=url, first=0, end=None, size=size)


class _Check:
    """One digest of a receipt, and that of the current bytes."""

    def __init__(self, span: Span, expected: bytes) -> None:
        self.span = span
        self._expected = expected
        self._seen = Digests()

    def feed(self, block: memoryview, *, at: int) -> None:
        self._seen.feed(block[max(0, self.span.first - at) : max(0, self.span.end - at)])

    def differences(self, file: FileReceipts) -> Iterator[Difference]:
        yield from _changed(file, self.span, self._expected, self._seen.possible())


def _first_of(check: _Check) -> tuple[int, int]:
    return check.span.first, check.span.end


def _changed(file: FileReceipts, span: Span, expected: bytes, found: Sequence[bytes]) -> Iterator[Difference]:
    if expected not in found:
        yield _bytes_changed(file, span, expected, f"digest {found[0].hex()}")


def _bytes_changed(file: FileReceipts, span: Span, expected: bytes, found: str) -> Difference:
    return Difference(
        producer=file.name,
        kind=Kind.BYTES_CHANGED,
        span=str(span),
        expected=f"digest {expected.hex()}",
        found=found,
    )


def _of_file(file: FileReceipts, kind: Kind, found: str) -> Difference:
    return Difference(
        producer=file.name, kind=kind, span=str(file.consumed), expected="what was loaded of it", found=found
    )
