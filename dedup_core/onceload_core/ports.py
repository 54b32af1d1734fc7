"""The interfaces of the core: a ledger that commits, and a store of snapshots.

Every implementation must pass the suite in `tests/contract`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from onceload_core.checks import check_all_different, check_name
from onceload_core.delivery import Kept
from onceload_core.errors import SettingRefused
from onceload_core.names import Batch, DeliveryId, Epoch, Position, ProducerId, SessionName, Version
from onceload_core.pipeline import Pipeline
from onceload_core.replay import Condition, Counts, Entry, EntryKind, ProducerState, Proof, Run, Snapshot
from onceload_core.spans import SpanSet

Transaction = TypeVar("Transaction")
NO_NAMES: Mapping[ProducerId, str] = {}


class CommitStep(StrEnum):
    """The steps of a commit. Tests stop a commit at each of them."""

    BEGUN = "begun"
    ROWS_WRITTEN = "rows_written"
    #: The pipeline is locked, and the session checked under its lock.
    POSITION_TAKEN = "position_taken"
    PRODUCERS_ADVANCED = "producers_advanced"
    #: The files belong to this pipeline: no other one loads them into the same table.
    FILES_OWNED = "files_owned"
    MESSAGES_RECORDED = "messages_recorded"
    QUARANTINE_RECORDED = "quarantine_recorded"
    ENTRY_RECORDED = "entry_recorded"
    DELIVERY_ACKED = "delivery_acked"
    COMMITTED = "committed"


@dataclass(frozen=True, kw_only=True)
class Session:
    """One epoch of a named consumer. A later epoch of the same name fences this one."""

    pipeline: str
    name: SessionName
    epoch: Epoch
    #: The version of the declaration that it works with. If another one is in force, its commits are refused.
    version: Version


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Spans that a session is loading, until its deadline passes."""

    delivery_id: DeliveryId
    session: Session
    spans: Mapping[ProducerId, SpanSet]


class LoadedProducer(NamedTuple):
    """A producer, and what was loaded of it."""

    producer_id: ProducerId
    state: ProducerState


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The current knowledge of one producer: its state, and the spans that other live workers claim."""

    state: ProducerState
    claimed: SpanSet
    #: If this file is a copy, up to the end of its fingerprint: the producer whose content it holds.
    shared: LoadedProducer | None = None
    #: The folder was moved, and the file that has its name now was not compared with what was loaded.
    is_elsewhere: bool = False

    def as_copy_of(self, producer_id: ProducerId, state: ProducerState | None) -> "Knowledge":
        """The same for a copy. If nothing of its producer is loaded any more, the copy is unknown too."""
        if state is not None and state.consumed and state.condition is not Condition.REPLACED:
            return replace(self, shared=LoadedProducer(producer_id, state))
        return replace(self, state=replace(self.state, fingerprint=None, size=None, condition=Condition.OPEN))


class KnownProducer(NamedTuple):
    """The producer of a registered name, and what is known of it."""

    producer_id: ProducerId
    knowledge: Knowledge


@dataclass(frozen=True, kw_only=True)
class Advance:
    """How one commit advances one producer. Without spans it only records what was seen of the file."""

    producer_id: ProducerId
    spans: SpanSet
    rows: int = 0
    #: The number of records that were read from the spans, loaded or not. Unused for a producer without content.
    records: int = 0
    digest: bytes | None = None
    fingerprint: bytes | None = None
    size: int | None = None
    condition: Condition = Condition.OPEN
    #: Its file is a copy of what that producer consumed, up to the fingerprint. It consumes nothing itself.
    copy_of: ProducerId | None = None
    #: The producer that loaded the records of these spans: the beginning that a former copy shares with it.
    shares_with: ProducerId | None = None
    #: It takes the name of this one, which consumed nothing and keeps the old name as a copy.
    takes_name_of: ProducerId | None = None

    def __post_init__(self) -> None:
        if self.copy_of is not None and self.spans:
            raise SettingRefused("a copy", f"spans of its own: {self.spans}", "no spans: its producer consumes them")
        if (self.rows or self.records) and not self.spans:
            found = f"{self.rows} rows without spans" if self.rows else f"{self.records} records without spans"
            raise SettingRefused("an advance", found, "the spans that they came from")


#: Well below the limit of Postgres for one value, which is sent as two digits per byte.
_RAW_BYTES_MAX = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class QuarantinedRecord:
    """A record that could not be loaded, with all its bytes and the reason."""

    producer_id: ProducerId
    sequence_id: int
    raw: bytes
    reason: str
    column: str | None = None

    def __post_init__(self) -> None:
        if len(self.raw) > _RAW_BYTES_MAX:
            found = f"{len(self.raw)} bytes of sequence id {self.sequence_id}"
            raise SettingRefused("a quarantined record", found, f"at most {_RAW_BYTES_MAX} bytes: keep its beginning")


@dataclass(frozen=True, kw_only=True)
class Commit(Generic[Transaction]):
    """Rows and the receipts of what they were made from: both take effect, or neither."""

    session: Session
    batch: Batch
    advances: tuple[Advance, ...]
    #: Returns the number of rows that the database has written, as counted by the database (such as `rowcount`).
    #: It must equal `counts.loaded`. A number that the caller counts itself would prove nothing.
    write_rows: Callable[[Transaction], int]
    #: The claim that it loads. If the claim is lost before the commit, nothing is committed.
    claim: Claim | None = None
    #: Whether this commit ends the claim. If not, more of it follows.
    is_last: bool = True
    counts: Counts = field(default_factory=Counts)
    bytes: int = 0
    message_ids: tuple[str, ...] = ()
    quarantined: tuple[QuarantinedRecord, ...] = ()
    run: Run | None = None
    #: What ran its workers, and why, in words; and the pages of Spark, if it stays.
    engine: str | None = None
    spark_ui: str | None = None

    def __post_init__(self) -> None:
        check_all_different("producers of a commit", [advance.producer_id for advance in self.advances])
        check_all_different("business ids of a commit", self.message_ids)
        check_name("batch", self.batch)
        if self.counts.quarantined != len(self.quarantined):
            found = f"{self.counts.quarantined} counted and {len(self.quarantined)} given"
            raise SettingRefused("quarantined records", found, "as many as are counted")
        if self.run is not None:
            check_name("dag_id", self.run.dag_id)
            check_name("run_id", self.run.run_id)
        if self.counts.loaded and not self.consumes_anything:
            raise SettingRefused(
                "a commit", f"{self.counts.loaded} rows without spans", "the spans that they were made from"
            )
        self._check_quarantined()

    @property
    def consumes_anything(self) -> bool:
        return any(advance.spans for advance in self.advances)

    def _check_quarantined(self) -> None:
        if not self.quarantined:
            return
        spans = {advance.producer_id: advance.spans for advance in self.advances}
        for record in self.quarantined:
            if record.sequence_id not in spans.get(record.producer_id, ()):
                found = f"sequence id {record.sequence_id}, which the commit does not consume"
                raise SettingRefused("a quarantined record", found, "one of the sequence ids that the commit consumes")


class QuarantineState(StrEnum):
    """What became of a quarantined record. Once settled, it stays so."""

    HELD = "held"
    #: It was loaded later, unchanged or corrected.
    RETRIED = "retried"
    DISCARDED = "discarded"


_SETTLES_AS = {EntryKind.RETRY: QuarantineState.RETRIED, EntryKind.DISCARD: QuarantineState.DISCARDED}


@dataclass(frozen=True, kw_only=True)
class MadeOfRecords:
    """The rows of a retry, if it does not make one of each record."""

    rows: int
    #: How many of them name each file.
    rows_of: Mapping[ProducerId, int]
    #: How many records have none.
    filtered: int = 0


@dataclass(frozen=True, kw_only=True)
class Settlement(Generic[Transaction]):
    """What becomes of quarantined records, and the rows made from them: both take effect, or neither.

    The records were consumed when they were quarantined, so their files do not advance.
    """

    kind: EntryKind
    session: Session
    batch: Batch
    #: The producer and sequence id of each, with the digest of its bytes as they were read. None: they were not read.
    #: Unless all are still held with these bytes, nothing is settled.
    records: Mapping[tuple[ProducerId, int], str | None]
    #: Returns the number of rows as counted by the database: one for each retried record, unless `made` says otherwise.
    write_rows: Callable[[Transaction], int]
    made: MadeOfRecords | None = None
    #: The commit that has the rows, one position before this one, if records name their producers: these advance.
    load: Commit[Transaction] | None = None
    bytes: int = 0
    run: Run | None = None

    def __post_init__(self) -> None:
        if self.kind not in _SETTLES_AS:
            raise SettingRefused("a settlement", f"kind {self.kind}", f"one of {', '.join(_SETTLES_AS)}")
        if not self.records:
            raise SettingRefused("a settlement", "no records", "at least one record")
        check_name("batch", self.batch)

    @property
    def state(self) -> QuarantineState:
        """The state of its records from then on."""
        return _SETTLES_AS[self.kind]

    @property
    def counts(self) -> Counts:
        if self.kind is EntryKind.DISCARD:
            return Counts(filtered=len(self.records))
        if self.made is None:
            return Counts(loaded=len(self.records))
        return Counts(loaded=self.made.rows, filtered=self.made.filtered)

    @property
    def rows_of(self) -> Mapping[ProducerId, int]:
        """How many of its rows name each file."""
        if self.kind is EntryKind.DISCARD:
            return {}
        return {key: spans.count for key, spans in self.spans.items()} if self.made is None else self.made.rows_of

    @property
    def spans(self) -> dict[ProducerId, SpanSet]:
        """The sequence ids of its records, as the receipts hold them."""
        ids: dict[ProducerId, list[int]] = {}
        for producer_id, sequence_id in sorted(self.records):
            ids.setdefault(producer_id, []).append(sequence_id)
        return {producer_id: SpanSet.of_ids(some) for producer_id, some in ids.items()}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The sum of the commits of one batch."""

    #: The position of the last commit. Without commits, that of the pipeline.
    position: Position
    counts: Counts
    bytes: int
    #: Whether any commit of the batch has put records into quarantine, and whether these have replaced files.
    has_quarantined: bool
    has_replaced: bool


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a plan depends on besides its own producers: the position of the ledger, and what others load."""

    position: Position
    #: The producers that any session is loading, or that have a dead letter.
    claimed: frozenset[str]
    #: The producers that have a dead letter, and its delivery.
    dead_letters: Mapping[str, DeliveryId] = field(default_factory=dict)
    #: The producers that a kept batch holds.
    kept: Mapping[str, Kept] = field(default_factory=dict)


class Ledger(Protocol[Transaction]):
    """The append-only list of commits, and the state that results from it."""

    def declare(self, pipeline: Pipeline, *, version: Version | None = None) -> Version:
        """Register a pipeline, or take a new version, which drops earlier work; with a version, refuse any other."""

    def find_version(self, pipeline: Pipeline) -> Version | None:
        """The version in force, if the declaration is unchanged. Refuses the edits that a load would refuse."""

    def register(self, pipeline: str, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ProducerId]:
        """Return the producer id of each (name, generation). New producers have consumed nothing."""

    def find(self, pipeline: str, names: Sequence[str], *, here: Pipeline | None = None) -> dict[str, KnownProducer]:
        """The latest generation of each registered name, with all claims; by the declared folder, if it was moved."""

    def refuse_files_of_others(self, pipeline: Pipeline, names: Sequence[str]) -> None:
        """Refuse files that another pipeline has loaded into the same table, as a commit would."""

    def others_by_content(self, pipeline: Pipeline) -> dict[str, str]:
        """The folders of other pipelines that load into the same table, and know files by their content."""

    def outlook(self, pipeline: str) -> Outlook:
        """The position of the ledger, and the producers that any session is loading."""

    def open_session(self, pipeline: str, name: SessionName, *, version: Version | None = None) -> Session:
        """Start a new epoch of a session, by default of the version in force. Calls of earlier epochs are refused."""

    def know(self, session: Session, producer_ids: Sequence[ProducerId]) -> dict[ProducerId, Knowledge]:
        """The input for `judge`, as this session sees it."""

    def claim(
        self,
        session: Session,
        spans: Mapping[ProducerId, SpanSet],
        *,
        batch: Batch,
        lease_s: float,
        names: Mapping[ProducerId, str] = NO_NAMES,
        unchanged: Outlook | None = None,
        only_names: bool = False,
    ) -> Claim:
        """Claim spans that are neither consumed nor claimed by another session.

        With names, producers must still have them: a failover may have given their ids to others.
        With an outlook, nothing may have been committed since, and no session may have claimed other producers; or
        nothing of these names, in any generation.
        """

    def renew(self, session: Session, *, lease_s: float) -> None:
        """Extend the claims of a session by another lease. Claims that have expired stay expired."""

    def release(self, claim: Claim) -> None:
        """Release a claim. What it has not committed can be claimed again."""

    def commit(self, commit: Commit[Transaction]) -> Position:
        """Publish the rows and record what was consumed: both or neither."""

    def settle(self, settlement: Settlement[Transaction]) -> Position:
        """Publish the rows and record what became of quarantined records: both or neither."""

    def proof_of(self, pipeline: str, producer_id: ProducerId, *, end: int | None = None) -> Proof:
        """Sum up what all commits of one producer read, or those that end before a sequence id."""

    def position(self, pipeline: str) -> Position:
        """The number of the last commit, or zero."""

    def outcome_of(self, pipeline: str, batch: Batch, *, after: Position) -> Outcome:
        """The sum of what a batch committed since a position."""

    def forget_idle(self, pipeline: str) -> tuple[str, ...]:
        """Delete producers that records name, never files, if idle for the declared time. Returns their names."""

    def entries(self, pipeline: str, *, after: Position) -> Iterator[Entry]:
        """The commits after a position, oldest first."""

    def states(self, pipeline: str) -> Snapshot:
        """The live states of all producers that have consumed anything, and their position."""


class SnapshotStore(Protocol):
    """The store of snapshots."""

    def take(self, pipeline: str) -> Position:
        """Store the current states, unless there is a snapshot of this position."""

    def take_if_due(self, pipeline: str, *, now: datetime) -> Position | None:
        """Take a snapshot if one is due. Loaders call it after their commits."""

    def get(self, pipeline: str, position: Position | None = None) -> Snapshot:
        """The snapshot at a position, or the latest."""


def unwatched(step: CommitStep) -> None:
    """The default callback for each step of a commit; tests pass their own."""
