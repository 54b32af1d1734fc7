"""Content that is loaded under other names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dedup_core.names import ProducerId
from dedup_core.ports import Knowledge, Ledger
from dedup_core.replay import Condition, ProducerState
from dedup_core.spans import Span, SpanSet
from spark_jobs.content.known import Shared, Twin, Twins, holds_what_was_loaded
from spark_jobs.content.partings import common_beginning, part_from
from spark_jobs.files.listing import Listed
from spark_jobs.files.notes import Note
from spark_jobs.pipeline.declared import Declared
from spark_jobs.plan.life import Life
from spark_jobs.plan.one_reader import BEGINNING, BESIDE
from spark_jobs.read.parts import is_stream


@dataclass(frozen=True)
class Others:
    """The content that is loaded under other names, and its files."""

    declared: Declared
    ledger: Ledger[Any]
    twins: Twins
    files: Mapping[str, Listed]

    def life_of(self, listed: Listed, life: Life, known: tuple[ProducerId, Knowledge] | None) -> Life | Note:
        """The part of a file that is loaded under another name: a whole producer, or what it shares with a copy."""
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

    def _find_double(self, listed: Listed, producer_id: ProducerId, life: Life) -> str | None:
        """An earlier producer with the same new records, although each was loaded as a file of its own.

        This happens if content was not the identity of files from the beginning.
        """
        for other_id, other in self.twins.alike(listed):
            beside = self.files.get(other.name)
            if other_id < producer_id and beside != listed and self._is_double(listed, beside, other_id, other, life):
                return other.name
        return None

    def _is_double(
        self, listed: Listed, beside: Listed | None, other_id: ProducerId, other: ProducerState, life: Life
    ) -> bool:
        end = life.consumed.end
        if beside is None:
            # Whether they differ after that can no longer be seen.
            proven = holds_what_was_loaded(self.declared, self.ledger, listed, other_id, end=end)
            return other.consumed.end > end and proven
        common, _ = common_beginning(listed, beside)
        if common <= end:
            return False
        streams = is_stream(self.declared.source, listed.name)
        return part_from(self.declared, listed, common=common, counted_from=end, is_stream=streams).end > end

    def _counted(self, life: Life) -> int:
        """How many of its records were counted when it was found to be a copy."""
        return 0 if life.copy_of is None else self._records(life.copy_of[0], end=life.seen)

    def _records(self, producer_id: ProducerId, *, end: int) -> int:
        return self.ledger.proof_of(self.declared.name, producer_id, end=end).records

    def _parted(self, listed: Listed, life: Life, producer_id: ProducerId, state: ProducerState) -> Life | Note:
        """The shared part of a copy that continues differently from its producer."""
        beside = self.files.get(state.name)
        if beside is None or self.twins.shared(beside, producer_id, state) is None:
            # A shorter file may still be a part of it.
            is_other = listed.size >= state.consumed.end
            reason = (_NOT_BESIDE if is_other else BEGINNING).format(state.name)
            # Without the other file this cannot be decided, so each load reports it.
            is_left = not is_other and beside is None
            return Note(name=listed.name, reason=reason, needs_a_person=is_other, is_unreadable=is_left)
        common, goes_on = common_beginning(listed, beside)
        if not goes_on:
            return Note(name=listed.name, reason=BEGINNING.format(beside.name))
        streams = is_stream(self.declared.source, listed.name)
        part = part_from(self.declared, listed, common=common, counted_from=life.seen, is_stream=streams)
        shared = SpanSet([Span(0, part.end)]) if part.end else SpanSet()
        if not state.consumed.covers(shared):
            return Note(name=listed.name, reason=BESIDE.format(state.name, state.name))
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


def _reaches(shared: Shared, life: Life) -> bool:
    """Whether a name still contains as much of a producer as before."""
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
