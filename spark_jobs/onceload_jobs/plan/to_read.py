"""The part of a file that is still to be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from onceload_core.names import ProducerId
from onceload_core.spans import Span, SpanSet
from onceload_core.verdicts import judge
from onceload_jobs.content.copies import CopyRecord
from onceload_jobs.files.fingerprints import fingerprint_of, fingerprint_of_whole
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import LastLineOpen, RowGroup
from onceload_jobs.formats.csv.header import read_checked_header
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.declared import Declared, Format, NewerFile, Source
from onceload_jobs.plan.file_state import LEFT_OPEN, FileState
from onceload_jobs.read.parts import complete_end, find_open_end, is_plain_text, is_stream


@dataclass(frozen=True, kw_only=True)
class FileToRead:
    """The new part of one file."""

    listed: Listed
    generation: int
    #: Half-open spans; the end of the last is None if only reading finds it.
    spans: tuple[tuple[int, int | None], ...]
    sealed: bool
    header: tuple[str, ...] = ()
    #: Nothing of it was loaded under its own name.
    is_new: bool = False
    #: Fingerprints that it must still match when it is read.
    expected: tuple[bytes, ...] = ()
    #: The marks of its stored bytes, if only reading finds the end of its records.
    stored: bytes | None = None
    #: What to record about it: this much is already loaded under another name.
    copy_record: CopyRecord | None = None
    #: The rows of a file that is written as a whole.
    row_groups: tuple[RowGroup, ...] = field(default=(), repr=False)
    #: An earlier generation, whose rows are deleted in the same commit.
    replaces: ProducerId | None = None

    @property
    def loaded_elsewhere(self) -> str | None:
        """How the rest of it is loaded, if not under its own name."""
        if self.copy_record is None:
            return None
        is_itself = self.copy_record.name == self.listed.name
        return _SAME_FILE if is_itself else f"already loaded as {self.copy_record.name}"

    @property
    def why(self) -> str:
        """Why it is read; or, if nothing of it is read, what happens with it."""
        elsewhere = self.loaded_elsewhere or ("new" if self.spans else "already loaded; only its state is recorded")
        if self.replaces is not None:
            elsewhere = "reload: replaces its loaded rows"
        return f"new; the part before it is {elsewhere}" if self.spans and self.copy_record else elsewhere

    @property
    def bytes(self) -> int:
        """How much there is to read; for a compressed file, as much as is known."""
        if self.row_groups:
            return sum(group.bytes for span in self.spans for group in self.row_groups_of(*span))
        return sum((self.listed.size if end is None else end) - first for first, end in self.spans if end or not first)

    def row_groups_of(self, first: int, end: int | None) -> list[RowGroup]:
        """The row groups with rows of a span; without an end, of all rows from its first."""
        return [each for each in self.row_groups if each.end > first and (end is None or each.first < end)]


_SAME_FILE = "already loaded, from another folder or under another ETag"

#: The new part of a file, why it is not read now, or None if nothing is new.
Finding: TypeAlias = FileToRead | Note | None


def oldest_first(declared: Declared, files: Sequence[FileToRead]) -> list[FileToRead]:
    """New files that are merged, in the order in which their rows count; no other files."""
    if not declared.is_merge_of_files:
        return []
    if declared.target.newer_file is not NewerFile.BY_TIME:
        return sorted(files, key=lambda file: file.listed.name)
    return sorted(files, key=lambda file: (file.listed.modified_at or 0, file.listed.name))


def is_sealed(source: Source, listed: Listed, *, now_s: float) -> bool:
    if source.sealed_after_s is None:
        return False
    return source.sealed_after_s == 0 or (
        listed.modified_at is not None and now_s - listed.modified_at >= source.sealed_after_s
    )


def rest_of_stream(source: Source, listed: Listed, file_state: FileState, *, sealed: bool) -> Finding:
    if file_state.is_left_open and not sealed:
        return Note(name=listed.name, reason=LEFT_OPEN)
    first, size = file_state.consumed.end if file_state.consumed else 0, listed.size
    if file_state.is_all_in and file_state.consumed == SpanSet([Span(0, first)] if first else []):
        return _to_read(source, listed, file_state, spans=(), sealed=sealed)
    if is_plain_text(source, listed.url) and not file_state.copy_record:
        if first >= size and file_state.consumed.is_without_holes and file_state.replaces is None:
            return None
        left = find_open_end(listed.url, source, first=first, size=size) if first < size else None
        if left and not (sealed and isinstance(left, LastLineOpen)):
            return Note.of(listed.name, left)
    # Chunks of a plain file are loaded in any order; if it is compressed later, some may still be missing.
    missing = judge(SpanSet([Span(0, first)]) if first else SpanSet(), consumed=file_state.consumed).new
    spans = (*((span.first, span.end) for span in missing), (first, None))
    return _to_read(source, listed, file_state, spans=spans, sealed=sealed)


def rest_of_plain(source: Source, listed: Listed, file_state: FileState, *, sealed: bool) -> Finding:
    from_byte = file_state.consumed.end if file_state.consumed else 0
    end = listed.size if sealed else complete_end(listed.url, first=min(from_byte, listed.size), size=listed.size)
    offered = SpanSet([Span(0, end)]) if end else SpanSet()
    new = judge(offered, consumed=file_state.consumed).new
    is_open = Note(name=listed.name, reason=str(LastLineOpen(listed.size - end)))
    if file_state.replaces is not None and end < listed.size:
        return is_open.of_no_replacement()
    if file_state.replaces is not None and not end:
        # Its end is found by reading, as in a compressed file without content.
        return _to_read(source, listed, file_state, spans=((0, None),), sealed=sealed)
    if new or file_state.copy_record:
        spans = tuple((span.first, span.end) for span in new)
        return _to_read(source, listed, file_state, spans=spans, sealed=sealed)
    return is_open if end < listed.size else None


def has_more_row_groups(source: Source, listed: Listed, taken: SpanSet) -> bool:
    """Whether a whole file has row groups that are neither loaded nor claimed."""
    groups = read_whole_file(source.format, listed.url, size=listed.size).row_groups
    return any(not taken.covers(SpanSet([Span(group.first, group.end)])) for group in groups)


def _to_read(
    source: Source, listed: Listed, file_state: FileState, *, spans: tuple[tuple[int, int | None], ...], sealed: bool
) -> FileToRead:
    return FileToRead(
        listed=listed,
        generation=file_state.generation,
        spans=spans,
        sealed=sealed,
        is_new=not file_state.consumed,
        expected=_expected(source, listed, file_state, spans),
        stored=_stored_marks(source, listed),
        replaces=file_state.replaces,
        copy_record=file_state.copy_record,
    )


def _expected(
    source: Source, listed: Listed, file_state: FileState, spans: tuple[tuple[int, int | None], ...]
) -> tuple[bytes, ...]:
    """The loaded part, and, where that is cheap, all that will be read."""
    known = (file_state.fingerprint,) if file_state.fingerprint else ()
    if source.format.is_whole:
        return (*known, fingerprint_of_whole(listed.url, size=listed.size).to_bytes())
    end = spans[-1][1] if spans else None
    return known if end is None else (*known, fingerprint_of(listed.url, end=end).to_bytes())


def _stored_marks(source: Source, listed: Listed) -> bytes | None:
    """The stored bytes of a file whose end is only found by reading; the others have expected fingerprints."""
    is_end_known = source.format.is_whole or not is_stream(source, listed.name)
    return None if is_end_known else fingerprint_of(listed.url, end=listed.size).to_bytes()


def with_columns(declared: Declared, file: FileToRead) -> FileToRead | Note:
    """Refuse a file that lacks declared columns; keep what its chunks need: row groups, or the header of a CSV file."""
    source, listed = declared.source, file.listed
    if source.format.is_whole:
        found = read_whole_file(source.format, listed.url, size=listed.size, columns=declared.columns)
        return replace(file, row_groups=found.row_groups)
    if source.format is not Format.CSV or not source.csv.header:
        return file
    header = read_checked_header(listed.url, declared.columns, source.csv, sealed=file.sealed)
    if header is None:
        return Note(name=listed.name, reason="its header line has no newline yet. It is loaded once it is complete")
    return replace(file, header=header)
