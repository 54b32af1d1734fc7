"""The ledger in Postgres: one transaction holds the rows and the receipts of what they were made from.

The primary of the database is authoritative. A commit takes effect completely or not at all: a failure before
COMMIT is sent leaves nothing behind. If the answer to COMMIT is lost, the caller judges the same spans again.
If the commit took effect, they are consumed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date

from sqlalchemy import Connection, Engine

from dedup_core.declaration import refuse_other_version
from dedup_core.errors import LimitReached, SessionFenced
from dedup_core.guards import refuse_change, refuse_other_rows, refuse_taken
from dedup_core.names import Batch, DeliveryId, Epoch, Position, ProducerId, SessionName, Version
from dedup_core.pipeline import Guarantee, Pipeline
from dedup_core.ports import (
    NO_NAMES,
    Claim,
    Commit,
    CommitStep,
    Knowledge,
    Outcome,
    Outlook,
    Proof,
    Session,
    Settlement,
    check_name,
    check_producers,
    unwatched,
)
from dedup_core.postgres.commit import (
    NO_ORIGIN,
    SQL,
    Filling,
    ack,
    advance,
    check_session,
    check_transaction,
    get_pipeline,
    holder_binds,
    lock_pipeline,
    lock_pipeline_of,
    record_entry,
    record_messages,
    record_quarantine,
    settle,
    take_position,
    write_entry,
)
from dedup_core.postgres.connection import Record, array, at_once, in_batches, on_table, translated
from dedup_core.postgres.declaring import declare, find_version
from dedup_core.postgres.rows import page_of_entries, state_in
from dedup_core.replay import Counts, Entry, EntryKind, Snapshot
from dedup_core.spans import SpanSet


class PostgresLedger:
    """The append-only list of commits, and the state that results from it."""

    def __init__(self, engine: Engine, *, reached: Callable[[CommitStep], None] = unwatched) -> None:
        self._engine = engine
        self._reached = reached
        self._prepared_on: date | None = None

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
        """One transaction from BEGIN to COMMIT. If its outcome is unknown, raise CommitOutcomeUnknown."""
        pipeline = commit.session.pipeline
        with translated(pipeline=pipeline, doing=f"committing to {pipeline}"):
            with at_once(self._engine, pipeline, commit.batch) as connection:
                position = fill(connection, commit)
            self._reached(CommitStep.COMMITTED)
            return position

    def _fill(self, connection: Connection, commit: Commit[Connection]) -> Position:
        """Everything between BEGIN and COMMIT, in the order of the protocol."""
        transaction_id = connection.execute(SQL["transaction_id"]).scalar_one()
        self._reached(CommitStep.BEGUN)
        written = commit.write_rows(connection)
        check_transaction(connection, transaction_id, commit)
        refuse_other_rows(commit, written)
        self._reached(CommitStep.ROWS_WRITTEN)
        turn = take_position(connection, commit.session.pipeline)
        self._reached(CommitStep.POSITION_TAKEN)
        check_session(connection, turn, commit.session)
        self._reached(CommitStep.SESSION_CHECKED)
        repeats_allowed = turn.guarantee == Guarantee.AT_LEAST_ONCE
        advance(connection, turn, commit, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.PRODUCERS_ADVANCED)
        record_messages(connection, turn, commit, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.MESSAGES_RECORDED)
        record_quarantine(connection, turn, commit, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.QUARANTINE_RECORDED)
        record_entry(connection, turn, commit, kind=EntryKind.LOAD)
        self._reached(CommitStep.ENTRY_RECORDED)
        ack(connection, commit.session, commit.claim, is_last=commit.is_last)
        self._reached(CommitStep.DELIVERY_ACKED)
        return Position(turn.position)

    def _fill_settlement(self, connection: Connection, settlement: Settlement[Connection]) -> Position:
        """The same order, with the quarantine instead of the producers."""
        transaction_id = connection.execute(SQL["transaction_id"]).scalar_one()
        self._reached(CommitStep.BEGUN)
        written = settlement.write_rows(connection)
        check_transaction(connection, transaction_id, settlement)
        refuse_other_rows(settlement, written)
        self._reached(CommitStep.ROWS_WRITTEN)
        turn = take_position(connection, settlement.session.pipeline)
        self._reached(CommitStep.POSITION_TAKEN)
        check_session(connection, turn, settlement.session)
        self._reached(CommitStep.SESSION_CHECKED)
        settle(connection, turn, settlement)
        self._reached(CommitStep.QUARANTINE_RECORDED)
        record_entry(connection, turn, settlement, kind=settlement.kind)
        self._reached(CommitStep.ENTRY_RECORDED)
        return Position(turn.position)

    def declare(self, pipeline: Pipeline, *, version: Version | None = None) -> Version:
        """Register a pipeline, or take a new version of its declaration. Work of earlier versions is dropped."""
        with translated(pipeline=pipeline.name, doing="declaring a pipeline"), self._engine.begin() as connection:
            return declare(connection, pipeline, version=version)

    def find_version(self, pipeline: Pipeline) -> Version | None:
        """The version in force, if the declaration is unchanged. Refuses the edits that a load would refuse."""
        with translated(pipeline=pipeline.name, doing="reading the ledger"), self._engine.begin() as connection:
            return find_version(connection, pipeline)

    def register(self, pipeline: str, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ProducerId]:
        """Return the producer id of each (name, generation). New producers have consumed nothing."""
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
        """Register each `name` of a table on the server, which holds each name once."""
        with translated(pipeline=pipeline, doing="registering producers"), self._engine.begin() as connection:
            found = lock_pipeline(connection, pipeline)
            binds = {"pipeline_id": found.pipeline_id, "generation": generation}
            registered = connection.execute(on_table(SQL["register_all"], table), binds).rowcount
            _count_producers(connection, found, pipeline, found.producers + registered)

    def find(self, pipeline: str, names: Sequence[str]) -> dict[str, tuple[ProducerId, Knowledge]]:
        """The latest generation of each registered name, with the claims of all sessions."""
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            found: dict[str, ProducerId] = {}
            for some in in_batches(names):
                binds = {"pipeline_id": pipeline_id, "names": array(some)}
                rows = connection.execute(SQL["latest_generations"], binds)
                found.update({row.name: row.producer_id for row in rows})
            known = _know(connection, pipeline_id, _NOBODY, list(found.values()))
        return {name: (producer_id, known[producer_id]) for name, producer_id in found.items()}

    def outlook(self, pipeline: str) -> Outlook:
        """The position of the ledger, and the producers that any session is loading."""
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            return _outlook(connection, get_pipeline(connection, pipeline), asking=_NOBODY)

    def open_session(self, pipeline: str, name: SessionName, *, version: Version | None = None) -> Session:
        """Start a new epoch of a session. From now on, calls of earlier epochs are refused."""
        check_name("session", name)
        with translated(pipeline=pipeline, doing="opening a session"), self._engine.begin() as connection:
            found = get_pipeline(connection, pipeline)
            version = found.version if version is None else version
            refuse_other_version(pipeline, version, found.version)
            epoch = connection.execute(SQL["open_session"], {"pipeline_id": found.pipeline_id, "session": name})
            return Session(pipeline=pipeline, name=name, epoch=Epoch(epoch.scalar_one()), version=version)

    def know(self, session: Session, producer_ids: Sequence[ProducerId]) -> dict[ProducerId, Knowledge]:
        """The input for `judge`, as this session sees it."""
        with translated(pipeline=session.pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, session.pipeline).pipeline_id
            return _know(connection, pipeline_id, session.name, producer_ids)

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
        """Claim spans that are neither consumed nor claimed by another session."""
        with translated(pipeline=session.pipeline, doing="claiming spans"), self._engine.begin() as connection:
            # Under the commit lock, nothing is consumed or claimed between the check and the claim.
            found = lock_pipeline_of(connection, session)
            pipeline_id = found.pipeline_id
            if unchanged is not None:
                refuse_change(session, unchanged, _outlook(connection, found, asking=session.name))
            connection.execute(SQL["drop_ended_claims"], {"pipeline_id": pipeline_id})
            known = _know(connection, pipeline_id, session.name, list(spans))
            refuse_taken(session, spans, known, names=names, position=Position(found.position))
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
        """Extend the claims of a session by another lease. Claims that have expired stay expired."""
        with translated(pipeline=session.pipeline, doing="renewing claims"), self._engine.begin() as connection:
            binds = {"pipeline": session.pipeline, "session": session.name, "epoch": session.epoch}
            session_id = connection.execute(SQL["find_session"], binds).scalar_one_or_none()
            if session_id is None:
                raise SessionFenced(session.pipeline, session.name, session.epoch)
            connection.execute(
                SQL["renew_claims"], {"session_id": session_id, "epoch": session.epoch, "lease_s": lease_s}
            )

    def drop_ended_claims(self, pipeline: str) -> None:
        """Drop the expired claims of planners."""
        with translated(pipeline=pipeline, doing="dropping claims"), self._engine.begin() as connection:
            found = lock_pipeline(connection, pipeline)
            connection.execute(SQL["drop_ended_claims"], {"pipeline_id": found.pipeline_id})

    def release(self, claim: Claim) -> None:
        """Release a claim. What it has not committed can be claimed again."""
        with translated(pipeline=claim.session.pipeline, doing="releasing a claim"), self._engine.begin() as connection:
            connection.execute(SQL["release_claim"], holder_binds(claim))

    def proof_of(self, pipeline: str, producer_id: ProducerId, *, end: int | None = None) -> Proof:
        """What was read of one producer in all its commits, or in those that end before a sequence id."""
        with translated(pipeline=pipeline, doing="reading receipts"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            binds = {"pipeline_id": pipeline_id, "producer_id": producer_id, "end": end}
            row = connection.execute(SQL["proof"], binds).one()
            return Proof(records=row.records, digests=bytes(row.digests))

    def position(self, pipeline: str) -> Position:
        """The number of the last commit, or zero."""
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            return Position(get_pipeline(connection, pipeline).position)

    def outcome_of(self, pipeline: str, batch: Batch, *, after: Position) -> Outcome:
        """The sum of what a batch committed since a position."""
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            found = get_pipeline(connection, pipeline)
            binds = {"pipeline_id": found.pipeline_id, "batch": batch, "after": after}
            row = connection.execute(SQL["outcome"], binds).one()
        counts = Counts(loaded=row.loaded, duplicate=row.duplicate, quarantined=row.quarantined, filtered=row.filtered)
        return Outcome(position=Position(row.position or found.position), counts=counts, bytes=row.bytes)

    def all_bad(self, pipeline: str, batch: Batch, *, after: Position) -> dict[str, int]:
        """The number of bad records of each producer of which a batch has loaded no row since a position."""
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            rows = connection.execute(SQL["all_bad"], {"pipeline_id": pipeline_id, "batch": batch, "after": after})
            return {row.producer: row.records for row in rows}

    def loaded_by(self, pipeline: str, batch: Batch) -> frozenset[str]:
        """The producers with a commit of a batch that is still in force."""
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            binds = {"pipeline_id": get_pipeline(connection, pipeline).pipeline_id, "batch": batch}
            return frozenset(connection.execute(SQL["loaded_by"], binds).scalars())

    def forget_idle(self, pipeline: str) -> tuple[str, ...]:
        """Delete producers that records name, never files, if idle for the declared time. Returns their names."""
        doing = "forgetting idle producers"
        with translated(pipeline=pipeline, doing=doing), at_once(self._engine, pipeline, doing) as connection:
            turn = take_position(connection, pipeline)
            batch = Batch(f"forget-{turn.position}")
            binds = {"pipeline_id": turn.pipeline_id, "position": turn.position}
            forgotten = tuple(connection.execute(SQL["forget_producers"], binds).scalars())
            if forgotten:
                write_entry(connection, pipeline, {**binds, **NO_ORIGIN, "kind": EntryKind.FORGET, "batch": batch})
            else:
                # This returns the position. The ledger stays unchanged.
                connection.rollback()
        return forgotten

    def forget_messages(self) -> tuple[str, ...]:
        """Drop the days of business ids that no pipeline remembers any more, and return them."""
        with translated(pipeline="(any)", doing="dropping business ids"), self._engine.begin() as connection:
            return tuple(connection.execute(SQL["forget_messages"]).scalars())

    def entries(self, pipeline: str, *, after: Position) -> Iterator[Entry]:
        """The commits after a position, oldest first."""
        while page := self._page(pipeline, after):
            yield from page
            after = page[-1].position

    def _page(self, pipeline: str, after: Position) -> list[Entry]:
        # No transaction stays open while the caller handles a page.
        with translated(pipeline=pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            return list(page_of_entries(connection, get_pipeline(connection, pipeline).pipeline_id, after))

    def states(self, pipeline: str) -> Snapshot:
        """The live states of all producers that have consumed anything, and their position."""
        with translated(pipeline=pipeline, doing="reading the live states"), one_view(self._engine) as connection:
            found = get_pipeline(connection, pipeline)
            now = connection.execute(SQL["database_now"]).scalar_one()
            rows = connection.execute(SQL["live_states"], {"pipeline_id": found.pipeline_id})
            states = {row.producer_id: state_in(row) for row in rows}
        return Snapshot(pipeline=pipeline, position=found.position, taken_at=now, states=states)

    def _prepare_message_days(self) -> None:
        """Create the partitions of today and tomorrow, so that no commit needs to alter a table."""
        with self._engine.begin() as connection:
            if connection.execute(SQL["today"]).scalar_one() == self._prepared_on:
                return
            prepared_on = connection.execute(SQL["prepare_message_days"]).scalar_one()
        self._prepared_on = prepared_on


#: No session has this name, so the claims of all sessions are returned.
_NOBODY = SessionName("")


def one_view(engine: Engine) -> Connection:
    """A connection whose statements all read one snapshot of the database."""
    return engine.connect().execution_options(isolation_level="REPEATABLE READ")


def _count_producers(connection: Connection, found: Record, pipeline: str, producers: int) -> None:
    if producers > found.producers_max:
        raise LimitReached(pipeline, "producers_max", found.producers_max, producers)
    connection.execute(SQL["count_producers"], {"pipeline_id": found.pipeline_id, "producers": producers})


def _outlook(connection: Connection, pipeline: Record, *, asking: SessionName) -> Outlook:
    binds = {"pipeline_id": pipeline.pipeline_id, "session": asking}
    claimed = frozenset(connection.execute(SQL["claimed_names"], binds).scalars())
    set_aside = {row.name: DeliveryId(row.delivery_id) for row in connection.execute(SQL["set_aside"], binds)}
    return Outlook(position=Position(pipeline.position), claimed=claimed, set_aside=set_aside)


def _know(
    connection: Connection, pipeline_id: int, asking: SessionName, producer_ids: Sequence[ProducerId]
) -> dict[ProducerId, Knowledge]:
    binds = {"pipeline_id": pipeline_id, "session": asking, "producer_ids": array(producer_ids)}
    claimed: dict[ProducerId, SpanSet] = {}
    for row in connection.execute(SQL["claims_of_others"], binds):
        claimed[row.producer_id] = claimed.get(row.producer_id, SpanSet()) | SpanSet.parse(row.spans)
    rows = connection.execute(SQL["producer_states"], binds).all()
    known = {
        row.producer_id: Knowledge(state=state_in(row), claimed=claimed.get(row.producer_id, SpanSet())) for row in rows
    }
    if copies := {row.producer_id: row.copy_of for row in rows if row.copy_of is not None}:
        rows = connection.execute(SQL["producer_states"], {**binds, "producer_ids": array({*copies.values()})}).all()
        shared = {row.producer_id: state_in(row) for row in rows}
        known |= {each: known[each].as_copy_of(its, shared.get(its)) for each, its in copies.items()}
    return known
