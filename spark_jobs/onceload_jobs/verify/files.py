"""Compare files with the digests of their receipts, byte by byte. Workers read them, and here it is judged."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from sqlalchemy import Engine

from onceload_core.declaration import LoadedByAnother, LoadedUnderOtherName
from onceload_core.errors import OnceloadError
from onceload_core.names import Position, ProducerId
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.audit import CopyOfFile, FileReceipts, OpenSpans, files_up_to
from onceload_core.postgres.rewound import Owed
from onceload_core.spans import SEQUENCE_END, Span, SpanSet
from onceload_jobs.executor.executor import Executor
from onceload_jobs.files.addresses import is_of_s3, known_access, shown
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.fingerprints import Fingerprint
from onceload_jobs.files.listing import Listed, Listing, list_files, url_of
from onceload_jobs.files.notes import Note, notes_of_refused
from onceload_jobs.pipeline.declared import Declared, Source
from onceload_jobs.plan.bundles import bundled
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.read.digests import digests_in, digests_up_to
from onceload_jobs.read.parts import is_plain_text
from onceload_jobs.verify.bundles import Deadly, over_bundles
from onceload_jobs.verify.findings import Difference, Findings, Kind
from onceload_jobs.verify.gaps import Gaps
from onceload_jobs.verify.read_bytes import Found, Reading, Stretch, compare_bytes
from onceload_jobs.verify.rewound import Rewound

#: How much one task reads.
_BUNDLE_BYTES = 64 * 2**20
#: Opening a file takes as long as reading so much, so that many small files are several bundles too.
_FILE_BYTES = 2**18
#: How many files are compared before the next ones are asked for.
_FILES_MAX = 1_000


def compare_files(
    declared: Declared,
    engine: Engine,
    findings: Findings,
    position: Position,
    *,
    executor: Executor,
    open_spans: Sequence[OpenSpans],
    owed: Sequence[Owed],
) -> "ComparedFiles":
    """Compare all files as of one position, with the deliveries that were open then, and with what was rewound."""
    gaps = Gaps(declared.source, findings, open_spans)
    compared = ComparedFiles(declared, engine, findings, gaps, executor)
    named: set[str] = set()
    files = files_up_to(engine, declared.name, position)
    while some := list(islice(files, _FILES_MAX)):
        compared.compare(some)
        named.update(*({file.name, *(copy.name for copy in file.copies)} for file in some))
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
    """Judges what workers found of the files, in the order of the files."""

    def __init__(self, declared: Declared, engine: Engine, findings: Findings, gaps: Gaps, executor: Executor) -> None:
        self._pipeline = declared.name
        self._source = declared.source
        self._ledger = PostgresLedger(engine)
        self._findings = findings
        self._gaps = gaps
        self._executor = executor
        self.files = 0
        self.bytes = 0
        #: Producers whose file no longer matches what was loaded.
        self.unproven: set[ProducerId] = set()

    def compare(self, files: Sequence[FileReceipts]) -> None:
        """Compare some files, and the copies of them."""
        all_copies = [_copies(self._source, file) for file in files]
        asked = ([*_comparable(file), *copies] for file, copies in zip(files, all_copies, strict=True))
        found = iter(self._read([each for of_one in asked for each in of_one]))
        for file, copies in zip(files, all_copies, strict=True):
            self._judge(file, [next(found) for _ in _comparable(file)])
            for copy in copies:
                self._judge_copy(file, copy, next(found))

    def _read(self, files: Sequence[FileReceipts]) -> list[list[Found]]:
        """What workers find of each part of each file."""
        parts = [list(self._cut(number, file)) for number, file in enumerate(files)]
        found = [[Found() for _ in of_one] for of_one in parts]
        stretches = [each for of_one in parts for each in of_one]
        access = known_access() if is_of_s3(self._source.path) else {}
        read = partial(compare_bytes, Reading(source=self._source, access=access))
        bundles = bundled(stretches, weigh=lambda each: each.bytes + _FILE_BYTES, bytes_max=_BUNDLE_BYTES)
        for bundle, result in over_bundles(self._executor, read, bundles, pipeline=self._pipeline):
            of_each = [Found(ended=(Kind.FILE_UNREADABLE, result.reason))] if isinstance(result, Deadly) else result
            for stretch, each in zip(bundle, of_each, strict=True):
                found[stretch.number][stretch.part] = each
        return found

    def _cut(self, number: int, file: FileReceipts) -> Iterator[Stretch]:
        digests = digests_in(file.digests)
        if not self._source.format.is_whole:
            digests = tuple(sorted(digests, key=lambda each: (each[0].first, each[0].end)))
        url = url_of(self._source.path, file.name, root=self._source.root)
        whole = Stretch(
            number=number, producer_id=file.producer_id, name=file.name, url=url, digests=digests, size=file.size
        )
        return whole.cut(bytes_max=_BUNDLE_BYTES) if is_plain_text(self._source, file.name) else iter((whole,))

    def _judge(self, file: FileReceipts, read: Sequence[Sequence[Found]]) -> None:
        if file.is_replaced:
            self.unproven.add(file.producer_id)
            return
        found = [each for parts in read for each in self._differences(file, parts)]
        if found or not file.is_latest:
            self.unproven.add(file.producer_id)
        if not file.is_latest or (found and self._has_begun_again(file)):
            reason = f"not comparable: generation {file.generation} is loaded, but the file has a later one"
            self._findings.notes.append(Note(name=file.name, reason=reason))
            return
        for difference in (*found, *self._gaps.within(file)):
            self._findings.add(difference)
        self.files += 1

    def _judge_copy(self, file: FileReceipts, copy: FileReceipts, parts: Sequence[Found]) -> None:
        """Judge a copy of a file by its receipts, as far as the copy contained it."""
        found = list(self._differences(copy, parts))
        if any(each.kind is Kind.FILE_MISSING for each in found):
            reason = f"this copy is gone from the source; its records are loaded as {file.name}"
            self._findings.notes.append(Note(name=copy.name, reason=reason))
            return
        for difference in found:
            self._findings.add(difference)
        self.files += 1

    def _has_begun_again(self, file: FileReceipts) -> bool:
        """Whether a load found the file rewritten during the comparison."""
        latest = self._ledger.find(self._pipeline, [file.name]).get(file.name)
        return latest is not None and latest.producer_id != file.producer_id

    def _differences(self, file: FileReceipts, parts: Iterable[Found]) -> Iterator[Difference]:
        """What differs, up to the first part that could not be read to its end."""
        last = Found()
        for last in parts:
            self.bytes += last.bytes
            yield from last.changed
            if last.ended is not None:
                kind, found = last.ended
                yield _of_file(file, kind, found)
                return
        yield from self._compare_end(file, last)

    def _compare_end(self, file: FileReceipts, last: Found) -> Iterator[Difference]:
        """Look after the end of the loaded part; a file that was read to its end has nothing there."""
        is_whole = self._source.format.is_whole
        if not is_whole and not is_compressed(file.name):
            self._gaps.note_end(file, end=last.size)
        elif last.end is None:
            self._gaps.note_unread_end(file)
        elif file.size == last.size:
            yield from self._gaps.behind(file, end=last.end)
        else:
            self._gaps.note_end(file, end=last.end)


def _comparable(file: FileReceipts) -> tuple[FileReceipts, ...]:
    """The file, if its content should be that of its receipts."""
    return (file,) if file.is_latest and not file.is_replaced else ()


def _copies(source: Source, file: FileReceipts) -> list[FileReceipts]:
    return [] if file.is_replaced else [_of_copy(source, file, copy) for copy in file.copies]


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


def _of_file(file: FileReceipts, kind: Kind, found: str) -> Difference:
    return Difference(
        producer=file.name, kind=kind, span=str(file.consumed), expected="what was loaded of it", found=found
    )
