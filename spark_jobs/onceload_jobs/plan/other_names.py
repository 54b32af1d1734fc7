"""Content that is loaded under other names: of a file that was copied, renamed or rotated, or of a renamed pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onceload_core.declaration import TARGET, LoadedByAnother
from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_core.pipeline import Pipeline
from onceload_core.ports import KnownProducer, Ledger, LoadedProducer
from onceload_core.replay import Condition
from onceload_core.spans import Span, SpanSet
from onceload_jobs.files.addresses import Unreadable, errors_naming, with_login
from onceload_jobs.files.fingerprints import Fingerprint, StreamMarks
from onceload_jobs.files.listing import Listed, Listing
from onceload_jobs.files.notes import Note
from onceload_jobs.files.reading import look_at, open_stream
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.columns import SEQUENCE
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.copies import CopyRecord, LoadedContents, holds_what_was_loaded, loaded_states
from onceload_jobs.plan.file_state import FileState
from onceload_jobs.plan.same_content import BEGINNING, BESIDE
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.read.digests import Digests
from onceload_jobs.read.parts import complete_end, is_stream
from onceload_jobs.read.rows import header_of, read_records

_READ_BYTES = 2**20


@dataclass(frozen=True)
class ContentUnderOtherNames:
    """The content that is loaded under other names, and its files."""

    declared: Declared
    ledger: Ledger[Any]
    contents: LoadedContents
    files: Mapping[str, Listed]

    @classmethod
    def of(cls, declared: Declared, ledger: Ledger[Any], listing: Listing) -> "ContentUnderOtherNames":
        return cls(declared, ledger, LoadedContents(declared, ledger), {each.name: each for each in listing.files})

    def state_of(self, listed: Listed, file_state: FileState, known: KnownProducer | None) -> FileState | Note:
        """The part of a file that is loaded under another name: a whole producer, or what it shares with a copy."""
        if file_state.consumed:
            double = self._find_double(listed, known.producer_id, file_state) if known else None
            return Note(name=listed.name, reason=_DOUBLE.format(double), needs_a_person=True) if double else file_state
        shared, copy_of = self.contents.find(listed), file_state.copy_of
        # A name still contains as much of a producer as before.
        if shared is not None and (
            (copy_of is not None and copy_of.producer_id == shared.producer_id)
            or shared.state.consumed.end >= file_state.seen
        ):
            # Some of its records were counted when it was found to be a copy.
            counted = 0 if copy_of is None else self._records(copy_of.producer_id, end=file_state.seen)
            record = CopyRecord(
                name=shared.state.name,
                fingerprint=shared.fingerprint,
                size=listed.size if shared.is_all else None,
                condition=shared.state.condition,
                duplicates=max(0, shared.records - counted),
                copy_of=shared.producer_id,
                is_whole=True,
                has_holes=not shared.state.consumed.is_without_holes,
            )
            return replace(
                file_state,
                copy_record=record,
                is_all_in=shared.is_all,
                consumed=shared.state.consumed,
                fingerprint=shared.state.fingerprint,
            )
        if copy_of is not None:
            return self._diverged(listed, file_state, copy_of)
        continued = self.contents.find_continued(listed)
        if continued is not None:
            return Note(name=listed.name, reason=_CONTINUES.format(continued.state.name), needs_a_person=True)
        return file_state

    def _find_double(self, listed: Listed, producer_id: ProducerId, file_state: FileState) -> str | None:
        """An earlier producer with the same new records, although each was loaded as a file of its own.

        This happens if content was not the identity of files from the beginning.
        """
        for other in self.contents.alike(listed):
            beside = self.files.get(other.state.name)
            is_earlier = other.producer_id < producer_id
            if is_earlier and beside != listed and self._is_double(listed, beside, other, file_state):
                return other.state.name
        return None

    def _is_double(self, listed: Listed, beside: Listed | None, other: LoadedProducer, file_state: FileState) -> bool:
        end = file_state.consumed.end
        if beside is None:
            # Whether they differ after that can no longer be seen.
            proven = holds_what_was_loaded(self.declared, self.ledger, listed, other.producer_id, end=end)
            return other.state.consumed.end > end and proven
        common, _ = _common_bytes(listed, beside)
        if common <= end:
            return False
        return self._beginning(listed, other, common=common, counted_from=end).consumed.end > end

    def _records(self, producer_id: ProducerId, *, end: int) -> int:
        return self.ledger.proof_of(self.declared.name, producer_id, end=end).records

    def _diverged(self, listed: Listed, file_state: FileState, loaded: LoadedProducer) -> FileState | Note:
        """The shared part of a copy that continues differently from its producer."""
        state = loaded.state
        beside = self.files.get(state.name)
        if beside is None or self.contents.shared(beside, loaded) is None:
            # A shorter file may still be a part of it.
            is_other = listed.size >= state.consumed.end
            reason = (_NOT_BESIDE if is_other else BEGINNING).format(state.name)
            # Without the other file this cannot be decided, so each load reports it.
            is_left = not is_other and beside is None
            return Note(name=listed.name, reason=reason, needs_a_person=is_other, is_unreadable=is_left)
        common, goes_on = _common_bytes(listed, beside)
        if not goes_on:
            return Note(name=listed.name, reason=BEGINNING.format(beside.name))
        seen = file_state.seen
        record = self._beginning(listed, loaded, common=common, counted_from=seen)
        if not state.consumed.covers(record.consumed):
            return Note(name=listed.name, reason=BESIDE.format(state.name, state.name))
        # Some of its records were counted before, when it was still a copy.
        counted = self._records(loaded.producer_id, end=seen) if seen <= common else 0
        return replace(
            file_state,
            copy_of=None,
            copy_record=replace(record, records=counted + record.records) if record.consumed else None,
            consumed=record.consumed,
            fingerprint=record.fingerprint,
        )

    def _beginning(self, listed: Listed, loaded: LoadedProducer, *, common: int, counted_from: int) -> CopyRecord:
        """Cut the bytes shared with a producer after their last whole record; those before `counted_from` are known."""
        first = counted_from if counted_from <= common else 0
        starts = np.sort(np.array([*_starts(self.declared, listed, first=first, common=common)], np.int64))
        end = int(starts[-1]) if len(starts) else first
        seen, digests = StreamMarks(), Digests()
        with errors_naming(listed.url), open_stream(listed.url) as stream:
            while seen.end < end and (block := stream.read(min(_READ_BYTES, end - seen.end))):
                seen.feed(block)
                digests.feed(block)
        records = int(np.searchsorted(starts, end))
        return CopyRecord(
            name=loaded.state.name,
            fingerprint=Fingerprint(stream=seen.marks).to_bytes(),
            size=None,
            condition=Condition.OPEN,
            consumed=SpanSet([Span(0, end)]) if end else SpanSet(),
            shares_with=loaded.producer_id,
            digest=digests.of(Span(0, end)) if end else b"",
            records=records,
            duplicates=records,
        )


_CONTINUES = (
    "it starts with all that was loaded of {0}, but continues the last line of {0}, which was loaded as complete "
    "without a newline (source.sealed). Nothing of this file is loaded, so that no record is loaded twice. Write the "
    "new records into a file of their own, and remove this one"
)
_DOUBLE = (
    "its new records are also in {0}, and both files were loaded before as files of their own. Nothing more of this "
    "file is loaded, so that no record is loaded twice. Remove this file. If {0} is gone, restore it first"
)
_NOT_BESIDE = (
    "it was a copy of {0} and no longer matches what was loaded. Nothing more of it is loaded: where the two differ "
    "is unknown, because {0} is gone or was changed. Restore {0} as it was loaded, and load again"
)


def _common_bytes(one: Listed, other: Listed) -> tuple[int, bool]:
    """How many bytes two files share, and whether the first file continues after them."""
    end = 0
    with errors_naming(one.url), open_stream(one.url) as stream, open_stream(other.url) as beside:
        while block := stream.read(_READ_BYTES):
            there = beside.read(len(block))
            length = min(len(block), len(there))
            differs = np.frombuffer(block[:length], np.uint8) != np.frombuffer(there[:length], np.uint8)
            same = int(differs.argmax()) if differs.any() else length
            end += same
            if same < len(block):
                return end, True
    return end, False


def _starts(declared: Declared, listed: Listed, *, first: int, common: int) -> Iterator[int]:
    """The starts of the shared records, and the first start after them."""
    source, size = declared.source, listed.size
    end = None if is_stream(source, listed.name) else complete_end(listed.url, first=first, size=size)
    chunk = Chunk(
        producer_id=ProducerId(0),
        name=listed.name,
        url=listed.url,
        first=first,
        end=end,
        size=size,
        header=header_of(declared, listed.url),
    )
    try:
        for each in read_parts(chunk, source):
            if each.part.first > common:
                return
            records = read_records(declared, declared.columns, [each])
            found = [*records.rows.column(SEQUENCE).to_pylist(), *(bad.sequence_id for bad in records.bad)]
            yield from (start for start in found if start <= common)
            if each.part.end <= common:
                yield each.part.end
    except Unreadable:
        # There may be more shared records, which would be loaded twice.
        raise
    except OnceloadError:
        # The file ends or breaks off there, which is reported when the rest is loaded.
        return


def refuse_moved_content(declared: Declared, ledger: Ledger[Any], pipeline: Pipeline, files: Sequence[Listed]) -> None:
    """Refuse the first load of a pipeline if another one has loaded its files in a folder where they are gone.

    The pipeline was renamed then, and its folder moved. No key of the database holds this: equal files in two folders
    may well be two deliveries.
    """
    if loaded_states(ledger, pipeline.name):
        return
    for other, folder in ledger.others_by_content(pipeline).items():
        contents = LoadedContents(replace(declared, pipeline=replace(declared.pipeline, name=other)), ledger)
        for listed in files:
            shared = contents.find(listed)
            if shared is not None and _is_gone(with_login(folder + shared.state.name, of=declared.source.path)):
                file = (
                    f"{pipeline.folder}{listed.name} (as {folder}{shared.state.name}, which is gone; if these are two "
                    f"deliveries, set identity: path for the first load of {pipeline.name})"
                )
                raise LoadedByAnother(pipeline.name, other, file, pipeline.declaration.terms[TARGET], 0)


def _is_gone(url: str) -> bool:
    try:
        look_at(url)
    except Unreadable as error:
        # A store that does not answer proves nothing.
        return isinstance(error.__cause__, FileNotFoundError)
    return False
