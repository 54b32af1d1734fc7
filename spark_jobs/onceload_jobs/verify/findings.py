"""Differences between what was loaded and what is found."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from onceload_jobs.files.notes import Note

#: Named per kind of difference, so that a thousand of one kind do not hide the only one of another.
_NAMED_MAX = 20


class Kind(StrEnum):
    """The kinds of differences."""

    FILE_MISSING = "file missing"
    FILE_SHORTER = "file shorter"
    FILE_UNREADABLE = "file unreadable"
    BYTES_CHANGED = "bytes changed"
    GAP = "gap"
    NOT_LOADED_AGAIN = "not loaded again"
    LOADED_AGAIN = "loaded again"
    ROW_MISSING = "row missing"
    ROW_DUPLICATED = "row duplicated"
    ROW_FROM_NOWHERE = "row from nowhere"
    VALUE_CHANGED = "value changed"
    QUARANTINE_DIFFERS = "quarantine differs"
    TABLE_MISSING = "table missing"
    COLUMN_DIFFERS = "column differs"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference from what the ledger proves."""

    producer: str
    kind: Kind
    expected: str
    found: str
    #: The record, if there is one; else its span.
    sequence_id: int | None = None
    span: str | None = None
    column: str | None = None


@dataclass
class Findings:
    """Collects differences: all are counted, and the first of each kind are named."""

    counts: Counter[Kind] = field(default_factory=Counter)
    named: list[Difference] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def add(self, difference: Difference, *, count: int = 1) -> None:
        """Name several indistinguishable differences once."""
        if self.room(difference.kind):
            self.named.append(difference)
        self.counts[difference.kind] += count

    def room(self, kind: Kind) -> int:
        """How many more of a kind will be named."""
        return _NAMED_MAX - sum(each.kind is kind for each in self.named)
