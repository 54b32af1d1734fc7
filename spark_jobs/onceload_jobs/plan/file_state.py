"""The generation of a file that a load continues with: the file is compared with what was loaded of it."""

from dataclasses import dataclass, field, replace
from typing import Any

from onceload_core.advice import Ways
from onceload_core.commands import reload_command
from onceload_core.names import ProducerId
from onceload_core.ports import KnownProducer, Ledger, LoadedProducer
from onceload_core.replay import Condition, ProducerState
from onceload_core.spans import SEQUENCE_END, Span, SpanSet
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.fingerprints import EDGE_BYTES, Fingerprint, Resemblance, begins_alike, has_same_etag_or_none
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.csv.header import read_header
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.declared import Declared, Format, OnRewrite, Source
from onceload_jobs.plan.copies import CopyRecord, holds_what_was_loaded, resemblance_of
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.read.parts import is_stream


@dataclass(frozen=True, kw_only=True)
class FileState:
    """The current generation of a file, and what was loaded of it."""

    generation: int = 1
    consumed: SpanSet = field(default_factory=SpanSet)
    #: Its stream was read to the end, and it has not changed since.
    is_done: bool = False
    #: The same, except for a last line without newline.
    is_left_open: bool = False
    #: The fingerprint that its beginning must still match when it is read.
    fingerprint: bytes | None = None
    #: It contained the content of this producer, as far as that was loaded then.
    copy_of: LoadedProducer | None = None
    #: Up to which end, and how many records.
    seen: int = 0
    #: The record of its content under another name.
    copy_record: CopyRecord | None = None
    #: It ends where that content ends.
    is_all_in: bool = False
    #: The record of the same file, after its ETag changed.
    new_etag: CopyRecord | None = None
    replaces: ProducerId | None = None


@dataclass(frozen=True, kw_only=True)
class LoadedPart:
    """The part of a file that was loaded under its name."""

    declared: Declared
    ledger: Ledger[Any]
    listed: Listed
    #: The file counts as complete.
    sealed: bool

    def state(self, known: KnownProducer | None) -> FileState | Note:
        if known is None:
            return FileState()
        producer_id, knowledge = known
        state = knowledge.state
        if state.condition is Condition.REPLACED:
            # The generation that replaced it has consumed nothing.
            return FileState(generation=state.generation + 1)
        if knowledge.shared is not None:
            return self._of_copy(state, knowledge.shared)
        if state.fingerprint is None and state.consumed and self.declared.producer:
            return Note(name=self.listed.name, reason=_NAME_TAKEN, needs_a_person=True)
        if state.fingerprint is None:
            return FileState(generation=state.generation, consumed=state.consumed)
        return self._compared(producer_id, state, is_elsewhere=knowledge.is_elsewhere)

    def _of_copy(self, state: ProducerState, shared: LoadedProducer) -> FileState | Note:
        """Nothing is consumed under its own name; its content is loaded as another producer's."""
        is_whole = self.declared.source.format.is_whole
        # The copy contains the content of its producer up to there.
        held = SEQUENCE_END if is_whole else Fingerprint.from_bytes(state.fingerprint or b"").stream.end
        seen = shared.state.consumed & (SpanSet([Span(0, held)]) if held else SpanSet())
        end = seen.end if seen else 0
        found = self._compared(shared.producer_id, replace(state, consumed=seen), end=end)
        if isinstance(found, Note) or found.generation != state.generation:
            return found
        if found.is_left_open and not self.sealed and seen == shared.state.consumed:
            return Note(name=self.listed.name, reason=LEFT_OPEN)
        new_etag = found.new_etag and replace(found.new_etag, copy_of=shared.producer_id)
        if found.is_done:
            return replace(found, new_etag=new_etag)
        return FileState(generation=found.generation, copy_of=shared, seen=end, new_etag=new_etag)

    def _compared(
        self, producer_id: ProducerId, state: ProducerState, *, end: int | None = None, is_elsewhere: bool = False
    ) -> FileState | Note:
        """The same generation if the file has not changed since it was read, or has only grown."""
        fingerprint = Fingerprint.from_bytes(state.fingerprint or b"")
        resemblance = resemblance_of(self.declared.source, self.listed, state)
        is_vouched = has_same_etag_or_none(self.listed, fingerprint) and not is_elsewhere
        if resemblance in (Resemblance.SAME, Resemblance.GROWN) and not is_vouched:
            # Both ends are equal; only reading all of it could show whether the rest is.
            is_proven = holds_what_was_loaded(self.declared, self.ledger, self.listed, producer_id, end=end)
            resemblance = resemblance if is_proven else Resemblance.CHANGED
        reason = _why_rewritten(self.declared.source, self.listed, fingerprint, resemblance)
        if reason is None and not self._has_rows_in_place(state):
            reason = _MOVED
        if reason is None:
            new_etag = None
            if not is_vouched:
                named = fingerprint.named(self.listed.etag).to_bytes()
                new_etag = CopyRecord(name=state.name, fingerprint=named, size=state.size, condition=state.condition)
            return self._continued(state, is_same=resemblance is Resemblance.SAME, new_etag=new_etag)
        if is_elsewhere:
            other = _other_file(self.declared, self.listed.name, reason)
            return Note(name=self.listed.name, reason=other, needs_a_person=True)
        return _rewritten(self, producer_id, state, reason, resemblance)

    def _continued(self, state: ProducerState, *, is_same: bool, new_etag: CopyRecord | None) -> FileState:
        is_sealed_as_read = not self.sealed or state.condition is Condition.SEALED
        return FileState(
            generation=state.generation,
            consumed=state.consumed,
            fingerprint=state.fingerprint,
            is_left_open=is_same and was_left_open(state) and state.consumed.is_without_holes,
            is_done=is_same and is_sealed_as_read and self._is_all_read(state),
            new_etag=new_etag,
        )

    def _is_all_read(self, state: ProducerState) -> bool:
        """Whether all its bytes were read; an empty plain file never counts as read."""
        size = self.listed.size
        if is_stream(self.declared.source, self.listed.name):
            # A read to the end of a stream records its size; earlier reads may have left holes.
            return state.size == size and state.consumed.is_without_holes
        return size > 0 and state.consumed == SpanSet([Span(0, size)])

    def _has_rows_in_place(self, state: ProducerState) -> bool:
        """Whether what was loaded of a file with numbered rows begins and ends where its row groups do.

        The rows of Avro are counted by the heads of its blocks. If one was damaged, later rows were loaded under wrong
        numbers, and have others in a complete copy, which has the same first and last bytes.
        """
        of_format = self.declared.source.format
        if not of_format.is_typed or self._is_all_read(state):
            return True
        groups = read_whole_file(of_format, self.listed.url, size=self.listed.size).row_groups
        edges = {0, *(group.end for group in groups)}
        return all({span.first, span.end} <= edges for span in state.consumed)


def _why_rewritten(source: Source, listed: Listed, fingerprint: Fingerprint, resemblance: Resemblance) -> str | None:
    if not source.format.is_whole or resemblance is not Resemblance.CHANGED:
        return _REWRITTEN.get(resemblance)
    # An array that has grown still starts with the loaded records.
    before = fingerprint.stream.end
    if is_compressed(listed.url) or listed.size == before:
        return "its content has changed since it was loaded"
    return f"its size has changed from {before:,} to {listed.size:,} bytes since it was loaded"


def _rewritten(
    part: LoadedPart, producer_id: ProducerId, state: ProducerState, reason: str, resemblance: Resemblance
) -> FileState | Note:
    """Decide about a file that was rewritten."""
    declared, listed, name = part.declared, part.listed, part.listed.name
    match declared.on_rewrite:
        case OnRewrite.STOP:
            is_whole = declared.source.format.is_whole
            unit, elsewhere = ("row", ", and write new records to a new file") if is_whole else ("byte", "")
            what = (
                f"{reason} (up to {unit} {state.consumed.end}). Its loaded rows stay, and nothing more of it is "
                f"loaded. Restore the file{elsewhere}, {_or_take_it(declared, name)}"
            )
            return Note(name=name, reason=what, needs_a_person=True)
        case OnRewrite.NEW_GENERATION:
            if reason == _MOVED:
                return Note(name=name, reason=f"{_MOVED}. {_load_again(declared, name)}", needs_a_person=True)
            if resemblance is Resemblance.SHORTER and not listed.size:
                return Note(name=name, reason=_EMPTY, is_settled=True)
            if resemblance is Resemblance.SHORTER and _may_be_a_beginning(declared.source, listed, state):
                return Note(name=name, reason=_BEGINS_ALIKE, needs_a_person=True)
            return FileState(generation=state.generation + 1)
        case OnRewrite.REPLACE:
            return FileState(generation=state.generation + 1, replaces=producer_id)


def _may_be_a_beginning(source: Source, listed: Listed, state: ProducerState) -> bool:
    """Whether a shorter file looks like an upload of the loaded content that has not ended."""
    if not begins_alike(listed, Fingerprint.from_bytes(state.fingerprint or b"")):
        return False
    if source.format is not Format.CSV or not source.csv.header:
        return True
    # Files with other records have the same header.
    header = source.csv.delimiter.join(read_header(listed.url, source.csv, sealed=True) or ())
    return len(header.encode()) < EDGE_BYTES


def _may_reload(declared: Declared) -> bool:
    return Ways.of(pipeline_with_declaration(declared).declaration).may_reload


def _or_take_it(declared: Declared, name: str) -> str:
    """How the new content gets into the target."""
    may_reload = _may_reload(declared)
    once = f"or run {reload_command(name)} to replace its loaded rows with the new content, " if may_reload else ""
    replaced = "`replace` (its loaded rows are deleted) or " if may_reload else ""
    return f"{once}or set on_rewrite to {replaced}`new_generation` (they stay)"


def _other_file(declared: Declared, name: str, reason: str) -> str:
    command = f"{reload_command(name).removesuffix('`')} --accept-differences`"
    may_reload = _may_reload(declared)
    return _OTHER_FILE.format(reason) + (f". To replace its loaded rows instead, run {command}" if may_reload else "")


def _load_again(declared: Declared, name: str) -> str:
    is_by_command = _may_reload(declared)
    what = f"Load it with {reload_command(name)}" if is_by_command else "Deliver its new records in a new file"
    return f"{_LOADED_TWICE}. {what}"


_REWRITTEN = {
    Resemblance.SHORTER: "it is shorter than what was loaded of it",
    Resemblance.CHANGED: "it no longer starts with what was loaded of it",
    Resemblance.CONTINUED: "its last line has grown, although it was loaded as complete without a newline",
}


_NAME_TAKEN = (
    "its name is already the name of a producer in the records, and a file cannot be the same producer. "
    "Nothing of this file is loaded. Rename the file"
)
_OTHER_FILE = (
    "it has the name of a file that was loaded from another folder (source.moved_from, a relative path or a link leads "
    "here now), but {0}. Nothing of it is loaded, and the rows that were loaded under this name stay. If it is that "
    "file, restore its content. If it is a new file, give it another name"
)
_MOVED = "some of its rows were loaded with other row numbers than they have now, perhaps from a damaged copy of it"
_LOADED_TWICE = "A new generation would load them a second time, so nothing more of it is loaded"
_EMPTY = "it is empty now, but rows of it are loaded. They stay, and are compared with it once it has content again"
_BEGINS_ALIKE = (
    "it is shorter than what was loaded of it and starts with the same bytes, like an upload that has not ended. A new "
    "generation would load its records a second time, so nothing of it is loaded. Wait until it is complete and load "
    "again, or give new content another name"
)

LEFT_OPEN = "its last line lacks a newline or a closing quote. It is loaded once it is complete"


def was_left_open(state: ProducerState) -> bool:
    """Whether a packed file was read to its end with an incomplete rest: then no size is recorded."""
    if state.size is not None or state.fingerprint is None:
        return False
    return Fingerprint.from_bytes(state.fingerprint).packed is not None
