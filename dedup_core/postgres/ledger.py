"""The ledger in Postgres: one transaction holds the rows and the proof of what they were made from.

The database is authoritative, and only its primary. A commit exists whole or not at all: whatever fails before
COMMIT is sent leaves nothing behind; when the answer to COMMIT is lost, the caller judges the same spans again,
and finds them consumed if it had landed.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TypeVar, cast

import psycopg2.extensions
from psycopg2.extensions import TRANSACTION_STATUS_INTRANS
from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import (
    AlreadyConsumed,
    CommitOutcomeUnknown,
    DeliveryTakenAway,
    LimitReached,
    NotFound,
    SessionFenced,
    StateDiffers,
    TransactionEnded,
)
from dedup_core.names import Batch, DeliveryId, Epoch, Position, ProducerId, SessionName
from dedup_core.pipeline import Guarantee, Pipeline, guarantee_in_force
from dedup_core.ports import (
    Advance,
    Claim,
    Commit,
    CommitStep,
    Knowledge,
    Outcome,
    Proof,
    Session,
    Settlement,
    check_name,
    check_producers,
    refuse_taken,
    unwatched,
)
from dedup_core.postgres.connection import (
    Record,
    array,
    first_line,
    in_batches,
    is_lost,
    on_table,
    severity,
    sqlstate,
    statements,
    translated,
)
from dedup_core.postgres.rows import page_of_entries, state_in
from dedup_core.replay import Counts, Entry, EntryKind, Snapshot
from dedup_core.spans import SEQUENCE_END, SpanSet

SQL = statements("ledger.sql")


@dataclass(frozen=True, kw_only=True)
class BulkCommit(Commit[Connection]):
    """A commit that advances more producers than anybody wants to fetch: they stay on the server."""

    #: The table that holds them, as SQL writes its name: `producer_id`, `spans` and `rows`, each producer once.
    offered: str


Filling = TypeVar("Filling", Commit[Connection], Settlement[Connection])


class PostgresLedger:
    """The append-only list of commits, and the state that it adds up to."""

    def __init__(
        self,
        engine: Engine,
        *,
        switch: Guarantee = Guarantee.EXACTLY_ONCE,
        reached: Callable[[CommitStep], None] = unwatched,
    ) -> None:
        self._engine = engine
        self._switch = switch
        self._reached = reached
        self._message_days: set[date] = set()

    def commit(self, commit: Commit[Connection]) -> Position:
        """Publish the rows and record what was consumed: both or neither."""
        if commit.message_ids:
            with translated(pipeline=commit.session.pipeline, doing="preparing for business ids"):
                self._prepare_message_days()
        return self._commit(commit, self._fill)

    def settle(self, settlement: Settlement[Connection]) -> Position:
        """Publish the rows and record what became of quarantined records: both or neither."""
        return self._commit(settlement, self._fill_settlement)

    def _commit(self, commit: Filling, fill: Callable[[Connection, Filling], Position]) -> Position:
        """One transaction from BEGIN to COMMIT, whose end is certain or said to be unknown."""
        pipeline = commit.session.pipeline
        with translated(pipeline=pipeline, doing=f"committing to {pipeline}"):
            with self._engine.connect() as connection:
                transaction = connection.begin()
                position = fill(connection, commit)
                try:
                    transaction.commit()
                except DBAPIError as error:
                    if _refused_for_certain(error):
                        raise
                    raise CommitOutcomeUnknown(pipeline, commit.batch, first_line(error)) from error
            self._reached(CommitStep.COMMITTED)
            return position

    def _fill(self, connection: Connection, commit: Commit[Connection]) -> Position:
        """Everything between BEGIN and COMMIT, in the order that the protocol gives."""
        transaction_id = connection.execute(SQL["transaction_id"]).scalar_one()
        self._reached(CommitStep.BEGUN)
        commit.write_rows(connection)
        _check_transaction(connection, transaction_id, commit)
        self._reached(CommitStep.ROWS_WRITTEN)
        turn = _take_position(connection, commit.session.pipeline)
        self._reached(CommitStep.POSITION_TAKEN)
        _check_session(connection, turn, commit.session)
        self._reached(CommitStep.SESSION_CHECKED)
        repeats_allowed = self._repeats_allowed(turn)
        _advance(connection, turn, commit, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.PRODUCERS_ADVANCED)
        _record_messages(connection, turn, commit, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.MESSAGES_RECORDED)
        _record_quarantine(connection, turn, commit, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.QUARANTINE_RECORDED)
        _record_entry(connection, turn, commit, kind=EntryKind.LOAD)
        self._reached(CommitStep.ENTRY_RECORDED)
        _ack(connection, commit.session, commit.claim)
        self._reached(CommitStep.DELIVERY_ACKED)
        return Position(turn.position)

    def _fill_settlement(self, connection: Connection, settlement: Settlement[Connection]) -> Position:
        """The same order, with the quarantine in the producers' place."""
        transaction_id = connection.execute(SQL["transaction_id"]).scalar_one()
        self._reached(CommitStep.BEGUN)
        settlement.write_rows(connection)
        _check_transaction(connection, transaction_id, settlement)
        self._reached(CommitStep.ROWS_WRITTEN)
        turn = _take_position(connection, settlement.session.pipeline)
        self._reached(CommitStep.POSITION_TAKEN)
        _check_session(connection, turn, settlement.session)
        self._reached(CommitStep.SESSION_CHECKED)
        _settle(connection, turn, settlement)
        self._reached(CommitStep.QUARANTINE_RECORDED)
        _record_entry(connection, turn, settlement, kind=settlement.kind)
        self._reached(CommitStep.ENTRY_RECORDED)
        return Position(turn.position)

    def _repeats_allowed(self, turn: Record) -> bool:
        declared = Guarantee(turn.guarantee) if turn.guarantee else None
        match guarantee_in_force(switch=self._switch, declared=declared):
            case Guarantee.EXACTLY_ONCE:
                return False
            case Guarantee.AT_LEAST_ONCE:
                return True

    def declare(self, pipeline: Pipeline) -> None:
        """Make a pipeline known, or change its declaration."""
        with translated(pipeline=pipeline.name, doing="declaring a pipeline"), self._engine.begin() as connection:
            connection.execute(
                SQL["declare_pipeline"],
                {
                    "name": pipeline.name,
                    "guarantee": pipeline.guarantee,
                    "producers_max": pipeline.producers_max,
                    "islands_max": pipeline.islands_max,
                    "forget_idle_after_s": pipeline.forget_idle_after_s,
                    "message_keep_days": pipeline.message_keep_days,
                    "snapshot_every_commits": pipeline.snapshot.every_commits,
                    "snapshot_every_s": pipeline.snapshot.every_s,
                    "snapshots_kept": pipeline.snapshot.kept,
                },
            )

    def register(self, pipeline: str, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ProducerId]:
        """Give each (name, generation) its producer id; it has consumed nothing yet."""
        check_producers(names)
        ids: dict[tuple[str, int], ProducerId] = {}
        with translated(pipeline=pipeline, doing="registering producers"), self._engine.begin() as connection:
            found = lock_pipeline(connection, pipeline)
            producers = found.producers
            for some in in_batches(names):
                binds = {
                    "pipeline_id": found.pipeline_id,
                    "names": array(name for name, _ in some),
                    "generations": array(generation for _, generation in some),
                }
                producers += connection.execute(SQL["register_producers"], binds).rowcount
                rows = connection.execute(SQL["producer_ids"], binds)
                ids.update({(row.name, row.generation): row.producer_id for row in rows})
            _count_producers(connection, found, pipeline, producers)
        return ids

    def register_all(self, pipeline: str, table: str, *, generation: int) -> None:
        """Give each `name` in a table of the server's its producer id."""
        with translated(pipeline=pipeline, doing="registering producers"), self._engine.begin() as connection:
            found = lock_pipeline(connection, pipeline)
            binds = {"pipeline_id": found.pipeline_id, "generation": generation}
            registered = connection.execute(on_table(SQL["register_all"], table), binds).rowcount
            _count_producers(connection, found, pipeline, found.producers + registered)

    def find(self, pipeline: str, names: Sequence[str]) -> dict[str, tuple[ProducerId, Knowledge]]:
        """The latest generation of each name that is registered; all claims count, whoever holds them."""
        with translated(pipeline=pipeline, doing="asking the ledger"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            found: dict[str, ProducerId] = {}
            for some in in_batches(names):
                binds = {"pipeline_id": pipeline_id, "names": array(some)}
                rows = connection.execute(SQL["latest_generations"], binds)
                found.update({row.name: row.producer_id for row in rows})
            known = _know(connection, pipeline_id, _NOBODY, list(found.values()))
        return {name: (producer_id, known[producer_id]) for name, producer_id in found.items()}

    def open_session(self, pipeline: str, name: SessionName) -> Session:
        """Start a life of a session; whatever an earlier life still tries is refused from now on."""
        check_name("session", name)
        with translated(pipeline=pipeline, doing="opening a session"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            epoch = connection.execute(SQL["open_session"], {"pipeline_id": pipeline_id, "session": name})
            return Session(pipeline=pipeline, name=name, epoch=Epoch(epoch.scalar_one()))

    def know(self, session: Session, producer_ids: Sequence[ProducerId]) -> dict[ProducerId, Knowledge]:
        """What to judge by, as this session sees it."""
        with translated(pipeline=session.pipeline, doing="asking the ledger"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, session.pipeline).pipeline_id
            return _know(connection, pipeline_id, session.name, producer_ids)

    def claim(self, session: Session, spans: Mapping[ProducerId, SpanSet], *, batch: Batch, lease_s: float) -> Claim:
        """Hold spans that are neither consumed nor claimed by anybody else."""
        with translated(pipeline=session.pipeline, doing="claiming spans"), self._engine.begin() as connection:
            # Under the commit lock nothing is consumed or claimed between the question and the claim.
            pipeline_id = lock_pipeline(connection, session.pipeline).pipeline_id
            connection.execute(SQL["drop_ended_claims"], {"pipeline_id": pipeline_id})
            refuse_taken(session, spans, _know(connection, pipeline_id, session.name, list(spans)))
            binds = {"pipeline_id": pipeline_id, "session": session.name, "epoch": session.epoch, "batch": batch}
            delivery_id = connection.execute(SQL["claim_delivery"], {**binds, "lease_s": lease_s}).scalar()
            if delivery_id is None:
                raise SessionFenced(session.pipeline, session.name, session.epoch)
            producer_ids, claimed = array(spans), array(spans.values())
            connection.execute(
                SQL["claim_spans"], {"delivery_id": delivery_id, "producer_ids": producer_ids, "spans": claimed}
            )
        return Claim(delivery_id=DeliveryId(delivery_id), session=session, spans=spans)

    def renew(self, session: Session, *, lease_s: float) -> None:
        """Hold what a session still claims for another lease; what fell back meanwhile stays so."""
        with translated(pipeline=session.pipeline, doing="renewing claims"), self._engine.begin() as connection:
            binds = {"pipeline": session.pipeline, "session": session.name, "epoch": session.epoch}
            session_id = connection.execute(SQL["find_session"], binds).scalar_one_or_none()
            if session_id is None:
                raise SessionFenced(session.pipeline, session.name, session.epoch)
            connection.execute(
                SQL["renew_claims"], {"session_id": session_id, "epoch": session.epoch, "lease_s": lease_s}
            )

    def release(self, claim: Claim) -> None:
        """Give a claim back: its spans fall back to what is consumed."""
        with translated(pipeline=claim.session.pipeline, doing="releasing a claim"), self._engine.begin() as connection:
            connection.execute(SQL["release_claim"], _holder_binds(claim))

    def proof_of(self, pipeline: str, producer_id: ProducerId) -> Proof:
        """What was read of one producer, all its commits together."""
        with translated(pipeline=pipeline, doing="reading receipts"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            row = connection.execute(SQL["proof"], {"pipeline_id": pipeline_id, "producer_id": producer_id}).one()
            return Proof(records=row.records, digests=bytes(row.digests))

    def position(self, pipeline: str) -> Position:
        """The number of the last commit; zero before the first."""
        with translated(pipeline=pipeline, doing="asking the ledger"), self._engine.begin() as connection:
            return Position(get_pipeline(connection, pipeline).position)

    def outcome_of(self, pipeline: str, batch: Batch, *, after: Position) -> Outcome:
        """What a batch has come to since a position."""
        with translated(pipeline=pipeline, doing="asking the ledger"), self._engine.begin() as connection:
            found = get_pipeline(connection, pipeline)
            binds = {"pipeline_id": found.pipeline_id, "batch": batch, "after": after}
            row = connection.execute(SQL["outcome"], binds).one()
        counts = Counts(loaded=row.loaded, duplicate=row.duplicate, quarantined=row.quarantined, filtered=row.filtered)
        return Outcome(position=Position(row.position or found.position), counts=counts, bytes=row.bytes)

    def forget_idle(self, pipeline: str) -> tuple[str, ...]:
        """Let go of the producers that were idle for as long as the pipeline declares, and name them."""
        with translated(pipeline=pipeline, doing="forgetting idle producers"), self._engine.connect() as connection:
            turn = _take_position(connection, pipeline)
            binds = {"pipeline_id": turn.pipeline_id, "position": turn.position}
            forgotten = tuple(connection.execute(SQL["forget_producers"], binds).scalars())
            if forgotten:
                entry = {**binds, **_NO_ORIGIN, "kind": EntryKind.FORGET, "batch": f"forget-{turn.position}"}
                _write_entry(connection, pipeline, entry)
                connection.commit()
        # Nothing forgotten: the position goes back with the rollback, and the ledger stays as it was.
        return forgotten

    def forget_messages(self) -> tuple[str, ...]:
        """Drop the days of business ids that no pipeline declares to remember, and name them."""
        with translated(pipeline="(any)", doing="dropping business ids"), self._engine.begin() as connection:
            connection.execute(SQL["lock_message_partitions"])
            first_kept = connection.execute(SQL["message_days"]).one().first_kept
            old = [row for row in connection.execute(SQL["message_partitions"]) if row.day < first_kept]
            for row in old:
                connection.execute(text(f"DROP TABLE {row.partition}"))
        return tuple(row.partition for row in old)

    def entries(self, pipeline: str, *, after: Position) -> Iterator[Entry]:
        """The commits after a position, oldest first."""
        while page := self._page(pipeline, after):
            yield from page
            after = page[-1].position

    def _page(self, pipeline: str, after: Position) -> list[Entry]:
        # No transaction stays open while the reader thinks about a page.
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            return list(page_of_entries(connection, get_pipeline(connection, pipeline).pipeline_id, after))

    def states(self, pipeline: str) -> Snapshot:
        """The live states of all producers that have consumed anything, and the position they are at."""
        with translated(pipeline=pipeline, doing="reading the live states"), one_view(self._engine) as connection:
            found = get_pipeline(connection, pipeline)
            now = connection.execute(SQL["database_now"]).scalar_one()
            rows = connection.execute(SQL["live_states"], {"pipeline_id": found.pipeline_id})
            states = {row.producer_id: state_in(row) for row in rows}
        return Snapshot(pipeline=pipeline, position=found.position, taken_at=now, states=states)

    def _prepare_message_days(self) -> None:
        """Make the partitions of today and tomorrow, so that no commit has to change a table."""
        with self._engine.begin() as connection:
            today = connection.execute(SQL["message_days"]).one().today
            if today in self._message_days:
                return
            connection.execute(SQL["lock_message_partitions"])
            for day in (today, today + timedelta(days=1)):
                connection.execute(
                    text(
                        f'CREATE TABLE IF NOT EXISTS onceload."message_{day:%Y%m%d}" PARTITION OF onceload.message '
                        f"FOR VALUES FROM ('{day}') TO ('{day + timedelta(days=1)}')"
                    )
                )
        self._message_days = {today}


#: No session has this name, so that nobody's claims are left out.
_NOBODY = SessionName("")


def one_view(engine: Engine) -> Connection:
    """A connection whose statements all see the database as it was at the first of them."""
    return engine.connect().execution_options(isolation_level="REPEATABLE READ")


def get_pipeline(connection: Connection, pipeline: str) -> Record:
    return _one_pipeline(connection, "find_pipeline", pipeline)


def lock_pipeline(connection: Connection, pipeline: str) -> Record:
    return _one_pipeline(connection, "lock_pipeline", pipeline)


def _count_producers(connection: Connection, found: Record, pipeline: str, producers: int) -> None:
    if producers > found.producers_max:
        raise LimitReached(pipeline, "producers_max", found.producers_max, producers)
    connection.execute(SQL["count_producers"], {"pipeline_id": found.pipeline_id, "producers": producers})


def _take_position(connection: Connection, pipeline: str) -> Record:
    return _one_pipeline(connection, "take_position", pipeline)


def _one_pipeline(connection: Connection, statement: str, pipeline: str) -> Record:
    found = connection.execute(SQL[statement], {"pipeline": pipeline}).one_or_none()
    if found is None:
        raise NotFound("pipeline", pipeline, tuple(connection.execute(SQL["pipeline_names"]).scalars()))
    return found


def _check_transaction(connection: Connection, transaction_id: str, commit: Filling) -> None:
    """Whoever writes the rows must leave the transaction open: the proof has to go into the same one."""
    driver = cast(psycopg2.extensions.connection, connection.connection.dbapi_connection)
    is_open = connection.in_transaction() and driver.info.transaction_status == TRANSACTION_STATUS_INTRANS
    if not is_open or connection.execute(SQL["transaction_id"]).scalar_one() != transaction_id:
        # Nobody else shall get a connection that was left in such a state.
        connection.invalidate()
        raise TransactionEnded(commit.session.pipeline, commit.batch)


def _check_session(connection: Connection, turn: Record, session: Session) -> None:
    binds = {
        "pipeline_id": turn.pipeline_id,
        "position": turn.position,
        "session": session.name,
        "epoch": session.epoch,
    }
    if connection.execute(SQL["check_session"], binds).rowcount != 1:
        raise SessionFenced(session.pipeline, session.name, session.epoch)


def _advance(connection: Connection, turn: Record, commit: Commit[Connection], *, repeats_allowed: bool) -> None:
    turn_binds = {"pipeline_id": turn.pipeline_id, "position": turn.position}
    for offered, its_binds in _offered(commit):
        binds = {**turn_binds, **its_binds, "repeats_allowed": repeats_allowed}
        done = connection.execute(_offering("advance_producers", offered), binds).one()
        if done.advanced != done.offered:
            refused = connection.execute(_offering("producers_refused", offered), binds).scalars()
            raise AlreadyConsumed(commit.session.pipeline, tuple(name or "a forgotten producer" for name in refused))
        if done.islands > turn.islands_max:
            raise LimitReached(commit.session.pipeline, "islands_max", turn.islands_max, done.islands)


def _offered(commit: Commit[Connection]) -> Iterator[tuple[TextClause, Mapping[str, object]]]:
    """What a commit offers, in parts: the statement that has it, and its binds."""
    for some in in_batches(sorted(commit.advances, key=lambda advance: advance.producer_id)):
        yield SQL["offered_in_arrays"], _advance_binds(some)
    if isinstance(commit, BulkCommit):
        yield on_table(SQL["offered_in_a_table"], commit.offered), {"first_id": 0, "last_id": SEQUENCE_END}


def _offering(statement: str, offered: TextClause) -> TextClause:
    return text(SQL[statement].text.replace("{offered}", offered.text))


def _advance_binds(advances: Sequence[Advance]) -> dict[str, object]:
    return {
        "first_id": advances[0].producer_id,
        "last_id": advances[-1].producer_id,
        "producer_ids": array(advance.producer_id for advance in advances),
        "spans": array(advance.spans for advance in advances),
        "rows": array(advance.rows for advance in advances),
        "digests": array(advance.digest for advance in advances),
        "fingerprints": array(advance.fingerprint for advance in advances),
        "sizes": array(advance.size for advance in advances),
        "conditions": array(advance.condition for advance in advances),
    }


def _record_messages(
    connection: Connection, turn: Record, commit: Commit[Connection], *, repeats_allowed: bool
) -> None:
    if not commit.message_ids or not turn.message_keep_days:
        return
    binds = {"pipeline_id": turn.pipeline_id, "position": turn.position, "keep_days": turn.message_keep_days}
    recorded = 0
    for some in in_batches(commit.message_ids):
        messages = array(hashlib.sha256(each.encode("utf-8", "surrogatepass")).digest() for each in some)
        recorded += connection.execute(SQL["record_messages"], {**binds, "messages": messages}).rowcount
    if recorded != len(commit.message_ids) and not repeats_allowed:
        twins = len(commit.message_ids) - recorded
        raise AlreadyConsumed(commit.session.pipeline, (f"{twins} business ids",))


def _record_quarantine(
    connection: Connection, turn: Record, commit: Commit[Connection], *, repeats_allowed: bool
) -> None:
    for some in in_batches(commit.quarantined, weigh=lambda record: len(record.raw)):
        binds = {
            "pipeline_id": turn.pipeline_id,
            "position": turn.position,
            "producer_ids": array(record.producer_id for record in some),
            "sequence_ids": array(record.sequence_id for record in some),
            "raws": array(record.raw for record in some),
            "columns": array(record.column for record in some),
            "reasons": array(record.reason for record in some),
        }
        recorded = connection.execute(SQL["record_quarantine"], binds).rowcount
        if recorded != len(some) and not repeats_allowed:
            raise AlreadyConsumed(commit.session.pipeline, (f"{len(some) - recorded} quarantined records",))


_NO_ORIGIN = dict.fromkeys(("session", "epoch", "dag_id", "run_id", "try_number")) | dict.fromkeys(
    ("loaded", "duplicate", "quarantined", "filtered", "bytes"), 0
)


def _settle(connection: Connection, turn: Record, settlement: Settlement[Connection]) -> None:
    """Compare and set each record, and write the receipts: as many as were offered, or nothing."""
    pipeline = settlement.session.pipeline
    turn_binds = {"pipeline_id": turn.pipeline_id, "position": turn.position, "state": settlement.state}
    for some in in_batches(sorted(settlement.records)):
        binds = turn_binds | {
            "producer_ids": array(producer_id for producer_id, _ in some),
            "sequence_ids": array(sequence_id for _, sequence_id in some),
        }
        if connection.execute(SQL["settle_quarantine"], binds).rowcount != len(some):
            raise AlreadyConsumed(pipeline, tuple(map(_settled, connection.execute(SQL["settlements_refused"], binds))))
    for some_spans in in_batches(list(settlement.spans.items())):
        rows = [spans.count if settlement.kind is EntryKind.RETRY else 0 for _, spans in some_spans]
        binds = turn_binds | {
            "producer_ids": array(producer_id for producer_id, _ in some_spans),
            "spans": array(spans for _, spans in some_spans),
            "rows": array(rows),
        }
        if connection.execute(SQL["record_settlement"], binds).rowcount != len(some_spans):
            raise StateDiffers(pipeline, turn.position, ("the quarantine, which the ledger has no receipts for",))


def _settled(row: Record) -> str:
    if row.quarantine_id is None:
        return "a record that is not in quarantine"
    settled = f"{row.state} at position {row.settled_position}" if row.settled_position else "of a replaced generation"
    return f"quarantined record {row.quarantine_id} ({settled})"


def _record_entry(connection: Connection, turn: Record, commit: Filling, *, kind: EntryKind) -> None:
    _write_entry(
        connection,
        commit.session.pipeline,
        {
            "pipeline_id": turn.pipeline_id,
            "position": turn.position,
            "kind": kind,
            "batch": commit.batch,
            "session": commit.session.name,
            "epoch": commit.session.epoch,
            "dag_id": commit.run and commit.run.dag_id,
            "run_id": commit.run and commit.run.run_id,
            "try_number": commit.run and commit.run.try_number,
            "loaded": commit.counts.loaded,
            "duplicate": commit.counts.duplicate,
            "quarantined": commit.counts.quarantined,
            "filtered": commit.counts.filtered,
            "bytes": commit.bytes,
        },
    )


def _write_entry(connection: Connection, pipeline: str, entry: Mapping[str, object]) -> None:
    if connection.execute(SQL["record_entry"], entry).rowcount != 1:
        position = Position(cast(int, entry["position"]))
        raise StateDiffers(pipeline, position, ("the pipeline's position, which does not follow its ledger",))


def _ack(connection: Connection, session: Session, claim: Claim | None) -> None:
    if claim is None:
        return
    if claim.session != session or connection.execute(SQL["ack_delivery"], _holder_binds(claim)).rowcount != 1:
        raise DeliveryTakenAway(session.pipeline, claim.delivery_id, session.name, session.epoch, "not held by it")


def _holder_binds(claim: Claim) -> dict[str, object]:
    session = claim.session
    return {
        "delivery_id": claim.delivery_id,
        "pipeline": session.pipeline,
        "session": session.name,
        "epoch": session.epoch,
    }


def _refused_for_certain(error: DBAPIError) -> bool:
    """Whether COMMIT was answered with a refusal; anything else leaves the outcome open."""
    # The one refusal that says of itself that it does not know is "statement completion unknown".
    return severity(error) == "ERROR" and sqlstate(error) != "40003" and not is_lost(error)


def _know(
    connection: Connection, pipeline_id: int, asking: SessionName, producer_ids: Sequence[ProducerId]
) -> dict[ProducerId, Knowledge]:
    binds = {"pipeline_id": pipeline_id, "session": asking, "producer_ids": array(producer_ids)}
    claimed: dict[ProducerId, SpanSet] = {}
    for row in connection.execute(SQL["claims_of_others"], binds):
        claimed[row.producer_id] = claimed.get(row.producer_id, SpanSet()) | SpanSet.parse(row.spans)
    rows = connection.execute(SQL["producer_states"], binds)
    return {
        row.producer_id: Knowledge(state=state_in(row), claimed=claimed.get(row.producer_id, SpanSet())) for row in rows
    }
