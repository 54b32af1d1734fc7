"""Content that is loaded under other names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onceload_core.names import ProducerId
from onceload_core.ports import KnownProducer, Ledger, LoadedProducer
from onceload_jobs.content.common_beginning import common_beginning, cut_common_beginning
from onceload_jobs.content.copies import CopyRecord, LoadedContents, Shared, holds_what_was_loaded
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.file_state import FileState
from onceload_jobs.plan.same_content import BEGINNING, BESIDE
from onceload_jobs.read.parts import is_stream


@dataclass(frozen=True)
class ContentUnderOtherNames:
    """The content that is loaded under other names, and its files."""

    declared: Declared
    ledger: Ledger[Any]
    contents: LoadedContents
    files: Mapping[str, Listed]

    def state_of(self, listed: Listed, file_state: FileState, known: KnownProducer | None) -> FileState | Note:
        """The part of a file that is loaded under another name: a whole producer, or what it shares with a copy."""
        if file_state.consumed:
            double = self._find_double(listed, known.producer_id, file_state) if known else None
            return Note(name=listed.name, reason=_DOUBLE.format(double), needs_a_person=True) if double else file_state
        shared = self.contents.find(listed)
        if shared is not None and _reaches(shared, file_state):
            duplicates = max(0, shared.records - self._counted(file_state))
            return replace(
                file_state,
                copy_record=CopyRecord.whole_copy(listed, shared, duplicates=duplicates),
                is_all_in=shared.is_all,
                consumed=shared.state.consumed,
                fingerprint=shared.state.fingerprint,
            )
        if file_state.copy_of is not None:
            return self._diverged(listed, file_state, file_state.copy_of)
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
        common, _ = common_beginning(listed, beside)
        if common <= end:
            return False
        streams = is_stream(self.declared.source, listed.name)
        return cut_common_beginning(self.declared, listed, common=common, counted_from=end, is_stream=streams).end > end

    def _counted(self, file_state: FileState) -> int:
        """How many of its records were counted when it was found to be a copy."""
        return 0 if file_state.copy_of is None else self._records(file_state.copy_of.producer_id, end=file_state.seen)

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
        common_bytes, goes_on = common_beginning(listed, beside)
        if not goes_on:
            return Note(name=listed.name, reason=BEGINNING.format(beside.name))
        seen, streams = file_state.seen, is_stream(self.declared.source, listed.name)
        common = cut_common_beginning(self.declared, listed, common=common_bytes, counted_from=seen, is_stream=streams)
        if not state.consumed.covers(common.spans):
            return Note(name=listed.name, reason=BESIDE.format(state.name, state.name))
        counted = self._records(loaded.producer_id, end=seen) if seen <= common_bytes else 0
        return replace(
            file_state,
            copy_of=None,
            copy_record=CopyRecord.diverged(loaded, common, counted=counted) if common.spans else None,
            consumed=common.spans,
            fingerprint=common.fingerprint,
        )


def _reaches(shared: Shared, file_state: FileState) -> bool:
    """Whether a name still contains as much of a producer as before."""
    is_same = file_state.copy_of is not None and file_state.copy_of.producer_id == shared.producer_id
    return is_same or shared.state.consumed.end >= file_state.seen


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
