"""What a load would read, from which byte, and why not the rest; nothing is written, and Spark is not needed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import NotFound, OnceloadError
from onceload_core.names import Position
from onceload_core.pipeline import Pipeline
from onceload_core.ports import KnownProducer, Ledger, Outlook
from onceload_core.replay import Condition
from onceload_core.spans import SpanSet
from onceload_jobs.files.addresses import shown
from onceload_jobs.files.compression import Incomplete, is_compressed
from onceload_jobs.files.fingerprints import Resemblance
from onceload_jobs.files.listing import Listed, Listing, Name, list_files
from onceload_jobs.files.notes import Note, notes_of_refused
from onceload_jobs.pipeline.declared import Declared, Identity, NewerFile, Source
from onceload_jobs.plan.choice import EVERYTHING, Choice, chosen_of
from onceload_jobs.plan.copies import resemblance_of
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.plan.file_state import FileState, LoadedPart
from onceload_jobs.plan.other_names import ContentUnderOtherNames, refuse_moved_content
from onceload_jobs.plan.same_content import one_name_per_content
from onceload_jobs.plan.to_read import FileToRead, Finding, NewPart, is_sealed
from onceload_jobs.plan.waiting_files import dead_letter_reason, held_note, open_ends, waiting_behind, waiting_for_runs

#: The producers of the registered names.
KnownNames: TypeAlias = Mapping[str, KnownProducer]


@dataclass(frozen=True, kw_only=True)
class Plan:
    #: What the plan is based on, besides the consumed sets.
    outlook: Outlook
    to_read: tuple[FileToRead, ...]
    notes: tuple[Note, ...] = ()
    #: Those of the notes that are about no file of the listing.
    remarks: frozenset[Note] = frozenset()
    #: Files that are already loaded completely.
    done: int = 0
    #: When each other file was modified, in seconds since 1970, if its store reports it.
    modified: Mapping[str, float | None] = field(default_factory=dict)
    #: Each file is sealed some time after it was modified.
    is_sealed_by_time: bool = False

    @property
    def has_files(self) -> bool:
        """Whether the source has any file. If not, it may be the empty mount point of a store that is gone."""
        return bool(self.done or self.modified)

    @property
    def waiting(self) -> dict[str, float | None]:
        """The files with records that are not loaded yet and could be read, with the time when each was modified."""
        to_read = {file.listed.name: self.modified.get(file.listed.name) for file in self.to_read}
        return to_read | self.left_by(note for note in self.notes if not note.is_unreadable)

    def left_by(self, notes: Iterable[Note]) -> dict[str, float | None]:
        """Those of the listed files whose notes say that they may still have such records."""
        # The last line of a file is complete once the file is sealed, and is read then.
        is_by_time = self.is_sealed_by_time
        return {
            note.name: self.modified[note.name]
            for note in notes
            if note.leaves_records and (note.is_busy or note.is_unreadable or not is_by_time)
            if note.name in self.modified
        }


def make_plan(declared: Declared, ledger: Ledger[Any], *, now_s: float, choice: Choice = EVERYTHING) -> Plan:
    """Look at every file of the source; a file that cannot be read gets a note, and does not stop others."""
    there = _one_name_each(declared, ledger, list_files(declared.source.path, root=declared.source.root))
    is_by_content = declared.source.identity is Identity.CONTENT
    # A chosen file may have the content of one that was not chosen.
    listing = there if is_by_content else chosen_of(there, choice)
    # Read this first: what is no longer claimed then has taken effect, or never will.
    outlook = _outlook_of(ledger, declared.name)
    pipeline = pipeline_with_declaration(declared)
    known = find_known(ledger, pipeline, [*(listed.name for listed in listing.files), *listing.folders])
    others = ContentUnderOtherNames.of(declared, ledger, listing) if is_by_content else None
    checker = _FileChecker(
        declared=declared, ledger=ledger, outlook=outlook, known=known, others=others, now_s=now_s, choice=choice
    )
    found = {listed: checker.check(listed) for listed in listing.files}
    waits, in_progress = dict[Listed, Note](), frozenset[Listed]()
    if is_by_content:
        found, waits, in_progress = one_name_per_content(declared, found, known, choice)
        listing = chosen_of(listing, choice)
    if outlook.claimed and depends_on_others(declared):
        found |= waiting_for_runs(found, outlook)
    elif declared.is_ordered_across_files:
        found |= waiting_behind(declared, listing, found, copies=in_progress)
    to_read = tuple(each for each in found.values() if isinstance(each, FileToRead))
    if to_read:
        # Their commits would be refused. It is known before any record is read.
        ledger.refuse_files_of_others(pipeline, [file.listed.name for file in to_read])
    if to_read and is_by_content:
        refuse_moved_content(declared, ledger, pipeline, [file.listed for file in to_read])
    asked = choice if there.files else EVERYTHING
    remarks = (*choice.notes, *_notes_of_listing(declared.source, listing, known, choice=asked))
    return Plan(
        outlook=outlook,
        to_read=to_read,
        notes=tuple(dict.fromkeys((*remarks, *_notes_of_files(found, waits)))),
        remarks=frozenset(remarks),
        done=sum(each is None for each in found.values()),
        modified={listed.name: listed.modified_at for listed, each in found.items() if each is not None},
        is_sealed_by_time=declared.source.sealed_after_s is not None,
    )


def depends_on_others(declared: Declared) -> bool:
    """Whether what is new in a file depends on other files, so that no load may come between plan and claim."""
    return declared.source.identity is Identity.CONTENT or declared.is_ordered_across_files


def _outlook_of(ledger: Ledger[Any], pipeline: str) -> Outlook:
    try:
        return ledger.outlook(pipeline)
    except NotFound:
        # Planned before the first load.
        return Outlook(position=Position(0), claimed=frozenset())


def find_known(ledger: Ledger[Any], pipeline: Pipeline, names: Sequence[str]) -> KnownNames:
    try:
        return ledger.find(pipeline.name, names, here=pipeline)
    except NotFound:
        # Planned before the first load: no file is known yet.
        return {}


def _one_name_each(declared: Declared, ledger: Ledger[Any], listing: Listing) -> Listing:
    """Keep one name of each file: the name that it was loaded under, or the first that is not a symbolic link."""
    if not listing.names_of_one:
        return listing
    names = [each.name for group in listing.names_of_one for each in group]
    known, files = find_known(ledger, declared.pipeline, names), {listed.name: listed for listed in listing.files}
    others: dict[str, str] = {}
    for group in listing.names_of_one:
        registered = [each for each in group if _is_loaded_as(declared, each, files[each.name], known.get(each.name))]
        # Something is loaded under it, or of the producer that it is a copy of.
        loaded = (
            each for each in registered for its in [known[each.name].knowledge] if its.state.consumed or its.shared
        )
        chosen = next(loaded, (registered or group)[0]).name
        others |= {each.name: chosen for each in group if each.name != chosen}
    notes = ((name, _OTHER_NAME.format(chosen)) for name, chosen in others.items())
    return replace(
        listing,
        files=tuple(listed for listed in listing.files if listed.name not in others),
        refused=tuple(sorted([*listing.refused, *notes])),
    )


def _is_loaded_as(declared: Declared, name: Name, listed: Listed, known: KnownProducer | None) -> bool:
    """Whether a name is that of a producer and still of this file: a symbolic link may point elsewhere now."""
    if known is None:
        return False
    state, shared = known.knowledge.state, known.knowledge.shared
    if not name.is_link or state.fingerprint is None or shared is not None:
        return True
    with suppress(OnceloadError):
        return resemblance_of(declared.source, listed, state) not in (Resemblance.SHORTER, Resemblance.CHANGED)
    # It cannot be read now, and is most likely still the same file.
    return True


def _notes_of_listing(source: Source, listing: Listing, known: KnownNames, *, choice: Choice) -> Iterator[Note]:
    """Notes about the listing itself."""
    yield from notes_of_refused(listing)
    if choice.files and not listing.files:
        reason = (
            "no file of the source has this name. Names start below its root: see the names of new files in "
            f"`onceload plan {PIPELINE_FILE}`"
        )
        yield Note(name=", ".join(choice.files), reason=reason)
    elif listing.is_empty:
        yield Note(name=shown(source.path), reason="no file matches it. If there should be one, check source.path")
    for name in listing.folders:
        # Producers named by records have no fingerprint.
        if name in known and known[name].knowledge.state.fingerprint is not None:
            yield Note(name=name, reason="it was loaded as a file and is a folder now. Its loaded rows stay")


def _notes_of_files(found: Mapping[Listed, Finding], waits: Mapping[Listed, Note]) -> Iterator[Note]:
    """Why files, or a part of them, are not read."""
    for each in found.values():
        if isinstance(each, Note):
            yield each
    yield from open_ends(found.values())
    for listed in found:
        if listed in waits:
            yield waits[listed]


@dataclass(frozen=True, kw_only=True)
class _FileChecker:
    """Finds out what is new in a single file, with what is known when the plan is made."""

    declared: Declared
    ledger: Ledger[Any]
    outlook: Outlook
    known: KnownNames
    #: The content loaded under other names, if names do not identify files.
    others: ContentUnderOtherNames | None
    now_s: float
    choice: Choice

    def check(self, listed: Listed) -> Finding:
        """The new part of one file, why it cannot be read now, or None."""
        source, target = self.declared.source, self.declared.target
        sealed = is_sealed(source, listed, now_s=self.now_s)
        if source.format.is_typed and is_compressed(listed.url):
            reason = _PACKED_AGAIN.format(source.format.proper_name)
            return Note(name=listed.name, reason=reason, needs_a_person=True)
        if target.newer_file is NewerFile.BY_TIME and listed.modified_at is None:
            return Note(name=listed.name, reason=_UNDATED, needs_a_person=True)
        try:
            return self._check(listed, self.known.get(listed.name), sealed=sealed)
        except Incomplete as error:
            return Note.of(listed.name, error.in_sealed_file() if sealed else error)
        except OnceloadError as error:
            return Note.of(listed.name, error)

    def _check(self, listed: Listed, known: KnownProducer | None, *, sealed: bool) -> Finding:
        declared, outlook, name = self.declared, self.outlook, listed.name
        state = self._state_of(listed, known, sealed=sealed)
        if isinstance(state, Note):
            return state
        new = NewPart(declared=declared, listed=listed, state=state, sealed=sealed)
        if state.is_done:
            return None if name in outlook.claimed else new.with_new_etag()
        if name in outlook.dead_letters:
            return Note(name=name, reason=dead_letter_reason(outlook.dead_letters[name]), needs_a_person=True)
        if name in outlook.claimed:
            # The claim, of any generation, may be for other content, so that not even its end is the end of a record;
            # and what comes after it must not take effect first if it deletes what comes before.
            claimed = known.knowledge.claimed if known else SpanSet()
            return replace(held_note(name, outlook), has_more=new.has_more(claimed))
        # A name that is only registered is as new as an unknown one.
        found = self.others.state_of(listed, state, known) if self.others else state
        return found if isinstance(found, Note) else replace(new, state=found).find()

    def _state_of(self, listed: Listed, known: KnownProducer | None, *, sealed: bool) -> FileState | Note:
        choice, state = self.choice, known.knowledge.state if known else None
        is_chosen = choice.replaces and listed.name not in choice.done
        file_state: FileState | Note | None = None
        if known and state and is_chosen and state.consumed and state.condition is not Condition.REPLACED:
            file_state = FileState(generation=state.generation + 1, replaces=known.producer_id)
        if file_state is None or (known and known.knowledge.is_elsewhere and not choice.accepts_differences):
            # Rows are only replaced by what is the same file.
            found = LoadedPart(declared=self.declared, ledger=self.ledger, listed=listed, sealed=sealed).state(known)
            file_state = found if file_state is None or isinstance(found, Note) else file_state
        is_refused = not (listed.size or choice.accepts_differences)
        if isinstance(file_state, FileState) and file_state.replaces and is_refused:
            return Note.of_nothing_to_load(listed.name, "it is empty")
        return file_state


def plan_everything(declared: Declared, *, now_s: float, choice: Choice = EVERYTHING) -> Plan:
    """All complete records that a source has now, as the first load into an empty database plans them."""
    return make_plan(declared, cast("Ledger[Any]", _NothingLoaded()), now_s=now_s, choice=choice)


class _NothingLoaded:
    """What a plan asks of a ledger, if no pipeline was ever loaded. It needs no database."""

    def find(self, pipeline: str, *_: object, **__: object) -> KnownNames:
        raise NotFound("pipeline", pipeline)

    outlook = states = find

    def others_by_content(self, _: Pipeline) -> dict[str, str]:
        return {}

    def refuse_files_of_others(self, pipeline: Pipeline, names: Sequence[str]) -> None:
        """No other pipeline has loaded any file."""


_PACKED_AGAIN = (
    "{0} inside a compressed file is not read, because {0} compresses its own content. Nothing of it is loaded. "
    "Put the unpacked file there"
)
_UNDATED = (
    "its storage does not report when it was modified, and newer_file: by_time needs that. Nothing of it is loaded. "
    "Set newer_file: by_name in the target"
)
_OTHER_NAME = "it is the same file as {0} (a link). A file is loaded once, here as {0}"
