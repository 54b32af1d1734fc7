"""What a load would read, from which byte, and why not the rest; nothing is written, and Spark is not needed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import OnceloadError
from onceload_core.ports import KnownProducer, Ledger, Outlook
from onceload_core.replay import Condition, ProducerState
from onceload_core.spans import SpanSet
from onceload_jobs.content.copies import LoadedContents, holds_what_was_loaded
from onceload_jobs.content.copies_in_progress import copies_under_way
from onceload_jobs.files.addresses import shown
from onceload_jobs.files.compression import Incomplete, is_compressed
from onceload_jobs.files.listing import Listed, Listing, list_files
from onceload_jobs.files.notes import Note, notes_of_refused
from onceload_jobs.formats.signatures import check_plain_text
from onceload_jobs.pipeline.declared import Declared, Identity, NewerFile, Source, Write
from onceload_jobs.plan.choice import EVERYTHING, Choice, chosen_of
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.plan.file_state import FileState, current_state
from onceload_jobs.plan.ledger_lookup import KnownNames, dead_letter_reason, find_known, held_note, outlook_of
from onceload_jobs.plan.links import one_name_each
from onceload_jobs.plan.moved_content import refuse_moved_content
from onceload_jobs.plan.other_names import ContentUnderOtherNames
from onceload_jobs.plan.same_content import BEGINNING, one_reader_each, waiting_rotated
from onceload_jobs.plan.to_read import (
    FileToRead,
    Finding,
    has_more_row_groups,
    is_sealed,
    rest_of_plain,
    rest_of_stream,
    with_columns,
)
from onceload_jobs.plan.waiting_files import open_ends, waiting_behind, waiting_for_runs
from onceload_jobs.read.parts import is_plain_text, is_stream


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
        left = (note for note in notes if note.leaves_records)
        if self.is_sealed_by_time:
            # The last line of a file is complete once the file is sealed, and is read then.
            left = (note for note in left if note.is_busy or note.is_unreadable)
        return {note.name: self.modified[note.name] for note in left if note.name in self.modified}


def make_plan(declared: Declared, ledger: Ledger[Any], *, now_s: float, choice: Choice = EVERYTHING) -> Plan:
    """Look at every file of the source; a file that cannot be read gets a note, and does not stop others."""
    there = one_name_each(declared, ledger, list_files(declared.source.path, root=declared.source.root))
    # A chosen file may have the content of one that was not chosen.
    listing = there if _is_by_content(declared) else chosen_of(there, choice)
    # Read this first: what is no longer claimed then has taken effect, or never will.
    outlook = outlook_of(ledger, declared.name)
    pipeline = pipeline_with_declaration(declared)
    known = find_known(ledger, pipeline, [*(listed.name for listed in listing.files), *listing.folders])
    checker = _FileChecker.of(declared, ledger, listing, outlook, now_s=now_s, choice=choice)
    findings = _Findings(listing=listing, of_files={each: checker.check(each, known) for each in listing.files})
    if _is_by_content(declared):
        findings = _one_name_per_content(declared, findings, known, choice)
    findings = findings.with_changed(_held_back(declared, outlook, findings))
    chosen = choice if there.files else EVERYTHING
    of_listing = tuple(_notes_of_listing(declared.source, findings.listing, choice=chosen))
    of_folders = tuple(_became_folders(findings.listing, known))
    to_read = tuple(each for each in findings.of_files.values() if isinstance(each, FileToRead))
    if to_read:
        # Their commits would be refused. It is known before any record is read.
        ledger.refuse_files_of_others(pipeline, [file.listed.name for file in to_read])
        if _is_by_content(declared):
            refuse_moved_content(declared, ledger, pipeline, (file.listed for file in to_read))
    return Plan(
        outlook=outlook,
        to_read=to_read,
        notes=tuple(dict.fromkeys((*choice.notes, *of_listing, *of_folders, *_notes_of_files(findings)))),
        remarks=frozenset((*choice.notes, *of_listing, *of_folders)),
        done=sum(each is None for each in findings.of_files.values()),
        modified={listed.name: listed.modified_at for listed, each in findings.of_files.items() if each is not None},
        is_sealed_by_time=declared.source.sealed_after_s is not None,
    )


@dataclass(frozen=True, kw_only=True)
class _Findings:
    """What a plan found in the files of a listing."""

    listing: Listing
    of_files: Mapping[Listed, Finding]
    #: The files of which nothing new is read, because another one with their content is read first.
    waits: Mapping[Listed, Note] = field(default_factory=dict)
    #: The copies in progress of files that sort after them.
    copies_in_progress: frozenset[Listed] = frozenset()

    def with_changed(self, changed: Mapping[Listed, Finding]) -> "_Findings":
        return replace(self, of_files={**self.of_files, **changed})


def _one_name_per_content(declared: Declared, findings: _Findings, known: KnownNames, choice: Choice) -> _Findings:
    """Let each content be read under one name; all files are compared, and then those that are not chosen are left out.

    A chosen file may also be a copy in progress of a file that was not chosen.
    """
    under_way = _under_way(findings.of_files)
    begun = {each: Note(name=each.name, reason=BEGINNING.format(other.name)) for each, other in under_way.items()}
    found, waits = one_reader_each({**findings.of_files, **begun}, known)
    if declared.target.write is Write.MERGE:
        found |= waiting_rotated(found, choice)
    chosen = chosen_of(findings.listing, choice)
    return _Findings(
        listing=chosen,
        of_files={listed: found[listed] for listed in chosen.files},
        waits=waits,
        copies_in_progress=frozenset(each for each, other in under_way.items() if other.name > each.name),
    )


def _held_back(declared: Declared, outlook: Outlook, findings: _Findings) -> dict[Listed, Note]:
    """The files that would overtake other runs or other files: they wait."""
    if outlook.claimed and depends_on_others(declared):
        return waiting_for_runs(findings.of_files, outlook)
    if declared.is_ordered_across_files:
        return waiting_behind(declared, findings.listing, findings.of_files, copies=findings.copies_in_progress)
    return {}


def depends_on_others(declared: Declared) -> bool:
    """Whether what is new in a file depends on other files, so that no load may come between plan and claim."""
    return _is_by_content(declared) or declared.is_ordered_across_files


def _is_by_content(declared: Declared) -> bool:
    return declared.source.identity is Identity.CONTENT


def _notes_of_listing(source: Source, listing: Listing, *, choice: Choice) -> Iterator[Note]:
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


def _notes_of_files(findings: _Findings) -> tuple[Note, ...]:
    """Why files, or a part of them, are not read."""
    return (
        *(each for each in findings.of_files.values() if isinstance(each, Note)),
        *open_ends(findings.of_files.values()),
        *(findings.waits[listed] for listed in findings.of_files if listed in findings.waits),
    )


def _became_folders(listing: Listing, known: KnownNames) -> Iterator[Note]:
    for name in listing.folders:
        # Producers named by records have no fingerprint.
        if name in known and known[name].knowledge.state.fingerprint is not None:
            yield Note(name=name, reason="it was loaded as a file and is a folder now. Its loaded rows stay")


def _under_way(found: Mapping[Listed, Finding]) -> dict[Listed, Listed]:
    """New files that may be copies in progress, each with a file that is loaded or about to be."""
    new = {listed for listed, file in found.items() if isinstance(file, FileToRead) and file.is_new}
    sound = [
        listed
        for listed, file in found.items()
        if listed not in new and not (isinstance(file, Note) and (file.needs_a_person or file.is_unreadable))
    ]
    return copies_under_way(sorted(new, key=lambda each: each.name), sound)


@dataclass(frozen=True, kw_only=True)
class _FileChecker:
    """Finds out what is new in a single file, with what is known when the plan is made."""

    declared: Declared
    outlook: Outlook
    #: The content loaded under other names, if names do not identify files.
    others: ContentUnderOtherNames | None
    #: Whether a file holds what was loaded from it.
    proven: Callable[..., bool]
    now_s: float
    choice: Choice

    @classmethod
    def of(
        cls,
        declared: Declared,
        ledger: Ledger[Any],
        listing: Listing,
        outlook: Outlook,
        *,
        now_s: float,
        choice: Choice,
    ) -> "_FileChecker":
        files = {listed.name: listed for listed in listing.files}
        others = ContentUnderOtherNames(declared, ledger, LoadedContents(declared, ledger), files)
        return cls(
            declared=declared,
            outlook=outlook,
            others=others if _is_by_content(declared) else None,
            proven=partial(holds_what_was_loaded, declared, ledger),
            now_s=now_s,
            choice=choice,
        )

    def check(self, listed: Listed, known: KnownNames) -> Finding:
        """The new part of one file, why it cannot be read now, or None."""
        sealed = is_sealed(self.declared.source, listed, now_s=self.now_s)
        try:
            return self._check(listed, known.get(listed.name), sealed=sealed)
        except Incomplete as error:
            return Note.of(listed.name, error.in_sealed_file() if sealed else error)
        except OnceloadError as error:
            return Note.of(listed.name, error)

    def _check(self, listed: Listed, known: KnownProducer | None, *, sealed: bool) -> Finding:
        if (reason := _unusable(self.declared, listed)) is not None:
            return Note(name=listed.name, reason=reason, needs_a_person=True)
        file_state = self._state_of(listed, known, sealed=sealed)
        if isinstance(file_state, Note):
            return file_state
        if file_state.is_done:
            return None if listed.name in self.outlook.claimed else _with_new_etag(listed, file_state, sealed=sealed)
        if listed.name in self.outlook.dead_letters:
            return Note(
                name=listed.name, reason=dead_letter_reason(self.outlook.dead_letters[listed.name]), needs_a_person=True
            )
        if listed.name in self.outlook.claimed:
            return self._being_loaded(listed, file_state, known, sealed=sealed)
        # A name that is only registered is as new as an unknown one.
        found = self.others.state_of(listed, file_state, known) if self.others else file_state
        return found if isinstance(found, Note) else _new_of(self.declared, listed, found, sealed=sealed)

    def _state_of(self, listed: Listed, known: KnownProducer | None, *, sealed: bool) -> FileState | Note:
        file_state: FileState | Note | None = None
        if known and self._is_to_be_replaced(listed, known.knowledge.state):
            file_state = FileState(generation=known.knowledge.state.generation + 1, replaces=known.producer_id)
        if file_state is None or (known and known.knowledge.is_elsewhere and not self.choice.accepts_differences):
            # Rows are only replaced by what is the same file.
            found = current_state(self.declared, listed, known, proven=self.proven, sealed=sealed)
            file_state = found if file_state is None or isinstance(found, Note) else file_state
        if (
            isinstance(file_state, FileState)
            and file_state.replaces
            and not (listed.size or self.choice.accepts_differences)
        ):
            return Note.of_nothing_to_load(listed.name, "it is empty")
        return file_state

    def _is_to_be_replaced(self, listed: Listed, state: ProducerState) -> bool:
        is_chosen = self.choice.replaces and listed.name not in self.choice.done
        return is_chosen and bool(state.consumed) and state.condition is not Condition.REPLACED

    def _being_loaded(
        self, listed: Listed, file_state: FileState, known: KnownProducer | None, *, sealed: bool
    ) -> Note:
        # The claim, of any generation, may be for other content, so that not even its end is the end of a record; and
        # what comes after it must not take effect first if it deletes what comes before.
        claimed = known.knowledge.claimed if known else SpanSet()
        has_more = _has_more(self.declared, listed, file_state, claimed, sealed=sealed)
        return replace(held_note(listed.name, self.outlook), has_more=has_more)


def _unusable(declared: Declared, listed: Listed) -> str | None:
    """Why a file cannot be loaded by this pipeline, whatever it holds."""
    if declared.source.format.is_typed and is_compressed(listed.url):
        return _PACKED_AGAIN.format(declared.source.format.proper_name)
    if declared.target.newer_file is NewerFile.BY_TIME and listed.modified_at is None:
        return _UNDATED
    return None


def _new_of(declared: Declared, listed: Listed, file_state: FileState, *, sealed: bool) -> Finding:
    source = declared.source
    if is_plain_text(source, listed.url) and not file_state.consumed:
        check_plain_text(listed.url, record_bytes_max=source.record_bytes_max)
    rest_of = rest_of_stream if is_stream(source, listed.name) else rest_of_plain
    rest = rest_of(source, listed, file_state, sealed=sealed)
    if not isinstance(rest, FileToRead):
        # The next plan reports the rest, without comparing it again.
        rest = _with_new_etag(listed, file_state, sealed=sealed) or rest
    return with_columns(declared, rest) if isinstance(rest, FileToRead) and rest.spans else rest


def _with_new_etag(listed: Listed, file_state: FileState, *, sealed: bool) -> FileToRead | None:
    if file_state.new_etag is None:
        return None
    return FileToRead(
        listed=listed, generation=file_state.generation, spans=(), sealed=sealed, copy_record=file_state.new_etag
    )


def _has_more(declared: Declared, listed: Listed, file_state: FileState, claimed: SpanSet, *, sealed: bool) -> bool:
    """Whether a file has more than what another session loads; only fixed sessions need to know."""
    if not declared.has_fixed_sessions:
        return False
    taken = file_state.consumed | claimed
    try:
        if declared.source.format.is_whole:
            return has_more_row_groups(declared.source, listed, taken)
        if is_stream(declared.source, listed.name):
            # One session reads it to its end.
            return not claimed
        rest = rest_of_plain(declared.source, listed, replace(file_state, consumed=taken), sealed=sealed)
    except OnceloadError:
        # The next plan finds out.
        return True
    return isinstance(rest, FileToRead)


_PACKED_AGAIN = (
    "{0} inside a compressed file is not read, because {0} compresses its own content. Nothing of it is loaded. "
    "Put the unpacked file there"
)
_UNDATED = (
    "its storage does not report when it was modified, and newer_file: by_time needs that. Nothing of it is loaded. "
    "Set newer_file: by_name in the target"
)
