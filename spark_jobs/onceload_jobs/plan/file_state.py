"""The generation of a file that a load continues with."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from onceload_core.advice import Ways
from onceload_core.commands import reload_command
from onceload_core.names import ProducerId
from onceload_core.ports import KnownProducer, LoadedProducer
from onceload_core.replay import Condition, ProducerState
from onceload_core.spans import SEQUENCE_END, Span, SpanSet
from onceload_jobs.content.copies import CopyRecord, resemblance_of
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.fingerprints import EDGE_BYTES, Fingerprint, Resemblance, begins_alike, has_same_etag_or_none
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.csv.header import read_header
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.declared import Declared, Format, OnRewrite, Source
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


def current_state(
    declared: Declared,
    listed: Listed,
    known: KnownProducer | None,
    *,
    proven: Callable[..., bool],
    sealed: bool,
) -> FileState | Note:
    if known is None:
        return FileState()
    producer_id, knowledge = known
    state = knowledge.state
    if state.condition is Condition.REPLACED:
        # The generation that replaced it has consumed nothing.
        return FileState(generation=state.generation + 1)
    if knowledge.shared is not None:
        return _state_of_copy(declared, listed, state, knowledge.shared, proven=proven, sealed=sealed)
    if state.fingerprint is None and state.consumed and declared.producer:
        what = (
            "its name is already the name of a producer in the records, and a file cannot be the same producer. "
            "Nothing of this file is loaded. Rename the file"
        )
        return Note(name=listed.name, reason=what, needs_a_person=True)
    if state.fingerprint is None:
        return FileState(generation=state.generation, consumed=state.consumed)
    is_elsewhere = knowledge.is_elsewhere
    return _state_of(declared, listed, producer_id, state, proven=proven, sealed=sealed, is_elsewhere=is_elsewhere)


def _state_of(
    declared: Declared,
    listed: Listed,
    producer_id: ProducerId,
    state: ProducerState,
    *,
    proven: Callable[..., bool],
    sealed: bool,
    is_elsewhere: bool = False,
) -> FileState | Note:
    fingerprint = Fingerprint.from_bytes(state.fingerprint or b"")
    resemblance = resemblance_of(declared.source, listed, state)
    is_vouched = has_same_etag_or_none(listed, fingerprint) and not is_elsewhere
    if resemblance in (Resemblance.SAME, Resemblance.GROWN) and not is_vouched and not proven(listed, producer_id):
        # Both ends are equal; only reading all of it could show whether the rest is.
        resemblance = Resemblance.CHANGED
    reason = _why_rewritten(declared.source, listed, fingerprint, resemblance)
    if reason is None and not _has_rows_in_place(declared.source, listed, state):
        reason = _MOVED
        if not is_elsewhere and declared.on_rewrite is OnRewrite.NEW_GENERATION:
            return Note(name=listed.name, reason=f"{_MOVED}. {_load_again(declared, listed.name)}", needs_a_person=True)
    if reason is None:
        continued = _continued(declared.source, listed, state, is_same=resemblance is Resemblance.SAME, sealed=sealed)
        new_etag = None if is_vouched else CopyRecord.new_etag(state, fingerprint.named(listed.etag))
        return replace(continued, new_etag=new_etag)
    if is_elsewhere:
        return Note(name=listed.name, reason=_other_file(declared, listed.name, reason), needs_a_person=True)
    if resemblance is Resemblance.SHORTER and declared.on_rewrite is OnRewrite.NEW_GENERATION:
        if not listed.size:
            return Note(name=listed.name, reason=_EMPTY, is_settled=True)
        if _may_be_a_beginning(declared.source, listed, fingerprint):
            return Note(name=listed.name, reason=_BEGINS_ALIKE, needs_a_person=True)
    return _next_state(declared, listed, producer_id, state, reason)


def _why_rewritten(source: Source, listed: Listed, fingerprint: Fingerprint, resemblance: Resemblance) -> str | None:
    if not source.format.is_whole or resemblance is not Resemblance.CHANGED:
        return _REWRITTEN.get(resemblance)
    # An array that has grown still starts with the loaded records.
    before = fingerprint.stream.end
    if is_compressed(listed.url) or listed.size == before:
        return "its content has changed since it was loaded"
    return f"its size has changed from {before:,} to {listed.size:,} bytes since it was loaded"


def _continued(source: Source, listed: Listed, state: ProducerState, *, is_same: bool, sealed: bool) -> FileState:
    """The same generation: the file has not changed since it was read, or has only grown."""
    is_sealed_as_read = not sealed or state.condition is Condition.SEALED
    return FileState(
        generation=state.generation,
        consumed=state.consumed,
        fingerprint=state.fingerprint,
        is_left_open=is_same and was_left_open(state) and state.consumed.is_without_holes,
        is_done=is_same and is_sealed_as_read and _is_all_read(source, listed, state),
    )


def _is_all_read(source: Source, listed: Listed, state: ProducerState) -> bool:
    """Whether all its bytes were read; an empty plain file never counts as read."""
    if is_stream(source, listed.name):
        # A read to the end of a stream records its size; earlier reads may have left holes.
        return state.size == listed.size and state.consumed.is_without_holes
    return listed.size > 0 and state.consumed == SpanSet([Span(0, listed.size)])


def _has_rows_in_place(source: Source, listed: Listed, state: ProducerState) -> bool:
    """Whether what was loaded of a file with numbered rows begins and ends where its row groups do.

    The rows of Avro are counted by the heads of its blocks. If one was damaged, later rows were loaded under wrong
    numbers, and have others in a complete copy, which has the same first and last bytes.
    """
    if not source.format.is_typed or _is_all_read(source, listed, state):
        return True
    groups = read_whole_file(source.format, listed.url, size=listed.size).row_groups
    edges = {0, *(group.end for group in groups)}
    return all({span.first, span.end} <= edges for span in state.consumed)


def _state_of_copy(
    declared: Declared,
    listed: Listed,
    state: ProducerState,
    shared: LoadedProducer,
    *,
    proven: Callable[..., bool],
    sealed: bool,
) -> FileState | Note:
    """Nothing is consumed under its own name; its content is loaded as another producer's."""
    seen = _as_seen(declared.source, state, shared.state)
    end = seen.consumed.end if seen.consumed else 0
    file_state = _state_of(declared, listed, shared.producer_id, seen, proven=partial(proven, end=end), sealed=sealed)
    if isinstance(file_state, Note) or file_state.generation != state.generation:
        return file_state
    if file_state.is_left_open and not sealed and seen.consumed == shared.state.consumed:
        return Note(name=listed.name, reason=LEFT_OPEN)
    new_etag = file_state.new_etag and replace(file_state.new_etag, copy_of=shared.producer_id)
    if file_state.is_done:
        return replace(file_state, new_etag=new_etag)
    return FileState(generation=file_state.generation, copy_of=shared, seen=end, new_etag=new_etag)


def _as_seen(source: Source, state: ProducerState, shared: ProducerState) -> ProducerState:
    """The state of a copy: the loaded content of its producer, as far as the copy contains it."""
    end = SEQUENCE_END if source.format.is_whole else Fingerprint.from_bytes(state.fingerprint or b"").stream.end
    return replace(state, consumed=shared.consumed & (SpanSet([Span(0, end)]) if end else SpanSet()))


def _may_be_a_beginning(source: Source, listed: Listed, fingerprint: Fingerprint) -> bool:
    """Whether a shorter file looks like an upload of the loaded content that has not ended."""
    if not begins_alike(listed, fingerprint):
        return False
    if source.format is not Format.CSV or not source.csv.header:
        return True
    # Files with other records have the same header.
    header = source.csv.delimiter.join(read_header(listed.url, source.csv, sealed=True) or ())
    return len(header.encode()) < EDGE_BYTES


def _next_state(
    declared: Declared, listed: Listed, producer_id: ProducerId, state: ProducerState, reason: str
) -> FileState | Note:
    """Decide about a file that was rewritten."""
    match declared.on_rewrite:
        case OnRewrite.STOP:
            is_whole = declared.source.format.is_whole
            unit, elsewhere = ("row", ", and write new records to a new file") if is_whole else ("byte", "")
            what = (
                f"{reason} (up to {unit} {state.consumed.end}). Its loaded rows stay, and nothing more of it is "
                f"loaded. Restore the file{elsewhere}, {_or_take_it(declared, listed.name)}"
            )
            return Note(name=listed.name, reason=what, needs_a_person=True)
        case OnRewrite.NEW_GENERATION:
            return FileState(generation=state.generation + 1)
        case OnRewrite.REPLACE:
            return FileState(generation=state.generation + 1, replaces=producer_id)


def _or_take_it(declared: Declared, name: str) -> str:
    """How the new content gets into the target."""
    ways = Ways.of(pipeline_with_declaration(declared).declaration)
    once = f"or run {reload_command(name)} to replace its loaded rows with the new content, " if ways.may_reload else ""
    replaced = "`replace` (its loaded rows are deleted) or " if ways.may_reload else ""
    return f"{once}or set on_rewrite to {replaced}`new_generation` (they stay)"


def _other_file(declared: Declared, name: str, reason: str) -> str:
    ways = Ways.of(pipeline_with_declaration(declared).declaration)
    command = f"{reload_command(name).removesuffix('`')} --accept-differences`"
    return _OTHER_FILE.format(reason) + (
        f". To replace its loaded rows instead, run {command}" if ways.may_reload else ""
    )


def _load_again(declared: Declared, name: str) -> str:
    ways = Ways.of(pipeline_with_declaration(declared).declaration)
    what_now = f"Load it with {reload_command(name)}" if ways.may_reload else "Deliver its new records in a new file"
    return f"{_LOADED_TWICE}. {what_now}"


_REWRITTEN = {
    Resemblance.SHORTER: "it is shorter than what was loaded of it",
    Resemblance.CHANGED: "it no longer starts with what was loaded of it",
    Resemblance.CONTINUED: "its last line has grown, although it was loaded as complete without a newline",
}


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
