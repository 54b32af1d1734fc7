"""Producer states from the ledger, or from a snapshot and the entries after it.

Invariant: the state at any position is the state at an earlier one plus the entries between them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from onceload_core.errors import SettingRefused
from onceload_core.names import Batch, Epoch, Position, ProducerId, SessionName
from onceload_core.spans import SpanSet


class Condition(StrEnum):
    """The state of a file: it may grow, it is complete, or its rows were deleted."""

    OPEN = "open"
    SEALED = "sealed"
    #: A later generation replaced it, and the same commit deleted its rows.
    REPLACED = "replaced"


@dataclass(frozen=True, kw_only=True)
class ProducerState:
    """All that the ledger remembers of one producer."""

    name: str
    generation: int = 1
    consumed: SpanSet
    fingerprint: bytes | None = None
    size: int | None = None
    condition: Condition = Condition.OPEN


States = Mapping[ProducerId, ProducerState]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What became of the records of a batch. The sum is the number of records that were read."""

    loaded: int = 0
    duplicate: int = 0
    quarantined: int = 0
    filtered: int = 0

    def __post_init__(self) -> None:
        if min(self.loaded, self.duplicate, self.quarantined, self.filtered) < 0:
            raise SettingRefused("counts", str(self), "none below zero")


@dataclass(frozen=True, kw_only=True)
class Run:
    """The Airflow task instance behind a commit."""

    dag_id: str
    run_id: str
    try_number: int


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one entry consumed of one producer. It is enough to rebuild the producer without its row."""

    producer_id: ProducerId
    producer: str
    generation: int
    spans: SpanSet
    rows: int
    records: int
    digest: bytes | None
    fingerprint: bytes | None
    size: int | None
    condition: Condition


class EntryKind(StrEnum):
    LOAD = "load"
    #: Idle producers that were deleted because the pipeline declares it.
    FORGET = "forget"
    #: Quarantined records that were loaded later.
    RETRY = "retry"
    #: Quarantined records that a person discarded.
    DISCARD = "discard"
    #: Back to the rows and state of an earlier position. The receipts hold what was deleted, and the restored state.
    REWIND = "rewind"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The sum of the receipts of one producer."""

    #: Records that were read, loaded or not.
    records: int
    digests: bytes


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One commit as the ledger records it."""

    position: Position
    kind: EntryKind
    batch: Batch
    counts: Counts
    bytes: int
    committed_at: datetime
    session: SessionName | None
    epoch: Epoch | None
    run: Run | None
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The states of all producers of a pipeline at one position."""

    pipeline: str
    position: Position
    taken_at: datetime
    states: States


def replay(states: States, entries: Iterable[Entry]) -> dict[ProducerId, ProducerState]:
    """The states after these consecutive entries. A producer that consumed nothing has none."""
    after = dict(states)
    for entry in entries:
        for receipt in entry.receipts:
            match entry.kind:
                case EntryKind.LOAD:
                    after[receipt.producer_id] = _advanced(after.get(receipt.producer_id), receipt)
                case EntryKind.FORGET:
                    after.pop(receipt.producer_id, None)
                case EntryKind.RETRY | EntryKind.DISCARD:
                    # The entry that quarantined these records consumed them.
                    pass
                case EntryKind.REWIND:
                    after[receipt.producer_id] = _set_back(after.get(receipt.producer_id), receipt)
    return {producer_id: state for producer_id, state in after.items() if state.consumed}


def _advanced(state: ProducerState | None, receipt: Receipt) -> ProducerState:
    before = state or _empty_state(receipt)
    return _seen(replace(before, consumed=before.consumed | receipt.spans), receipt)


def _set_back(state: ProducerState | None, receipt: Receipt) -> ProducerState:
    before = state or _empty_state(receipt)
    return _seen(replace(before, consumed=before.consumed - receipt.spans), receipt)


def _empty_state(receipt: Receipt) -> ProducerState:
    return ProducerState(name=receipt.producer, generation=receipt.generation, consumed=SpanSet())


def _seen(state: ProducerState, receipt: Receipt) -> ProducerState:
    """The file as last reported. The name changes if the content continued under another one."""
    return replace(
        state,
        name=receipt.producer,
        generation=receipt.generation,
        fingerprint=receipt.fingerprint,
        size=receipt.size,
        condition=receipt.condition,
    )
