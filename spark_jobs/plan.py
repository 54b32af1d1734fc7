"""What a load would read, from which byte, and why not the rest: decided without Spark, and nothing is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup_core.errors import ExitCode, NotFound, OnceloadError
from dedup_core.names import ProducerId
from dedup_core.ports import Knowledge, Ledger
from dedup_core.replay import Condition
from dedup_core.spans import Span, SpanSet
from dedup_core.verdicts import judge
from spark_jobs.declared import Declared, Format, Identity, OnRewrite, Source
from spark_jobs.sources.csv import split_header
from spark_jobs.sources.files import Compression, Listed, list_files, open_stream, read_at
from spark_jobs.sources.fingerprints import Fingerprint, Resemblance, compare, compare_whole, fingerprint_of
from spark_jobs.sources.pieces import complete_end
from spark_jobs.twins import Twin, Twins

_FIRST_LINE_BYTES_MAX = 2**20


@dataclass(frozen=True, kw_only=True)
class Note:
    """A file that is not read, or not whole, and why."""

    name: str
    reason: str
    needs_a_person: bool = False


@dataclass(frozen=True, kw_only=True)
class FileToRead:
    """What is new of one file."""

    listed: Listed
    generation: int
    #: Half-open spans; the end of the last is left out where only reading tells.
    spans: tuple[tuple[int, int | None], ...]
    sealed: bool
    header: tuple[str, ...] = ()
    #: Fingerprints that it must still have when it is read.
    expected: tuple[bytes, ...] = ()
    #: A file that it starts with, so that so much of it is in already.
    twin: Twin | None = None
    #: An earlier generation whose rows go when these come.
    replaces: ProducerId | None = None

    @property
    def bytes(self) -> int:
        """How much there is to read; of a compressed file, as much as is known."""
        return sum((self.listed.size if end is None else end) - first for first, end in self.spans if end or not first)


@dataclass(frozen=True, kw_only=True)
class Plan:
    to_read: tuple[FileToRead, ...]
    notes: tuple[Note, ...] = ()
    #: Files of which everything is in already.
    done: int = 0


@dataclass(frozen=True, kw_only=True)
class _Life:
    """The generation of a file that is meant, and what took effect of it."""

    generation: int = 1
    consumed: SpanSet = field(default_factory=SpanSet)
    claimed: SpanSet = field(default_factory=SpanSet)
    #: Its stream was read to the end, and it has not changed since.
    is_done: bool = False
    #: What its beginning must still be when it is read.
    fingerprint: bytes | None = None
    twin: Twin | None = None
    replaces: ProducerId | None = None


def make_plan(declared: Declared, ledger: Ledger[Any], *, now_s: float) -> Plan:
    """Look at every file of the source; one that cannot be read is noted, and stops no other."""
    listing = list_files(declared.source.path)
    known = _known(ledger, declared.name, [listed.name for listed in listing.files])
    to_read: list[FileToRead] = []
    notes = [Note(name=name, reason=reason) for name, reason in listing.refused]
    is_new = any(listed.name not in known for listed in listing.files)
    twins = Twins(declared, ledger) if is_new and declared.source.identity is Identity.CONTENT else None
    done = 0
    for listed in listing.files:
        try:
            twin = twins.find(listed) if twins and listed.name not in known else None
            found = _look(declared, listed, known.get(listed.name), twin, now_s=now_s)
        except OnceloadError as error:
            found = Note(name=listed.name, reason=str(error), needs_a_person=error.exit_code is ExitCode.NEEDS_A_PERSON)
        match found:
            case FileToRead():
                to_read.append(found)
            case Note():
                notes.append(found)
            case None:
                done += 1
    return Plan(to_read=tuple(to_read), notes=tuple(notes), done=done)


def _known(ledger: Ledger[Any], pipeline: str, names: Sequence[str]) -> Mapping[str, tuple[ProducerId, Knowledge]]:
    try:
        return ledger.find(pipeline, names)
    except NotFound:
        # Planned before its first load: nothing is known of any file.
        return {}


def _look(
    declared: Declared,
    listed: Listed,
    known: tuple[ProducerId, Knowledge] | None,
    twin: Twin | None,
    *,
    now_s: float,
) -> FileToRead | Note | None:
    """What is new of one file, why it cannot be read now, or nothing."""
    sealed = _is_sealed(declared.source, listed, now_s=now_s)
    life = _Life(twin=twin, consumed=twin.consumed) if twin else _life(declared, listed, known, sealed=sealed)
    if isinstance(life, Note):
        return life
    if life.is_done:
        return None
    if is_stream(declared.source, listed.name):
        return _rest_of_stream(declared.source, listed, life, sealed=sealed)
    return _rest_of_plain(declared.source, listed, life, sealed=sealed)


def _life(
    declared: Declared, listed: Listed, known: tuple[ProducerId, Knowledge] | None, *, sealed: bool
) -> _Life | Note:
    if known is None:
        return _Life()
    producer_id, knowledge = known
    state = knowledge.state
    if state.fingerprint is None:
        return _Life(generation=state.generation, consumed=state.consumed, claimed=knowledge.claimed)
    resemblance = _resemblance(declared.source, listed, knowledge)
    reason = _REWRITTEN.get(resemblance)
    if reason is None:
        is_whole = state.consumed == SpanSet([Span(0, listed.size)]) if listed.size else False
        is_read = state.size == listed.size if is_stream(declared.source, listed.name) else is_whole
        return _Life(
            generation=state.generation,
            consumed=state.consumed,
            claimed=knowledge.claimed,
            fingerprint=state.fingerprint,
            is_done=is_read and resemblance is Resemblance.SAME and (not sealed or state.condition is Condition.SEALED),
        )
    match declared.on_rewrite:
        case OnRewrite.STOP:
            what = (
                f"{reason} (up to {state.consumed.end}); nothing more of it is loaded: put it back, or set on_rewrite"
            )
            return Note(name=listed.name, reason=what, needs_a_person=True)
        case OnRewrite.NEW_GENERATION:
            return _Life(generation=state.generation + 1)
        case OnRewrite.REPLACE:
            return _Life(generation=state.generation + 1, replaces=producer_id)


_REWRITTEN = {
    Resemblance.SHORTER: "it is shorter than what was loaded of it",
    Resemblance.CHANGED: "it no longer starts with what was loaded of it",
}


def _resemblance(source: Source, listed: Listed, knowledge: Knowledge) -> Resemblance:
    fingerprint = Fingerprint.from_bytes(knowledge.state.fingerprint or b"")
    if source.format is Format.PARQUET:
        return compare_whole(listed, fingerprint)
    resemblance = compare(listed, fingerprint, consumed_end=knowledge.state.consumed.end)
    if resemblance is Resemblance.GROWN and knowledge.state.condition is Condition.SEALED:
        return resemblance if _ends_a_line(listed, knowledge.state.consumed.end) else Resemblance.CHANGED
    return resemblance


def _ends_a_line(listed: Listed, end: int) -> bool:
    """Whether more may follow: a last line that was taken without its newline must stay the last."""
    if Compression.of(listed.url) is not Compression.NONE:
        return False
    return end == 0 or read_at(listed.url, offset=end - 1, size=1) == b"\n"


def _is_sealed(source: Source, listed: Listed, *, now_s: float) -> bool:
    if source.sealed_after_s is None:
        return False
    return source.sealed_after_s == 0 or (
        listed.modified_at is not None and now_s - listed.modified_at >= source.sealed_after_s
    )


def is_stream(source: Source, name: str) -> bool:
    """Whether only reading a file from its start tells where its records are."""
    multiline = source.format is Format.CSV and source.csv.multiline
    return source.format is Format.PARQUET or multiline or Compression.of(name) is not Compression.NONE


def _rest_of_stream(source: Source, listed: Listed, life: _Life, *, sealed: bool) -> FileToRead | Note:
    if life.claimed:
        return Note(name=listed.name, reason="another run is loading it")
    spans = ((life.consumed.end if life.consumed else 0, None),)
    return _to_read(source, listed, life, spans=spans, sealed=sealed)


def _rest_of_plain(source: Source, listed: Listed, life: _Life, *, sealed: bool) -> FileToRead | Note | None:
    from_byte = life.consumed.end if life.consumed else 0
    end = listed.size if sealed else complete_end(listed.url, first=min(from_byte, listed.size), size=listed.size)
    offered = SpanSet([Span(0, end)]) if end else SpanSet()
    judgement = judge(offered, consumed=life.consumed, claimed=life.claimed)
    if judgement.new or life.twin:
        spans = tuple((span.first, span.end) for span in judgement.new)
        return _to_read(source, listed, life, spans=spans, sealed=sealed)
    if judgement.unknown:
        return Note(name=listed.name, reason="another run is loading it")
    if end < listed.size:
        return Note(name=listed.name, reason=f"its last line ({listed.size - end} bytes) has no newline yet")
    return None


def _to_read(
    source: Source, listed: Listed, life: _Life, *, spans: tuple[tuple[int, int | None], ...], sealed: bool
) -> FileToRead:
    return FileToRead(
        listed=listed,
        generation=life.generation,
        spans=spans,
        sealed=sealed,
        header=_header(source, listed) if source.format is Format.CSV and source.csv.header else (),
        expected=_expected(source, listed, life, spans),
        replaces=life.replaces,
        twin=life.twin,
    )


def _expected(
    source: Source, listed: Listed, life: _Life, spans: tuple[tuple[int, int | None], ...]
) -> tuple[bytes, ...]:
    """What was loaded of it, and, where that is cheap to know, all that is to be read."""
    known = (life.fingerprint,) if life.fingerprint else ()
    end = listed.size if source.format is Format.PARQUET else (spans[-1][1] if spans else None)
    return known if end is None else (*known, fingerprint_of(listed.url, end=end).to_bytes())


def _header(source: Source, listed: Listed) -> tuple[str, ...]:
    """The names in a file's first line, which later parts of it do not show."""
    with open_stream(listed.url) as stream:
        begun = stream.read(_FIRST_LINE_BYTES_MAX)
    return split_header(begun.partition(b"\n")[0], source.csv)
