"""What a load would read, from which byte, and why not the rest: decided without Spark, and nothing is written."""

from ast import literal_eval
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from dedup_core.errors import ExitCode, NotFound, OnceloadError
from dedup_core.names import DeliveryId, Position, ProducerId
from dedup_core.ports import Knowledge, Ledger, Outlook
from dedup_core.replay import Condition, ProducerState
from dedup_core.spans import SEQUENCE_END, Span, SpanSet
from dedup_core.verdicts import Order
from spark_jobs.copies import copies_under_way
from spark_jobs.declared import Declared, Format, Identity, OnRewrite, Source, Write
from spark_jobs.partings import common_beginning, part_from
from spark_jobs.sources.addresses import Unreadable, shown
from spark_jobs.sources.csv import check_header, read_header
from spark_jobs.sources.fingerprints import (
    Fingerprint,
    Resemblance,
    fingerprint_of,
    fingerprint_of_whole,
    is_vouched_for,
)
from spark_jobs.sources.listing import Listed, Listing, Name, list_files
from spark_jobs.sources.packed import Compression
from spark_jobs.sources.pieces import complete_end, find_open_end
from spark_jobs.sources.records import LastLineOpen
from spark_jobs.sources.signatures import check_plain_text
from spark_jobs.twins import Shared, Twin, Twins, holds_what_was_loaded, resemblance_of


@dataclass(frozen=True, kw_only=True)
class Note:
    """A file that is not read, or not whole, and why."""

    name: str
    reason: str
    needs_a_person: bool = False
    #: It could not be read, and may be readable when somebody calls again.
    is_unreadable: bool = False
    #: Somebody else is loading it, or something that decides what is new of it.
    is_busy: bool = False
    #: There is more of it than what they have: it is to be planned once they are done with that.
    has_more: bool = False

    @classmethod
    def of(cls, name: str, error: OnceloadError) -> "Note":
        return cls(
            name=name,
            reason=str(error),
            needs_a_person=error.exit_code is ExitCode.NEEDS_A_PERSON,
            is_unreadable=isinstance(error, Unreadable),
        )

    def of_no_replacement(self) -> "Note":
        return replace(self, reason=f"{self.reason}; nothing of it replaces what was loaded of it before")


@dataclass(frozen=True, kw_only=True)
class FileToRead:
    """What is new of one file."""

    listed: Listed
    generation: int
    #: Half-open spans; the end of the last is left out where only reading tells.
    spans: tuple[tuple[int, int | None], ...]
    sealed: bool
    header: tuple[str, ...] = ()
    #: Nothing of it was loaded under its own name.
    is_new: bool = False
    #: Fingerprints that it must still have when it is read.
    expected: tuple[bytes, ...] = ()
    #: All of its bytes as they lie there, told by their edges, where only reading tells how far its records go.
    lying: bytes | None = None
    #: What is noted of it: so much of it is in already under another name.
    twin: Twin | None = None
    #: An earlier generation whose rows go when these come.
    replaces: ProducerId | None = None

    @property
    def in_already(self) -> str | None:
        """How what is not read of it is in, where its own name does not tell."""
        if self.twin is None:
            return None
        is_itself = self.twin.name == self.listed.name
        return "already loaded, under another ETag" if is_itself else f"already loaded as {self.twin.name}"

    @property
    def bytes(self) -> int:
        """How much there is to read; of a compressed file, as much as is known."""
        return sum((self.listed.size if end is None else end) - first for first, end in self.spans if end or not first)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which files a load is about: all of them, unless somebody says otherwise."""

    #: Names, or patterns of names, where * also stands for folders; none means all.
    files: tuple[str, ...] = ()
    #: What was loaded of them is loaded anew, in place of its rows.
    replaces: bool = False
    #: Of these it was.
    replaced: frozenset[str] = frozenset()

    def means(self, name: str) -> bool:
        return not self.files or any(name == each or fnmatchcase(name, each) for each in self.files)


EVERYTHING = Choice()


@dataclass(frozen=True, kw_only=True)
class Plan:
    #: What it goes by, besides what is in of each file.
    outlook: Outlook
    to_read: tuple[FileToRead, ...]
    notes: tuple[Note, ...] = ()
    #: Files of which everything is in already.
    done: int = 0


@dataclass(frozen=True, kw_only=True)
class _Life:
    """The generation of a file that is meant, and what took effect of it."""

    generation: int = 1
    consumed: SpanSet = field(default_factory=SpanSet)
    #: Its stream was read to the end, and it has not changed since.
    is_done: bool = False
    #: The same, but for a last line without newline.
    is_left_open: bool = False
    #: What its beginning must still be when it is read.
    fingerprint: bytes | None = None
    #: It was found to hold the content of this producer, as far as that was in then.
    copy_of: tuple[ProducerId, ProducerState] | None = None
    #: How far that was, and how many records.
    seen: int = 0
    #: What it is in as, under another name.
    twin: Twin | None = None
    #: It ends where that does.
    is_all_in: bool = False
    #: The same file, where its store has come to call it otherwise.
    itself: Twin | None = None
    replaces: ProducerId | None = None


def make_plan(declared: Declared, ledger: Ledger[Any], *, now_s: float, choice: Choice = EVERYTHING) -> Plan:
    """Look at every file of the source; one that cannot be read is noted, and stops no other."""
    listing = list_files(declared.source.path, root=declared.source.root)
    listing = _one_name_each(declared, ledger, listing)
    is_any_there = bool(listing.files)
    by_content = _is_by_content(declared)
    if not by_content:
        listing = _meant(listing, choice)
    # Asked before what is in: what is not claimed any more has taken effect by then, or never will.
    outlook = _outlook(ledger, declared.name)
    known = _known(ledger, declared.name, [*(listed.name for listed in listing.files), *listing.folders])
    files = {listed.name: listed for listed in listing.files}
    others = Others(declared, ledger, Twins(declared, ledger), files) if by_content else None
    proven = partial(holds_what_was_loaded, declared, ledger)
    found: dict[Listed, FileToRead | Note | None] = {}
    waits: dict[Listed, Note] = {}
    for listed in listing.files:
        one = known.get(listed.name)
        try:
            found[listed] = _look(declared, listed, one, others, outlook, proven=proven, now_s=now_s, choice=choice)
        except OnceloadError as error:
            found[listed] = Note.of(listed.name, error)
    copies: set[Listed] = set()
    if by_content:
        # Also of a file that is not meant, one that is may be a copy under way.
        under_way = _under_way(found)
        found |= {each: Note(name=each.name, reason=_BEGINNING.format(other.name)) for each, other in under_way.items()}
        copies = {each for each, other in under_way.items() if other.name > each.name}
        found, waits = _one_of_each(found, known)
        if declared.target.write is Write.MERGE:
            found |= _rotated(found, choice)
        listing = _meant(listing, choice)
        found = {listed: found[listed] for listed in listing.files}
    if outlook.claimed and depends_on_others(declared):
        found |= _in_turn(found, outlook)
    elif declared.is_in_turn:
        found |= _behind(declared, listing, found, copies=copies)
    return Plan(
        outlook=outlook,
        to_read=tuple(each for each in found.values() if isinstance(each, FileToRead)),
        notes=tuple(
            dict.fromkeys(
                (
                    *_notes_of(declared.source, listing, choice=choice if is_any_there else EVERYTHING),
                    *_became_folders(listing, known),
                    *(each for each in found.values() if isinstance(each, Note)),
                    *_open_ends(found.values()),
                    *(waits[listed] for listed in found if listed in waits),
                )
            )
        ),
        done=sum(each is None for each in found.values()),
    )


def _meant(listing: Listing, choice: Choice) -> Listing:
    return replace(
        listing,
        files=tuple(listed for listed in listing.files if choice.means(listed.name)),
        folders=tuple(filter(choice.means, listing.folders)),
    )


def _one_name_each(declared: Declared, ledger: Ledger[Any], listing: Listing) -> Listing:
    """Leave out all names of a file but one: that which it was loaded under, or the first that is no symbolic link."""
    if not listing.names_of_one:
        return listing
    names = [each.name for group in listing.names_of_one for each in group]
    known, files = _known(ledger, declared.name, names), {listed.name: listed for listed in listing.files}
    others: dict[str, str] = {}
    for group in listing.names_of_one:
        registered = [each for each in group if _is_loaded_as(declared, each, files[each.name], known.get(each.name))]
        loaded = (each for each in registered if known[each.name][1].state.consumed or known[each.name][1].shared)
        chosen = next(loaded, (registered or group)[0]).name
        others |= {each.name: chosen for each in group if each.name != chosen}
    notes = ((repr(name), _OTHER_NAME.format(chosen)) for name, chosen in others.items())
    return replace(
        listing,
        files=tuple(listed for listed in listing.files if listed.name not in others),
        refused=tuple(sorted([*listing.refused, *notes])),
    )


_OTHER_NAME = "it is the same file as {0} (a link). A file is loaded once, here as {0}"


def _is_loaded_as(declared: Declared, name: Name, listed: Listed, known: tuple[ProducerId, Knowledge] | None) -> bool:
    """Whether a name is that of a producer, and not of another one by now: a symbolic link may lead elsewhere."""
    if known is None:
        return False
    state, shared = known[1].state, known[1].shared
    if not name.is_link or state.fingerprint is None or shared is not None:
        return True
    with suppress(OnceloadError):
        return resemblance_of(declared.source, listed, state) not in (Resemblance.SHORTER, Resemblance.CHANGED)
    # It cannot be read now, and what it was loaded as it is most likely still.
    return True


def depends_on_others(declared: Declared) -> bool:
    """Whether what is new of a file depends on other files, so that nobody may come between a plan and its claim."""
    return _is_by_content(declared) or declared.is_in_turn


def _is_by_content(declared: Declared) -> bool:
    return declared.source.identity is Identity.CONTENT


def _notes_of(source: Source, listing: Listing, *, choice: Choice) -> Iterator[Note]:
    """What there is to say of the listing itself."""
    yield from (Note(name=name, reason=reason) for name, reason in listing.refused)
    for name, fault in listing.misnamed:
        yield Note(name=name, reason=f"{fault}. Nothing of it is loaded. Rename it", needs_a_person=True)
    yield from (Note(name=name, reason=reason, is_unreadable=True) for name, reason in listing.unreadable)
    if choice.files and not listing.files:
        reason = "no file of the source is called so; names start below its root, as `onceload plan` shows them"
        yield Note(name=", ".join(choice.files), reason=reason)
    elif listing.is_empty:
        yield Note(name=shown(source.path), reason="no file matches it; if there should be one, see source.path")


def _became_folders(listing: Listing, known: Mapping[str, tuple[ProducerId, Knowledge]]) -> Iterator[Note]:
    for name in listing.folders:
        # A producer that records name has no fingerprint.
        if name in known and known[name][1].state.fingerprint is not None:
            yield Note(name=name, reason="it was loaded as a file and is a folder now. Its loaded rows stay")


def _under_way(found: Mapping[Listed, FileToRead | Note | None]) -> dict[Listed, Listed]:
    """The new files that may be copies under way, each with a file that is in or about to be."""
    new = {listed for listed, file in found.items() if isinstance(file, FileToRead) and file.is_new}
    sound = [
        listed
        for listed, file in found.items()
        if listed not in new and not (isinstance(file, Note) and (file.needs_a_person or file.is_unreadable))
    ]
    return copies_under_way(sorted(new, key=lambda each: each.name), sound)


_WAITS = "No more of this file is loaded until it is found to be a copy of that file or to differ from it"
_BEGINNING = (
    f"so far it is the beginning of {{0}}, perhaps a copy still being written. {_WAITS}. If it is a shortened copy, "
    "delete it while {0} is still there: without that file it is loaded as a file of its own"
)
_BESIDE = f"some of its content is not loaded under the name {{}} yet, and {{}} is read first. {_WAITS}"


def _one_of_each(
    found: Mapping[Listed, FileToRead | Note | None], known: Mapping[str, tuple[ProducerId, Knowledge]]
) -> tuple[dict[Listed, FileToRead | Note | None], dict[Listed, Note]]:
    """Let each producer be read under one name only; what else holds the same, or more, waits for that."""
    groups: dict[ProducerId, list[FileToRead]] = {}
    for file in found.values():
        if isinstance(file, FileToRead) and file.twin and file.twin.copy_of is not None and file.twin.is_whole:
            groups.setdefault(file.twin.copy_of, []).append(file)
    chosen, waits = dict(found), dict[Listed, Note]()
    by_name = {listed.name: file for listed, file in found.items()}
    for producer_id, files in groups.items():
        name = _twin(files[0]).name
        for file in files:
            if not file.spans and _is_noted(file, known):
                # Nothing is new of it, or not all of a line.
                is_all = _twin(file).size is not None
                chosen[file.listed] = None if is_all else Note(name=file.listed.name, reason=_LEFT_OPEN)
        generation = known[name][1].state.generation if name in known and known[name][0] == producer_id else None
        own = by_name.get(name)
        has_left = name not in by_name or generation is None or _has_left(own, generation)
        reader = own if isinstance(own, FileToRead) and own.spans and not has_left else None
        behind = [file for file in files if file.spans]
        candidates = behind or [file for file in files if has_left and chosen[file.listed] is file]
        if reader is None and candidates:
            # What goes furthest, as far as that shows from outside; its name is the producer's from then on.
            reader = max(candidates, key=_reach)
            chosen[reader.listed] = replace(reader, twin=replace(_twin(reader), takes_over=True))
        for file in behind:
            if reader is not None and file is not reader:
                reason = _BESIDE.format(name, reader.listed.name)
                waits[file.listed] = Note(name=file.listed.name, reason=reason)
                chosen[file.listed] = replace(file, spans=())
                if _is_noted(file, known) or _twin(file).has_holes:
                    chosen[file.listed] = waits[file.listed]
    return chosen, waits


def _rotated(found: Mapping[Listed, FileToRead | Note | None], choice: Choice) -> dict[Listed, Note]:
    """The files that wait as what had their names before goes on in a file that was not chosen.

    Its older rows would come later, and a merge keeps what came last.
    """
    rests = {
        _twin(file).name: file.listed.name
        for file in found.values()
        if isinstance(file, FileToRead) and file.spans and file.twin and file.twin.takes_over
        if not choice.means(file.listed.name)
    }
    return {
        listed: Note(name=listed.name, reason=_ROTATED.format(rests[listed.name]))
        for listed, file in found.items()
        if isinstance(file, FileToRead) and listed.name in rests
    }


_ROTATED = (
    "{0} had this name before, and its last records are not loaded. Loaded later, these older records would replace "
    "newer rows. Nothing new of this file is loaded. Load {0} first, or both together"
)


def _twin(file: FileToRead) -> Twin:
    if file.twin is None:
        raise AssertionError
    return file.twin


def _has_left(own: "FileToRead | Note | None", generation: int) -> bool:
    """Whether a name has come to hold something else than its producer did."""
    if isinstance(own, Note):
        return own.needs_a_person
    return own is not None and own.generation > generation


def _reach(file: FileToRead) -> tuple[bool, int]:
    return Compression.of(file.listed.url) is Compression.NONE, file.listed.size


def _is_noted(file: FileToRead, known: Mapping[str, tuple[ProducerId, Knowledge]]) -> bool:
    """Whether all that there is to note of a copy was noted before."""
    twin, before = _twin(file), known.get(file.listed.name)
    if before is None or before[1].shared is None:
        return False
    return (before[1].shared[0], before[1].state.fingerprint) == (twin.copy_of, twin.fingerprint)


def _in_turn(found: Mapping[Listed, FileToRead | Note | None], outlook: Outlook) -> dict[Listed, Note]:
    """What another run has read decides what is new: as its copy, or because what comes first takes effect."""
    to_read = (listed for listed, file in found.items() if isinstance(file, FileToRead))
    if outlook.set_aside:
        name, dead = next(iter(outlook.set_aside.items()))
        reason = f"what is new here depends on {name}, of which {_told_dead(dead)}"
        return {listed: Note(name=listed.name, reason=reason, needs_a_person=True) for listed in to_read}
    reason = (
        "which records of this file are new depends on what another run is loading, so nothing of it is planned until "
        "that run has ended: one load after the other"
    )
    return {listed: Note(name=listed.name, reason=reason, is_busy=True, has_more=True) for listed in to_read}


def _behind(
    declared: Declared,
    listing: Listing,
    found: Mapping[Listed, FileToRead | Note | None],
    *,
    copies: Container[Listed],
) -> dict[Listed, Note]:
    """The files that would overtake one which is not read whole: they wait.

    A copy under way of a file that sorts after it does not count: each of the two would wait for the other.
    """
    not_whole = [listed.name for listed, file in found.items() if listed not in copies and _is_not_whole(file)]
    # The listing names these as Python writes a text. What it refuses holds no records of its own.
    not_whole += [str(literal_eval(name)) for name, _ in (*listing.unreadable, *listing.misnamed)]
    if not not_whole:
        return {}
    first = min(not_whole)
    return {
        listed: waits_for(declared, listed.name, first if first.isprintable() else repr(first))
        for listed, file in found.items()
        if isinstance(file, FileToRead) and file.spans and listed.name > first
    }


def _is_not_whole(file: FileToRead | Note | None) -> bool:
    """Whether a part of a file is missing, as far as a plan can tell."""
    if isinstance(file, FileToRead):
        end = file.spans[-1][1] if file.spans else None
        return end is not None and end < file.listed.size
    return isinstance(file, Note)


def _open_ends(found: Iterable[FileToRead | Note | None]) -> Iterator[Note]:
    """What is planned of a file may leave its last line out; of some, only reading tells."""
    for file in found:
        if isinstance(file, FileToRead) and _is_not_whole(file) and file.spans[-1][1] is not None:
            yield Note(name=file.listed.name, reason=str(LastLineOpen(file.listed.size - file.spans[-1][1])))


def waits_for(declared: Declared, name: str, other: str) -> Note:
    """Why a file waits that would overtake another one."""
    if declared.producer is not None and declared.producer.order is Order.ORDERED:
        setting, lost = "producer.order: ordered", "the missing records would count as duplicates"
    else:
        setting, lost = "delivery.mode: ordered", "its records would take effect before the missing ones"
    reason = f"waits for {other}, which is not completely read. If this file were loaded first, {lost} ({setting})"
    what_to_do = f"Complete or repair {other}, and load again. To continue without its missing records, remove it first"
    return Note(name=name, reason=f"{reason}. Nothing new of this file is loaded. {what_to_do}")


def set_aside_notes(outlook: Outlook) -> tuple[Note, ...]:
    """The files of which a part is a dead letter."""
    return tuple(
        Note(name=name, reason=_told_dead(dead), needs_a_person=True) for name, dead in outlook.set_aside.items()
    )


def _told_dead(dead: DeliveryId) -> str:
    return (
        f"a part was set aside as dead letter {dead}, because it failed as often as deliveries_max allows. That part"
        f" is not loaded. See `onceload deliveries show {dead}`, fix the cause, then"
        f" `onceload deliveries redeliver {dead}`"
    )


def _outlook(ledger: Ledger[Any], pipeline: str) -> Outlook:
    try:
        return ledger.outlook(pipeline)
    except NotFound:
        # Planned before its first load.
        return Outlook(position=Position(0), claimed=frozenset())


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
    others: "Others | None",
    outlook: Outlook,
    *,
    proven: Callable[..., bool],
    now_s: float,
    choice: Choice,
) -> FileToRead | Note | None:
    """What is new of one file, why it cannot be read now, or nothing."""
    if declared.source.format is Format.PARQUET and Compression.of(listed.url) is not Compression.NONE:
        return Note(name=listed.name, reason=_PACKED_PARQUET, needs_a_person=True)
    sealed = _is_sealed(declared.source, listed, now_s=now_s)
    if choice.replaces and listed.name not in choice.replaced and known and known[1].state.consumed:
        life = _replaced(listed, known[0], known[1].state)
    else:
        life = _life(declared, listed, known, proven=proven, sealed=sealed)
    if isinstance(life, Note):
        return life
    if life.is_done:
        return None if listed.name in outlook.claimed else _renamed(listed, life, sealed=sealed)
    if listed.name in outlook.set_aside:
        return Note(name=listed.name, reason=_told_dead(outlook.set_aside[listed.name]), needs_a_person=True)
    if listed.name in outlook.claimed:
        # What was claimed, of whichever generation, may have been another content, so that not even its end need be
        # that of a record; and what stands behind must not take effect first, where it deletes what stands before.
        claimed = known[1].claimed if known else SpanSet()
        has_more = _has_more(declared, listed, life, claimed, sealed=sealed)
        return Note(name=listed.name, reason="another run is loading it", is_busy=True, has_more=has_more)
    # A name that was registered, and nothing more, is as new as one that was not.
    found = others.life_of(listed, life, known) if others else life
    return found if isinstance(found, Note) else _new_of(declared, listed, found, sealed=sealed)


def _new_of(declared: Declared, listed: Listed, life: _Life, *, sealed: bool) -> FileToRead | Note | None:
    source = declared.source
    is_plain = source.format is not Format.PARQUET and Compression.of(listed.url) is Compression.NONE
    if is_plain and not life.consumed:
        check_plain_text(listed.url, record_bytes_max=source.record_bytes_max)
    rest_of = _rest_of_stream if is_stream(source, listed.name) else _rest_of_plain
    rest = rest_of(source, listed, life, sealed=sealed)
    if not isinstance(rest, FileToRead):
        # What else there is to say of it the next plan says, without comparing it again.
        rest = _renamed(listed, life, sealed=sealed) or rest
    return _with_header(declared, rest) if isinstance(rest, FileToRead) and rest.spans else rest


def _renamed(listed: Listed, life: _Life, *, sealed: bool) -> FileToRead | None:
    if life.itself is None:
        return None
    return FileToRead(listed=listed, generation=life.generation, spans=(), sealed=sealed, twin=life.itself)


def _has_more(declared: Declared, listed: Listed, life: _Life, claimed: SpanSet, *, sealed: bool) -> bool:
    """Whether there is more of a file than what somebody has; nobody has to know but fixed sessions."""
    if not declared.has_fixed_sessions:
        return False
    if is_stream(declared.source, listed.name):
        # It is in one hand, up to its end.
        return not claimed
    try:
        rest = _rest_of_plain(declared.source, listed, replace(life, consumed=life.consumed | claimed), sealed=sealed)
    except OnceloadError:
        # Whoever plans it next finds out.
        return True
    return isinstance(rest, FileToRead)


_PACKED_PARQUET = (
    "a Parquet file inside a compressed file is not read, because Parquet compresses its own content. Nothing of it is "
    "loaded. Put the unpacked file there"
)


def _life(
    declared: Declared,
    listed: Listed,
    known: tuple[ProducerId, Knowledge] | None,
    *,
    proven: Callable[..., bool],
    sealed: bool,
) -> _Life | Note:
    if known is None:
        return _Life()
    producer_id, knowledge = known
    state = knowledge.state
    if knowledge.shared is not None:
        return _life_of_copy(declared, listed, state, knowledge.shared, proven=proven, sealed=sealed)
    if state.fingerprint is None and state.consumed and declared.producer:
        what = (
            "its name is already the name of a producer in the records, and a file cannot be the same producer. "
            "Nothing of this file is loaded. Rename the file"
        )
        return Note(name=listed.name, reason=what, needs_a_person=True)
    if state.fingerprint is None:
        return _Life(generation=state.generation, consumed=state.consumed)
    return _life_of(declared, listed, producer_id, state, proven=proven, sealed=sealed)


def _life_of(
    declared: Declared,
    listed: Listed,
    producer_id: ProducerId,
    state: ProducerState,
    *,
    proven: Callable[..., bool],
    sealed: bool,
) -> _Life | Note:
    fingerprint = Fingerprint.from_bytes(state.fingerprint or b"")
    resemblance, is_vouched = resemblance_of(declared.source, listed, state), is_vouched_for(listed, fingerprint)
    if resemblance in (Resemblance.SAME, Resemblance.GROWN) and not is_vouched and not proven(listed, producer_id):
        # Both ends are the same; that what is between them is not, only reading all of it could tell.
        resemblance = Resemblance.CHANGED
    reason = _REWRITTEN.get(resemblance)
    if reason is None:
        is_whole = state.consumed == SpanSet([Span(0, listed.size)]) if listed.size else False
        # A read to the end of a stream records its size; earlier reads may have left holes.
        is_to_end = state.size == listed.size and state.consumed.is_without_holes
        is_read = is_to_end if is_stream(declared.source, listed.name) else is_whole
        return _Life(
            generation=state.generation,
            consumed=state.consumed,
            fingerprint=state.fingerprint,
            is_left_open=resemblance is Resemblance.SAME and was_left_open(state) and state.consumed.is_without_holes,
            is_done=is_read and resemblance is Resemblance.SAME and (not sealed or state.condition is Condition.SEALED),
            itself=None if is_vouched else _itself(state, fingerprint.named(listed.etag)),
        )
    return _next_life(declared, listed, producer_id, state, reason)


def _life_of_copy(
    declared: Declared,
    listed: Listed,
    state: ProducerState,
    shared: tuple[ProducerId, ProducerState],
    *,
    proven: Callable[..., bool],
    sealed: bool,
) -> _Life | Note:
    """Nothing is consumed under its own name; what it was found to hold is in as another producer's."""
    seen = _as_seen(declared.source, state, shared[1])
    end = seen.consumed.end if seen.consumed else 0
    life = _life_of(declared, listed, shared[0], seen, proven=partial(proven, end=end), sealed=sealed)
    if isinstance(life, Note) or life.generation != state.generation:
        return life
    if life.is_left_open and not sealed and seen.consumed == shared[1].consumed:
        return Note(name=listed.name, reason=_LEFT_OPEN)
    itself = life.itself and replace(life.itself, copy_of=shared[0])
    if life.is_done:
        return replace(life, itself=itself)
    return _Life(generation=life.generation, copy_of=shared, seen=end, itself=itself)


def _as_seen(source: Source, state: ProducerState, shared: ProducerState) -> ProducerState:
    """The state of a name that holds the content of a producer: as much of that as the name was found to hold."""
    end = (
        SEQUENCE_END if source.format is Format.PARQUET else Fingerprint.from_bytes(state.fingerprint or b"").stream.end
    )
    return replace(state, consumed=shared.consumed & (SpanSet([Span(0, end)]) if end else SpanSet()))


def _itself(state: ProducerState, fingerprint: Fingerprint) -> Twin:
    """What is noted of a file of which nothing is new, so that nobody reads it again to know."""
    return Twin(name=state.name, fingerprint=fingerprint.to_bytes(), size=state.size, condition=state.condition)


@dataclass(frozen=True)
class Others:
    """What is loaded under other names, and the files that hold it."""

    declared: Declared
    ledger: Ledger[Any]
    twins: Twins
    files: Mapping[str, Listed]

    def life_of(self, listed: Listed, life: _Life, known: tuple[ProducerId, Knowledge] | None) -> _Life | Note:
        """What of a file is in under another name: all that is in of a producer, or what it shares with a copy."""
        if life.consumed:
            double = self._find_double(listed, known[0], life) if known else None
            return Note(name=listed.name, reason=_DOUBLE.format(double), needs_a_person=True) if double else life
        shared = self.twins.find(listed)
        if shared is not None and _reaches(shared, life):
            twin = Twin(
                name=shared.state.name,
                fingerprint=shared.fingerprint,
                size=listed.size if shared.is_all else None,
                condition=shared.state.condition,
                duplicates=max(0, shared.records - self._counted(life)),
                copy_of=shared.producer_id,
                is_whole=True,
                has_holes=not shared.state.consumed.is_without_holes,
            )
            state = shared.state
            return replace(
                life, twin=twin, is_all_in=shared.is_all, consumed=state.consumed, fingerprint=state.fingerprint
            )
        if life.copy_of is not None:
            return self._parted(listed, life, *life.copy_of)
        continued = self.twins.find_continued(listed)
        if continued is not None:
            return Note(name=listed.name, reason=_CONTINUES.format(continued.state.name), needs_a_person=True)
        return life

    def _find_double(self, listed: Listed, producer_id: ProducerId, life: _Life) -> str | None:
        """An earlier producer that what is new of this one belongs to, though each was loaded as a file of its own.

        So it is where content was not the identity of files from the beginning.
        """
        for other_id, other in self.twins.alike(listed):
            beside = self.files.get(other.name)
            if other_id < producer_id and beside != listed and self._is_double(listed, beside, other_id, other, life):
                return other.name
        return None

    def _is_double(
        self, listed: Listed, beside: Listed | None, other_id: ProducerId, other: ProducerState, life: _Life
    ) -> bool:
        end = life.consumed.end
        if beside is None:
            # Whether they part behind that cannot be seen any more.
            proven = holds_what_was_loaded(self.declared, self.ledger, listed, other_id, end=end)
            return other.consumed.end > end and proven
        common, _ = common_beginning(listed, beside)
        if common <= end:
            return False
        streams = is_stream(self.declared.source, listed.name)
        return part_from(self.declared, listed, common=common, counted_from=end, is_stream=streams).end > end

    def _counted(self, life: _Life) -> int:
        """How many of its records were counted when it was found to be a copy."""
        return 0 if life.copy_of is None else self._records(life.copy_of[0], end=life.seen)

    def _records(self, producer_id: ProducerId, *, end: int) -> int:
        return self.ledger.proof_of(self.declared.name, producer_id, end=end).records

    def _parted(self, listed: Listed, life: _Life, producer_id: ProducerId, state: ProducerState) -> _Life | Note:
        """What a copy shares that goes on in another way than its producer did."""
        beside = self.files.get(state.name)
        if beside is None or self.twins.shared(beside, producer_id, state) is None:
            # What is shorter may still be a part of it.
            is_other = listed.size >= state.consumed.end
            reason = (_NOT_BESIDE if is_other else _BEGINNING).format(state.name)
            # Without the other file this cannot be decided, so each load reports it.
            is_left = not is_other and beside is None
            return Note(name=listed.name, reason=reason, needs_a_person=is_other, is_unreadable=is_left)
        common, goes_on = common_beginning(listed, beside)
        if not goes_on:
            return Note(name=listed.name, reason=_BEGINNING.format(beside.name))
        streams = is_stream(self.declared.source, listed.name)
        part = part_from(self.declared, listed, common=common, counted_from=life.seen, is_stream=streams)
        shared = SpanSet([Span(0, part.end)]) if part.end else SpanSet()
        if not state.consumed.covers(shared):
            return Note(name=listed.name, reason=_BESIDE.format(state.name, state.name))
        twin = Twin(
            name=state.name,
            fingerprint=part.fingerprint,
            size=None,
            condition=Condition.OPEN,
            consumed=shared,
            shares_with=producer_id if shared else None,
            digest=part.digest,
            records=part.records + (self._records(producer_id, end=life.seen) if life.seen <= common else 0),
            duplicates=part.records,
        )
        return replace(life, copy_of=None, twin=twin if shared else None, consumed=shared, fingerprint=part.fingerprint)


def _reaches(shared: Shared, life: _Life) -> bool:
    """Whether what a name holds of a producer is no less than what it was found to hold before."""
    is_same = life.copy_of is not None and life.copy_of[0] == shared.producer_id
    return is_same or shared.state.consumed.end >= life.seen


_CONTINUES = (
    "it holds all that was loaded of {0}, and goes on in the last line of {0}, which was taken as complete without a "
    "newline (source.sealed). Nothing of this file is loaded, so that no record is loaded twice. Write the records "
    "that are new into a file of their own, and remove this one"
)
_DOUBLE = (
    "its new records are also in {0}, and both files were loaded before as files of their own. Nothing more of this "
    "file is loaded, so that no record is loaded twice. Remove this file. If {0} is gone, restore it first"
)
_NOT_BESIDE = (
    "it was a copy of {0} and no longer matches what was loaded. Nothing more of it is loaded: where the two differ "
    "is unknown, because {0} is gone or was changed. Restore {0} as it was loaded, and load again"
)


def _next_life(
    declared: Declared, listed: Listed, producer_id: ProducerId, state: ProducerState, reason: str
) -> _Life | Note:
    """What becomes of a file that was rewritten."""
    match declared.on_rewrite:
        case OnRewrite.STOP:
            what = (
                f"{reason} (up to {state.consumed.end}). Its loaded rows stay, and nothing more of it is loaded. "
                "Restore the file, or set on_rewrite"
            )
            return Note(name=listed.name, reason=what, needs_a_person=True)
        case OnRewrite.NEW_GENERATION:
            return _Life(generation=state.generation + 1)
        case OnRewrite.REPLACE:
            return _replaced(listed, producer_id, state)


def _replaced(listed: Listed, producer_id: ProducerId, state: ProducerState) -> _Life | Note:
    """A new generation, in place of what was loaded."""
    if not listed.size:
        what = f"it is empty, so its loaded rows (up to {state.consumed.end}) stay and are not replaced"
        return Note(name=listed.name, reason=f"{what}. Write it again, or delete its rows", needs_a_person=True)
    return _Life(generation=state.generation + 1, replaces=producer_id)


_REWRITTEN = {
    Resemblance.SHORTER: "it is shorter than what was loaded of it",
    Resemblance.CHANGED: "it no longer starts with what was loaded of it",
    Resemblance.CONTINUED: "it goes on in its last line, which was taken as complete without a newline",
}


_LEFT_OPEN = "its last line lacks a newline or a closing quote. It is loaded once it is complete"


def was_left_open(state: ProducerState) -> bool:
    """Whether a packed file was unpacked to its end, and something was left over: then no size is noted."""
    if state.size is not None or state.fingerprint is None:
        return False
    return Fingerprint.from_bytes(state.fingerprint).packed is not None


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


def _rest_of_stream(source: Source, listed: Listed, life: _Life, *, sealed: bool) -> FileToRead | Note | None:
    if life.is_left_open and not sealed:
        return Note(name=listed.name, reason=_LEFT_OPEN)
    first, size = life.consumed.end if life.consumed else 0, listed.size
    is_plain = source.format is not Format.PARQUET and Compression.of(listed.url) is Compression.NONE
    if life.is_all_in and life.consumed == SpanSet([Span(0, first)] if first else []):
        return _to_read(source, listed, life, spans=(), sealed=sealed)
    if is_plain and not life.twin:
        if first >= size and life.consumed.is_without_holes:
            return None
        left = find_open_end(listed.url, source, first=first, size=size) if first < size else None
        if left and not (sealed and isinstance(left, LastLineOpen)):
            return Note.of(listed.name, left)
    # Of a plain file chunks are loaded in any order, and once it is packed some of them may still be missing.
    missing = (SpanSet([Span(0, first)]) if first else SpanSet()) - life.consumed
    spans = (*((span.first, span.end) for span in missing), (first, None))
    return _to_read(source, listed, life, spans=spans, sealed=sealed)


def _rest_of_plain(source: Source, listed: Listed, life: _Life, *, sealed: bool) -> FileToRead | Note | None:
    from_byte = life.consumed.end if life.consumed else 0
    end = listed.size if sealed else complete_end(listed.url, first=min(from_byte, listed.size), size=listed.size)
    offered = SpanSet([Span(0, end)]) if end else SpanSet()
    new = offered - life.consumed
    is_open = Note(name=listed.name, reason=str(LastLineOpen(listed.size - end)))
    if life.replaces is not None and end < listed.size:
        return is_open.of_no_replacement()
    if new or life.twin:
        spans = tuple((span.first, span.end) for span in new)
        return _to_read(source, listed, life, spans=spans, sealed=sealed)
    return is_open if end < listed.size else None


def _to_read(
    source: Source, listed: Listed, life: _Life, *, spans: tuple[tuple[int, int | None], ...], sealed: bool
) -> FileToRead:
    return FileToRead(
        listed=listed,
        generation=life.generation,
        spans=spans,
        sealed=sealed,
        is_new=not life.consumed,
        expected=_expected(source, listed, life, spans),
        lying=_lying(source, listed),
        replaces=life.replaces,
        twin=life.twin,
    )


def _expected(
    source: Source, listed: Listed, life: _Life, spans: tuple[tuple[int, int | None], ...]
) -> tuple[bytes, ...]:
    """What was loaded of it, and, where that is cheap to know, all that is to be read."""
    known = (life.fingerprint,) if life.fingerprint else ()
    if source.format is Format.PARQUET:
        return (*known, fingerprint_of_whole(listed.url, size=listed.size).to_bytes())
    end = spans[-1][1] if spans else None
    return known if end is None else (*known, fingerprint_of(listed.url, end=end).to_bytes())


def _lying(source: Source, listed: Listed) -> bytes | None:
    """What lies there of a file whose end only reading tells; of the others, what is expected says it."""
    is_told = source.format is Format.PARQUET or not is_stream(source, listed.name)
    return None if is_told else fingerprint_of(listed.url, end=listed.size).to_bytes()


def _with_header(declared: Declared, file: FileToRead) -> FileToRead | Note:
    """Read the names in a file's first line, which later parts of it do not show."""
    source, listed = declared.source, file.listed
    if source.format is not Format.CSV or not source.csv.header:
        return file
    header = read_header(listed.url, source.csv, sealed=file.sealed)
    if header is None:
        return Note(name=listed.name, reason="its first line, which names the columns, has no newline yet")
    if header:
        check_header(listed.url, header, declared.columns, source.csv)
    return replace(file, header=header)
