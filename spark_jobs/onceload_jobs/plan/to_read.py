"""The part of a file that is still to be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_core.spans import Span, SpanSet
from onceload_core.verdicts import judge
from onceload_jobs.files.fingerprints import fingerprint_of, fingerprint_of_whole
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import LastLineOpen, RowGroup
from onceload_jobs.formats.csv.header import read_checked_header
from onceload_jobs.formats.signatures import check_plain_text
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.declared import Declared, Format, NewerFile, Source
from onceload_jobs.plan.copies import CopyRecord
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


@dataclass(frozen=True, kw_only=True)
class NewPart:
    """The new part of a file, found by what was loaded of it."""

    declared: Declared
    listed: Listed
    state: FileState
    sealed: bool

    def find(self) -> Finding:
        source, url = self.declared.source, self.listed.url
        if is_plain_text(source, url) and not self.state.consumed:
            check_plain_text(url, record_bytes_max=source.record_bytes_max)
        rest = self._of_stream() if is_stream(source, self.listed.name) else self._of_plain(self.state.consumed)
        if not isinstance(rest, FileToRead):
            # The next plan reports the rest, without comparing it again.
            rest = self.with_new_etag() or rest
        return self._with_columns(rest) if isinstance(rest, FileToRead) and rest.spans else rest

    def with_new_etag(self) -> FileToRead | None:
        """Nothing to read, but something to record."""
        record, generation = self.state.new_etag, self.state.generation
        if record is None:
            return None
        return FileToRead(listed=self.listed, generation=generation, spans=(), sealed=self.sealed, copy_record=record)

    def has_more(self, claimed: SpanSet) -> bool:
        """Whether there is more than what another session loads; only fixed sessions need to know."""
        source, listed = self.declared.source, self.listed
        if not self.declared.has_fixed_sessions:
            return False
        taken = self.state.consumed | claimed
        try:
            if source.format.is_whole:
                groups = read_whole_file(source.format, listed.url, size=listed.size).row_groups
                return any(not taken.covers(SpanSet([Span(group.first, group.end)])) for group in groups)
            if is_stream(source, listed.name):
                # One session reads it to its end.
                return not claimed
            return isinstance(self._of_plain(taken), FileToRead)
        except OnceloadError:
            # The next plan finds out.
            return True

    def _of_stream(self) -> Finding:
        source, listed, state = self.declared.source, self.listed, self.state
        if state.is_left_open and not self.sealed:
            return Note(name=listed.name, reason=LEFT_OPEN)
        first, size = state.consumed.end if state.consumed else 0, listed.size
        if state.is_all_in and state.consumed == SpanSet([Span(0, first)] if first else []):
            return self._to_read(())
        if is_plain_text(source, listed.url) and not state.copy_record:
            if first >= size and state.consumed.is_without_holes and state.replaces is None:
                return None
            left = find_open_end(listed.url, source, first=first, size=size) if first < size else None
            if left and not (self.sealed and isinstance(left, LastLineOpen)):
                return Note.of(listed.name, left)
        # Chunks of a plain file are loaded in any order; if it is compressed later, some may still be missing.
        missing = judge(SpanSet([Span(0, first)]) if first else SpanSet(), consumed=state.consumed).new
        return self._to_read((*((span.first, span.end) for span in missing), (first, None)))

    def _of_plain(self, consumed: SpanSet) -> Finding:
        listed, state = self.listed, self.state
        from_byte = min(consumed.end if consumed else 0, listed.size)
        end = listed.size if self.sealed else complete_end(listed.url, first=from_byte, size=listed.size)
        new = judge(SpanSet([Span(0, end)]) if end else SpanSet(), consumed=consumed).new
        is_open = Note(name=listed.name, reason=str(LastLineOpen(listed.size - end)))
        if state.replaces is not None and end < listed.size:
            return is_open.of_no_replacement()
        if state.replaces is not None and not end:
            # Its end is found by reading, as in a compressed file without content.
            return self._to_read(((0, None),))
        if new or state.copy_record:
            return self._to_read(tuple((span.first, span.end) for span in new))
        return is_open if end < listed.size else None

    def _to_read(self, spans: tuple[tuple[int, int | None], ...]) -> FileToRead:
        source, listed, state = self.declared.source, self.listed, self.state
        end = spans[-1][1] if spans else None
        # The loaded part, and, where that is cheap, all that will be read.
        expected = [state.fingerprint] if state.fingerprint else []
        if source.format.is_whole:
            expected.append(fingerprint_of_whole(listed.url, size=listed.size).to_bytes())
        elif end is not None:
            expected.append(fingerprint_of(listed.url, end=end).to_bytes())
        has_open_end = is_stream(source, listed.name) and not source.format.is_whole
        return FileToRead(
            listed=listed,
            generation=state.generation,
            spans=spans,
            sealed=self.sealed,
            is_new=not state.consumed,
            expected=tuple(expected),
            stored=fingerprint_of(listed.url, end=listed.size).to_bytes() if has_open_end else None,
            replaces=state.replaces,
            copy_record=state.copy_record,
        )

    def _with_columns(self, file: FileToRead) -> FileToRead | Note:
        """Refuse a file that lacks declared columns; keep what its chunks need: row groups, or the header of CSV."""
        source, columns, listed = self.declared.source, self.declared.columns, self.listed
        if source.format.is_whole:
            found = read_whole_file(source.format, listed.url, size=listed.size, columns=columns)
            return replace(file, row_groups=found.row_groups)
        if source.format is not Format.CSV or not source.csv.header:
            return file
        header = read_checked_header(listed.url, columns, source.csv, sealed=self.sealed)
        if header is None:
            return Note(name=listed.name, reason="its header line has no newline yet. It is loaded once it is complete")
        return replace(file, header=header)
