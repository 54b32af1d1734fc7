"""What the core asks of the world: a ledger that commits, and a store of snapshots.

Every implementation passes the suite in `tests/contract`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from dedup_core.errors import (
    AlreadyConsumed,
    ClaimedElsewhere,
    DeclarationChanged,
    NotAlone,
    NotFound,
    RowsDiffer,
    SettingRefused,
)
from dedup_core.names import Batch, DeliveryId, Epoch, Position, ProducerId, SessionName, Version
from dedup_core.pipeline import Pipeline
from dedup_core.replay import Condition, Counts, Entry, EntryKind, ProducerState, Run, Snapshot
from dedup_core.spans import SpanSet

Transaction = TypeVar("Transaction")
NO_NAMES: Mapping[ProducerId, str] = {}


class CommitStep(StrEnum):
    """The commit, step by step; tests stop the world at each of them."""

    BEGUN = "begun"
    ROWS_WRITTEN = "rows_written"
    POSITION_TAKEN = "position_taken"
    SESSION_CHECKED = "session_checked"
    PRODUCERS_ADVANCED = "producers_advanced"
    MESSAGES_RECORDED = "messages_recorded"
    QUARANTINE_RECORDED = "quarantine_recorded"
    ENTRY_RECORDED = "entry_recorded"
    DELIVERY_ACKED = "delivery_acked"
    COMMITTED = "committed"


@dataclass(frozen=True, kw_only=True)
class Session:
    """One life of a named consumer; a later life under the same name fences this one."""

    pipeline: str
    name: SessionName
    epoch: Epoch
    #: The version of the pipeline's declaration that it works by; with another one in force it commits nothing.
    version: Version


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Spans that a session is loading, until its deadline passes."""

    delivery_id: DeliveryId
    session: Session
    spans: Mapping[ProducerId, SpanSet]


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What is known of one producer now: its state, and what other live workers claim of it."""

    state: ProducerState
    claimed: SpanSet
    #: Of a name that holds the content of another producer, up to where its own fingerprint says: that producer.
    shared: tuple[ProducerId, ProducerState] | None = None

    def as_copy_of(self, producer_id: ProducerId, state: ProducerState | None) -> "Knowledge":
        """The same of a copy; where nothing of its producer is in any more, nothing is known of it either."""
        if state is not None and state.consumed and state.condition is not Condition.REPLACED:
            return replace(self, shared=(producer_id, state))
        return replace(self, state=replace(self.state, fingerprint=None, size=None, condition=Condition.OPEN))


@dataclass(frozen=True, kw_only=True)
class Advance:
    """How one commit moves one producer on; without spans it only notes what was seen of the file."""

    producer_id: ProducerId
    spans: SpanSet
    rows: int = 0
    #: How many records were read of the spans, whatever became of them; nobody asks it of a producer without content.
    records: int = 0
    digest: bytes | None = None
    fingerprint: bytes | None = None
    size: int | None = None
    condition: Condition = Condition.OPEN
    #: Its name holds what is consumed of that producer, up to the fingerprint; under this one nothing is consumed.
    copy_of: ProducerId | None = None
    #: The producer that loaded the records of these spans: they are the beginning that a former copy shares with it.
    shares_with: ProducerId | None = None
    #: It takes the name of this one, which consumed nothing, and which keeps the old name as a copy of it.
    takes_name_of: ProducerId | None = None

    def __post_init__(self) -> None:
        if self.copy_of is not None and self.spans:
            raise SettingRefused("a copy", f"{self.spans} of its own", "no spans: its producer consumes them")
        if (self.rows or self.records) and not self.spans:
            found = f"{self.rows} rows of no span" if self.rows else f"{self.records} records of no span"
            raise SettingRefused("an advance", found, "the spans that they came from")


#: Well below what Postgres takes in one value, which travels as two digits a byte.
_RAW_BYTES_MAX = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class QuarantinedRecord:
    """A record that could not be loaded, whole, and why."""

    producer_id: ProducerId
    sequence_id: int
    raw: bytes
    reason: str
    column: str | None = None

    def __post_init__(self) -> None:
        if len(self.raw) > _RAW_BYTES_MAX:
            found = f"{len(self.raw)} bytes of sequence id {self.sequence_id}"
            raise SettingRefused("a quarantined record", found, f"at most {_RAW_BYTES_MAX}: keep its beginning")


@dataclass(frozen=True, kw_only=True)
class Commit(Generic[Transaction]):
    """Rows and the proof of what they were made from: both take effect, or neither."""

    session: Session
    batch: Batch
    advances: tuple[Advance, ...]
    #: Returns how many rows the database has written, by its own count (such as `rowcount`): it must be
    #: `counts.loaded`. A number of the caller's own would be believed, and would prove nothing.
    write_rows: Callable[[Transaction], int]
    #: What it is made of: still in hand when this commits, or nothing does.
    claim: Claim | None = None
    #: Whether that ends the claim; else more of it follows.
    is_last: bool = True
    counts: Counts = field(default_factory=Counts)
    bytes: int = 0
    message_ids: tuple[str, ...] = ()
    quarantined: tuple[QuarantinedRecord, ...] = ()
    run: Run | None = None

    def __post_init__(self) -> None:
        _all_different("producers of a commit", [advance.producer_id for advance in self.advances])
        _all_different("business ids of a commit", self.message_ids)
        check_name("batch", self.batch)
        if self.counts.quarantined != len(self.quarantined):
            found = f"{self.counts.quarantined} counted and {len(self.quarantined)} given"
            raise SettingRefused("quarantined records", found, "each of them counted")
        if self.run is not None:
            check_name("dag_id", self.run.dag_id)
            check_name("run_id", self.run.run_id)
        if self.counts.loaded and not any(advance.spans for advance in self.advances):
            raise SettingRefused(
                "a commit", f"{self.counts.loaded} rows of no span", "the spans that they were made from"
            )
        self._check_quarantined()

    def _check_quarantined(self) -> None:
        if not self.quarantined:
            return
        spans = {advance.producer_id: advance.spans for advance in self.advances}
        for record in self.quarantined:
            if record.sequence_id not in spans.get(record.producer_id, ()):
                found = f"sequence id {record.sequence_id}, which the commit does not consume"
                raise SettingRefused("a quarantined record", found, "one of the sequence ids that the commit consumes")


class QuarantineState(StrEnum):
    """What became of a quarantined record; what is settled stays so."""

    HELD = "held"
    #: It was loaded after all, as it was or mended.
    RETRIED = "retried"
    DISCARDED = "discarded"


_SETTLES_AS = {EntryKind.RETRY: QuarantineState.RETRIED, EntryKind.DISCARD: QuarantineState.DISCARDED}


@dataclass(frozen=True, kw_only=True)
class Settlement(Generic[Transaction]):
    """What becomes of quarantined records, and the rows made of them: both take effect, or neither.

    They were consumed when they were quarantined, so that no producer advances.
    """

    kind: EntryKind
    session: Session
    batch: Batch
    #: The producer and sequence id of each; all of them are still held, or nothing is settled.
    records: tuple[tuple[ProducerId, int], ...]
    #: Returns how many rows the database has written, by its own count: one for each record that is retried.
    write_rows: Callable[[Transaction], int]
    bytes: int = 0
    run: Run | None = None

    def __post_init__(self) -> None:
        if self.kind not in _SETTLES_AS:
            raise SettingRefused("a settlement", f"one of kind {self.kind}", f"one of {', '.join(_SETTLES_AS)}")
        if not self.records:
            raise SettingRefused("a settlement", "no records", "at least one")
        _all_different("records of a settlement", self.records)
        check_name("batch", self.batch)

    @property
    def state(self) -> QuarantineState:
        """What its records are from then on."""
        return _SETTLES_AS[self.kind]

    @property
    def counts(self) -> Counts:
        if self.kind is EntryKind.RETRY:
            return Counts(loaded=len(self.records))
        return Counts(filtered=len(self.records))

    @property
    def spans(self) -> dict[ProducerId, SpanSet]:
        """The sequence ids of its records, as its receipts hold them."""
        ids: dict[ProducerId, list[int]] = {}
        for producer_id, sequence_id in sorted(self.records):
            ids.setdefault(producer_id, []).append(sequence_id)
        return {producer_id: SpanSet.of_ids(some) for producer_id, some in ids.items()}


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the receipts of one producer add up to."""

    #: Records that were read, whatever became of them.
    records: int
    digests: bytes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the commits of one batch add up to."""

    #: Of the last of them; where there is none, of the pipeline.
    position: Position
    counts: Counts
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a plan goes by besides the producers that it asks for: how far the ledger is, and what others load."""

    position: Position
    #: The producers of which anybody is loading something, or something was set aside.
    claimed: frozenset[str]
    #: The latter, and the dead letter.
    set_aside: Mapping[str, DeliveryId] = field(default_factory=dict)


class Ledger(Protocol[Transaction]):
    """The append-only list of commits, and the state that it adds up to."""

    def declare(self, pipeline: Pipeline, *, version: Version | None = None) -> Version:
        """Make a pipeline known, or take a new version of its declaration; what an earlier one has begun is dropped.

        With a version, no new one is taken: unless that one is in force, all is refused.
        """

    def find_version(self, pipeline: Pipeline) -> Version | None:
        """The version in force, if the pipeline is declared just so. An edit that a load would refuse is refused."""

    def register(self, pipeline: str, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ProducerId]:
        """Give each (name, generation) its producer id; it has consumed nothing yet."""

    def find(self, pipeline: str, names: Sequence[str]) -> dict[str, tuple[ProducerId, Knowledge]]:
        """The latest generation of each name that is registered; all claims count, whoever holds them."""

    def outlook(self, pipeline: str) -> Outlook:
        """How far the ledger is, and of which producers anybody is loading something."""

    def open_session(self, pipeline: str, name: SessionName, *, version: Version | None = None) -> Session:
        """Start a life of a session; whatever an earlier life still tries is refused from now on.

        Left out, the version is the one in force.
        """

    def know(self, session: Session, producer_ids: Sequence[ProducerId]) -> dict[ProducerId, Knowledge]:
        """What to judge by, as this session sees it."""

    def claim(
        self,
        session: Session,
        spans: Mapping[ProducerId, SpanSet],
        *,
        batch: Batch,
        lease_s: float,
        names: Mapping[ProducerId, str] = NO_NAMES,
        unchanged: Outlook | None = None,
    ) -> Claim:
        """Hold spans that are neither consumed nor claimed by anybody else.

        Producers that are named still have these names: a failover may have given their ids to others.
        With an outlook, nothing at all has taken effect since, and of no other producers anybody claims anything.
        """

    def renew(self, session: Session, *, lease_s: float) -> None:
        """Hold what a session still claims for another lease; what fell back meanwhile stays so."""

    def release(self, claim: Claim) -> None:
        """Give a claim back: its spans fall back to what is consumed."""

    def commit(self, commit: Commit[Transaction]) -> Position:
        """Publish the rows and record what was consumed: both or neither."""

    def settle(self, settlement: Settlement[Transaction]) -> Position:
        """Publish the rows and record what became of quarantined records: both or neither."""

    def proof_of(self, pipeline: str, producer_id: ProducerId, *, end: int | None = None) -> Proof:
        """What was read of one producer, all its commits together, or those that end before a sequence id."""

    def position(self, pipeline: str) -> Position:
        """The number of the last commit; zero before the first."""

    def outcome_of(self, pipeline: str, batch: Batch, *, after: Position) -> Outcome:
        """What a batch has come to since a position."""

    def forget_idle(self, pipeline: str) -> tuple[str, ...]:
        """Let go of what records name and was idle for as long as is declared, never of a file; which ones."""

    def entries(self, pipeline: str, *, after: Position) -> Iterator[Entry]:
        """The commits after a position, oldest first."""

    def states(self, pipeline: str) -> Snapshot:
        """The live states of all producers that have consumed anything, and the position they are at."""


class SnapshotStore(Protocol):
    """Where snapshots are kept."""

    def take(self, pipeline: str) -> Position:
        """Keep the states as they are now; one snapshot of a position is enough."""

    def take_if_due(self, pipeline: str, *, now: datetime) -> Position | None:
        """What a loader calls after its commits."""

    def get(self, pipeline: str, position: Position | None = None) -> Snapshot:
        """The snapshot at a position, or the latest."""

    def put(self, snapshot: Snapshot) -> None:
        """Keep a snapshot that comes from elsewhere, if it is one of this very ledger."""


NAME_BYTES_MAX = 2000
GENERATION_MAX = 2**31 - 1


def check_name(what: str, name: str) -> None:
    """Refuse a name that the database could not hold, or would hold as another."""
    expected = f"1 to {NAME_BYTES_MAX} bytes of UTF-8 without a NUL"
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise SettingRefused(what, f"{name!r:.80}, which is not UTF-8", expected) from error
    if not 0 < size <= NAME_BYTES_MAX or "\x00" in name:
        raise SettingRefused(what, f"{name!r:.80} of {size} bytes", expected)


def check_producers(names: Sequence[tuple[str, int]]) -> None:
    """Refuse names and generations that cannot be registered."""
    for name, generation in names:
        check_name("producer", name)
        if not 1 <= generation <= GENERATION_MAX:
            raise SettingRefused(f"generation of {name}", str(generation), f"1 to {GENERATION_MAX}")


def refuse_other_version(pipeline: str, version: Version, in_force: Version) -> None:
    """Raise unless a version is the one in force."""
    if version != in_force:
        raise DeclarationChanged(pipeline, version, in_force)


def unwatched(step: CommitStep) -> None:
    """What a ledger calls at each step of a commit, unless a test wants to know."""


def refuse_other_rows(commit: Commit[Transaction] | Settlement[Transaction], written: int) -> None:
    """Refuse a commit whose rows are not those that its receipts say, however that came about."""
    if written != commit.counts.loaded:
        raise RowsDiffer(commit.session.pipeline, commit.batch, written=written, expected=commit.counts.loaded)


def refuse_taken(
    session: Session,
    wanted: Mapping[ProducerId, SpanSet],
    known: Mapping[ProducerId, Knowledge],
    *,
    names: Mapping[ProducerId, str],
    position: Position,
) -> None:
    """Raise unless all that a session wants to claim is neither consumed nor claimed by another."""
    for producer_id, spans in wanted.items():
        knowledge = known.get(producer_id)
        name = names.get(producer_id)
        if name is not None and (knowledge is None or knowledge.state.name != name):
            raise NotAlone(session.pipeline, position, f"producer {producer_id} is not {name!r}")
        if knowledge is None:
            raise NotFound("producer", str(producer_id))
        if spans.overlaps(knowledge.state.consumed):
            raise AlreadyConsumed(session.pipeline, (knowledge.state.name,))
        busy = spans & knowledge.claimed
        if busy:
            raise ClaimedElsewhere(session.pipeline, knowledge.state.name, str(busy), "another session")


def refuse_change(session: Session, planned: Outlook, now: Outlook) -> None:
    """Raise unless nothing took effect since an outlook, and others load nothing that they did not load then."""
    if now.position != planned.position:
        raise NotAlone(session.pipeline, planned.position, f"position {now.position} was committed")
    if added := now.claimed - planned.claimed:
        raise NotAlone(session.pipeline, planned.position, f"another session is loading {min(added)}")


def _all_different(what: str, found: Sequence[object]) -> None:
    twins = len(found) - len(set(found))
    if twins:
        raise SettingRefused(what, f"{twins} twice", "each of them once")
