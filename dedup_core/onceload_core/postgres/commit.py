"""The statements of one commit, step by step, in the order of the protocol."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, TypeVar, cast

from sqlalchemy import Connection, TextClause, text

from onceload_core.checks import GENERATION_MAX
from onceload_core.errors import (
    AlreadyConsumed,
    DeliveryTakenAway,
    LimitReached,
    StateDiffers,
)
from onceload_core.guards import refuse_other_rows
from onceload_core.names import Position, ProducerId
from onceload_core.pause import refuse_paused
from onceload_core.pipeline import Guarantee
from onceload_core.ports import Advance, Claim, Commit, CommitStep, Session, Settlement
from onceload_core.postgres import loaded_files
from onceload_core.postgres.connection import (
    Record,
    array,
    execute_for,
    execute_prepared,
    in_batches,
    on_table,
    statements,
)
from onceload_core.postgres.own_transaction import check_transaction_is_open, get_transaction_id
from onceload_core.postgres.pipeline_row import pause_in, take_position_in
from onceload_core.replay import EntryKind
from onceload_core.spans import SEQUENCE_END

SQL = statements("ledger.sql")


@dataclass(frozen=True, kw_only=True)
class BulkCommit(Commit[Connection]):
    """A commit with too many producers or business ids to fetch: they stay on the server, in tables.

    The names of the tables are quoted for SQL.
    """

    #: The producers: `producer_id`, `spans` and `rows`, each producer once.
    offered: str | None = None
    #: Business ids by their SHA-256, `_message`. Rows of one record repeat it.
    offered_messages: str | None = None

    @property
    def consumes_anything(self) -> bool:
        return self.offered is not None or super().consumes_anything


@dataclass(frozen=True, kw_only=True)
class BulkSettlement(Settlement[Connection]):
    """A settlement whose rows have business ids; the name of their table is quoted for SQL."""

    offered_messages: str | None = None


AnyCommit = TypeVar("AnyCommit", Commit[Connection], Settlement[Connection])
#: Called after each step of a commit.
Reached: TypeAlias = Callable[[CommitStep], None]


def run_steps(connection: Connection, commit: Commit[Connection], reached: Reached) -> Position:
    """Everything between BEGIN and COMMIT, in the order of the protocol."""
    return _run_steps(connection, commit, reached, may_be_paused=False)


def _run_steps(
    connection: Connection, commit: Commit[Connection], reached: Reached, *, may_be_paused: bool
) -> Position:
    transaction_id = get_transaction_id(connection)
    reached(CommitStep.BEGUN)
    written = commit.write_rows(connection)
    check_transaction_is_open(connection, commit.session.pipeline, commit.batch)
    reached(CommitStep.ROWS_WRITTEN)
    taken = take_position_in(transaction_id, connection, commit)
    refuse_other_rows(commit, written)
    if not may_be_paused:
        refuse_paused(commit.session.pipeline, pause_in(taken))
    reached(CommitStep.POSITION_TAKEN)
    repeats_allowed = taken.guarantee == Guarantee.AT_LEAST_ONCE
    advance(connection, taken, commit, repeats_allowed=repeats_allowed)
    reached(CommitStep.PRODUCERS_ADVANCED)
    # Only files have a fingerprint.
    files = [advance.producer_id for advance in commit.advances if advance.fingerprint is not None]
    loaded_files.own(connection, taken, commit.session.pipeline, files)
    reached(CommitStep.FILES_OWNED)
    record_messages(connection, taken, commit, repeats_allowed=repeats_allowed)
    reached(CommitStep.MESSAGES_RECORDED)
    record_quarantine(connection, taken, commit, repeats_allowed=repeats_allowed)
    reached(CommitStep.QUARANTINE_RECORDED)
    record_entry(connection, taken, commit, kind=EntryKind.LOAD)
    reached(CommitStep.ENTRY_RECORDED)
    ack(connection, commit.session, commit.claim, is_last=commit.is_last)
    reached(CommitStep.DELIVERY_ACKED)
    return Position(taken.position)


def run_settlement_steps(connection: Connection, settlement: Settlement[Connection], reached: Reached) -> Position:
    """The same order, with the quarantine instead of the producers."""
    if settlement.load is not None:
        # A pause is the time for repairs.
        _run_steps(connection, settlement.load, reached, may_be_paused=True)
    transaction_id = get_transaction_id(connection)
    reached(CommitStep.BEGUN)
    written = settlement.write_rows(connection)
    check_transaction_is_open(connection, settlement.session.pipeline, settlement.batch)
    reached(CommitStep.ROWS_WRITTEN)
    taken = take_position_in(transaction_id, connection, settlement)
    refuse_other_rows(settlement, written)
    reached(CommitStep.POSITION_TAKEN)
    if isinstance(settlement, BulkSettlement):
        record_messages(connection, taken, settlement, repeats_allowed=taken.guarantee == Guarantee.AT_LEAST_ONCE)
        reached(CommitStep.MESSAGES_RECORDED)
    settle(connection, taken, settlement)
    reached(CommitStep.QUARANTINE_RECORDED)
    record_entry(connection, taken, settlement, kind=settlement.kind)
    reached(CommitStep.ENTRY_RECORDED)
    return Position(taken.position)


def advance(connection: Connection, taken: Record, commit: Commit[Connection], *, repeats_allowed: bool) -> None:
    taken_binds = {"pipeline_id": taken.pipeline_id, "position": taken.position}
    for each in commit.advances:
        if each.takes_name_of is not None:
            _swap_names(connection, taken, commit, producer_id=each.producer_id, other_id=each.takes_name_of)
    # A table of its own has a statement of its own, which is not worth keeping.
    items = SEQUENCE_END if _offers_a_table(commit) else len(commit.advances)
    for offered, its_binds in _offered(commit):
        binds = {**taken_binds, **its_binds, "repeats_allowed": repeats_allowed}
        done = execute_for(connection, _offering("advance_producers", offered.text), binds, items=items).one()
        if done.advanced != done.offered:
            refused = connection.execute(_offering("producers_refused", offered.text), binds).scalars()
            raise AlreadyConsumed(commit.session.pipeline, tuple(name or "a forgotten producer" for name in refused))
        if done.islands > taken.islands_max:
            raise LimitReached(commit.session.pipeline, "islands_max", taken.islands_max, done.islands)


def _swap_names(
    connection: Connection, taken: Record, commit: Commit[Connection], *, producer_id: ProducerId, other_id: ProducerId
) -> None:
    """Give a producer the name of an empty one, which gets the old name."""
    ids = {"producer_id": producer_id, "other_id": other_id}
    binds = {"pipeline_id": taken.pipeline_id, **ids}
    found = {row.producer_id: row for row in connection.execute(SQL["names_to_swap"], binds)}
    other = found.get(other_id)
    if other is None or producer_id not in found or not other.is_empty:
        raise AlreadyConsumed(commit.session.pipeline, (other.name if other else "a forgotten producer",))
    its, theirs = ({"name": found[key].name, "generation": found[key].generation} for key in (producer_id, other_id))
    # The names are unique at every moment, so the swap needs a spare generation.
    for named in (
        {**theirs, "generation": GENERATION_MAX, "producer_id": other_id},
        {**theirs, "producer_id": producer_id},
        {**its, "producer_id": other_id},
    ):
        connection.execute(SQL["rename_producer"], named)
    connection.execute(SQL["keep_name"], {**binds, "position": taken.position})


def _offered(commit: Commit[Connection]) -> Iterator[tuple[TextClause, Mapping[str, object]]]:
    """The offered producers of a commit in batches: the statement that returns them, and its binds."""
    for some in in_batches(sorted(commit.advances, key=lambda advance: advance.producer_id)):
        yield SQL["offered_in_arrays"], _advance_binds(some)
    if isinstance(commit, BulkCommit) and commit.offered is not None:
        yield on_table(SQL["offered_in_a_table"], commit.offered), {"first_id": 0, "last_id": SEQUENCE_END}


def _offers_a_table(commit: Commit[Connection]) -> bool:
    return isinstance(commit, BulkCommit) and commit.offered is not None


@lru_cache(maxsize=16)
def _offering(statement: str, offered: str) -> TextClause:
    return text(SQL[statement].text.replace("{offered}", offered))


def _advance_binds(advances: Sequence[Advance]) -> dict[str, object]:
    return {
        "first_id": advances[0].producer_id,
        "last_id": advances[-1].producer_id,
        "producer_ids": array(advance.producer_id for advance in advances),
        "spans": array(advance.spans for advance in advances),
        "rows": array(advance.rows for advance in advances),
        "records": array(advance.records for advance in advances),
        "digests": array(advance.digest for advance in advances),
        "fingerprints": array(advance.fingerprint for advance in advances),
        "sizes": array(advance.size for advance in advances),
        "conditions": array(advance.condition for advance in advances),
        "copies_of": array(advance.copy_of for advance in advances),
        "share_with": array(advance.shares_with for advance in advances),
    }


def record_messages(
    connection: Connection, taken: Record, commit: Commit[Connection] | BulkSettlement, *, repeats_allowed: bool
) -> None:
    if not taken.message_keep_days:
        return
    binds = {"pipeline_id": taken.pipeline_id, "position": taken.position, "keep_days": taken.message_keep_days}
    repeats = 0
    for offered, its_binds in _offered_messages(commit):
        count = connection.execute(_offering("count_messages", offered.text), its_binds).scalar_one()
        repeats += count - connection.execute(_offering("record_messages", offered.text), binds | its_binds).rowcount
    if repeats and not repeats_allowed:
        raise AlreadyConsumed(commit.session.pipeline, (f"{repeats} business ids",))


def offers_messages(commit: Commit[Connection] | Settlement[Connection]) -> bool:
    if isinstance(commit, Commit) and commit.message_ids:
        return True
    return isinstance(commit, BulkCommit | BulkSettlement) and commit.offered_messages is not None


def _offered_messages(commit: Commit[Connection] | BulkSettlement) -> Iterator[tuple[TextClause, dict[str, object]]]:
    """The business ids of a commit in batches: the statement that returns their hashes, and its binds."""
    for some in in_batches(commit.message_ids if isinstance(commit, Commit) else ()):
        messages = array(hashlib.sha256(each.encode("utf-8", "surrogatepass")).digest() for each in some)
        yield SQL["messages_in_an_array"], {"messages": messages}
    if isinstance(commit, BulkCommit | BulkSettlement) and commit.offered_messages is not None:
        yield on_table(SQL["messages_in_a_table"], commit.offered_messages), {}


def record_quarantine(
    connection: Connection, taken: Record, commit: Commit[Connection], *, repeats_allowed: bool
) -> None:
    for some in in_batches(commit.quarantined, weigh=lambda record: len(record.raw)):
        binds = {
            "pipeline_id": taken.pipeline_id,
            "position": taken.position,
            "producer_ids": array(record.producer_id for record in some),
            "sequence_ids": array(record.sequence_id for record in some),
            "raws": array(record.raw for record in some),
            "columns": array(record.column for record in some),
            "reasons": array(record.reason for record in some),
        }
        recorded = connection.execute(SQL["record_quarantine"], binds).rowcount
        if recorded != len(some) and not repeats_allowed:
            raise AlreadyConsumed(commit.session.pipeline, (f"{len(some) - recorded} quarantined records",))


NO_ENGINE = dict.fromkeys(("engine", "spark_ui"))
NO_ORIGIN = (
    dict.fromkeys(("session", "epoch", "version", "dag_id", "run_id", "try_number"))
    | dict.fromkeys(("loaded", "duplicate", "quarantined", "filtered", "bytes"), 0)
    | NO_ENGINE
)


def settle(connection: Connection, taken: Record, settlement: Settlement[Connection]) -> None:
    """Settle each record by compare-and-set, and write the receipts: for all records or none."""
    pipeline = settlement.session.pipeline
    taken_binds = {"pipeline_id": taken.pipeline_id, "position": taken.position, "state": settlement.state}
    for some in in_batches(sorted(settlement.records)):
        binds = taken_binds | {
            "producer_ids": array(producer_id for producer_id, _ in some),
            "sequence_ids": array(sequence_id for _, sequence_id in some),
            "digests": array(settlement.records[each] for each in some),
        }
        if connection.execute(SQL["settle_quarantine"], binds).rowcount != len(some):
            raise AlreadyConsumed(pipeline, tuple(map(_settled, connection.execute(SQL["settlements_refused"], binds))))
    rows_of = settlement.rows_of
    for some_spans in in_batches(list(settlement.spans.items())):
        rows = [rows_of.get(producer_id, 0) for producer_id, _ in some_spans]
        binds = taken_binds | {
            "producer_ids": array(producer_id for producer_id, _ in some_spans),
            "spans": array(spans for _, spans in some_spans),
            "rows": array(rows),
        }
        if connection.execute(SQL["record_settlement"], binds).rowcount != len(some_spans):
            raise StateDiffers(pipeline, taken.position, ("the quarantine: the ledger has no receipts for it",))


def _settled(row: Record) -> str:
    if row.quarantine_id is None:
        return "a record that is not in quarantine"
    not_held = "of a replaced generation, or with other bytes than were read"
    settled = f"{row.state} at position {row.settled_position}" if row.settled_position else not_held
    return f"quarantined record {row.quarantine_id} ({settled})"


def record_entry(
    connection: Connection, taken: Record, commit: Commit[Connection] | Settlement[Connection], *, kind: EntryKind
) -> None:
    write_entry(
        connection,
        commit.session.pipeline,
        {
            "pipeline_id": taken.pipeline_id,
            "position": taken.position,
            "kind": kind,
            "batch": commit.batch,
            "session": commit.session.name,
            "epoch": commit.session.epoch,
            "version": commit.session.version.number,
            "dag_id": commit.run and commit.run.dag_id,
            "run_id": commit.run and commit.run.run_id,
            "try_number": commit.run and commit.run.try_number,
            "loaded": commit.counts.loaded,
            "duplicate": commit.counts.duplicate,
            "quarantined": commit.counts.quarantined,
            "filtered": commit.counts.filtered,
            "bytes": commit.bytes,
            **(NO_ENGINE if isinstance(commit, Settlement) else {"engine": commit.engine, "spark_ui": commit.spark_ui}),
        },
    )


def write_entry(connection: Connection, pipeline: str, entry: Mapping[str, object]) -> None:
    if execute_prepared(connection, SQL["record_entry"], entry).rowcount != 1:
        position = Position(cast(int, entry["position"]))
        raise StateDiffers(pipeline, position, ("the pipeline's position: it does not follow the last ledger entry",))


def ack(connection: Connection, session: Session, claim: Claim | None, *, is_last: bool) -> None:
    if claim is None:
        return
    statement = SQL["ack_delivery" if is_last else "keep_delivery"]
    if claim.session != session or execute_prepared(connection, statement, holder_binds(claim)).rowcount != 1:
        raise DeliveryTakenAway(session.pipeline, claim.delivery_id, session.name, session.epoch, "no longer held")


def check_held(connection: Connection, claim: Claim) -> None:
    """Raise unless the session still holds the delivery. It cannot be taken away before the transaction ends."""
    if connection.execute(SQL["hold_delivery"], holder_binds(claim)).one_or_none() is None:
        session = claim.session
        raise DeliveryTakenAway(session.pipeline, claim.delivery_id, session.name, session.epoch, "no longer held")


def holder_binds(claim: Claim) -> dict[str, object]:
    session = claim.session
    return {
        "delivery_id": claim.delivery_id,
        "pipeline": session.pipeline,
        "session": session.name,
        "epoch": session.epoch,
    }
