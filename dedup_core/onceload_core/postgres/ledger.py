"""The ledger in Postgres: one transaction holds the rows and the receipts of what they were made from.

The primary of the database is authoritative. A commit takes effect completely or not at all: a failure before
COMMIT is sent leaves nothing behind. If the answer to COMMIT is lost, the caller judges the same spans again.
If the commit took effect, they are consumed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from shlex import quote

from sqlalchemy import Connection, Engine

from onceload_core.checks import check_producers
from onceload_core.errors import CommitOutcomeUnknown
from onceload_core.events import event
from onceload_core.names import Batch, Position, ProducerId, SessionName, Version
from onceload_core.pipeline import Pipeline
from onceload_core.ports import (
    NO_NAMES,
    Claim,
    Commit,
    CommitStep,
    Knowledge,
    KnownProducer,
    Outcome,
    Outlook,
    Session,
    Settlement,
    unwatched,
)
from onceload_core.postgres import claims, loaded_files, opening, producers, receipts
from onceload_core.postgres.commit import (
    SQL,
    AnyCommit,
    Reached,
    holder_binds,
    offers_messages,
    run_settlement_steps,
    run_steps,
)
from onceload_core.postgres.connection import at_once, change, transaction, translated
from onceload_core.postgres.declaring import declare, find_version
from onceload_core.postgres.pipeline_row import PipelineIds, get_pipeline, lock_pipeline
from onceload_core.postgres.rows import page_of_entries, state_in
from onceload_core.postgres.sessions import log_opened
from onceload_core.replay import Entry, EntryKind, Proof, Snapshot
from onceload_core.spans import SpanSet


class _MessageDays:
    """The partitions of business ids, by the day: created before they are needed, so no commit has to alter a table."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prepared_on: date | None = None

    def prepare_for(self, commit: Commit[Connection] | Settlement[Connection]) -> None:
        if not offers_messages(commit):
            return
        with translated(pipeline=commit.session.pipeline, doing="preparing for business ids"):
            with self._engine.begin() as connection:
                if connection.execute(SQL["today"]).scalar_one() == self._prepared_on:
                    return
                prepared_on = connection.execute(SQL["prepare_message_days"]).scalar_one()
            self._prepared_on = prepared_on


class PostgresLedger:
    """The append-only list of commits, and the state that results from it."""

    def __init__(self, engine: Engine, *, reached: Reached = unwatched) -> None:
        self._engine = engine
        self._reached = reached
        self._message_days = _MessageDays(engine)
        self._ids = PipelineIds()

    def commit(self, commit: Commit[Connection], *, begun: Connection | None = None) -> Position:
        """Publish the rows and record what was consumed: both or neither; in a transaction that may have begun."""
        self._message_days.prepare_for(commit)
        return self._commit(commit, run_steps, begun=begun)

    def settle(self, settlement: Settlement[Connection], *, begun: Connection | None = None) -> Position:
        """Publish the rows and record what became of quarantined records: both or neither."""
        self._message_days.prepare_for(settlement if settlement.load is None else settlement.load)
        position = self._commit(settlement, run_settlement_steps, begun=begun)
        if settlement.kind is EntryKind.DISCARD:
            _log_discarded(settlement, position)
        return position

    def _commit(
        self,
        commit: AnyCommit,
        run: Callable[[Connection, AnyCommit, Reached], Position],
        *,
        begun: Connection | None = None,
    ) -> Position:
        """One transaction from BEGIN to COMMIT. If its outcome is unknown, raise CommitOutcomeUnknown."""
        pipeline, batch = commit.session.pipeline, commit.batch
        with translated(pipeline=pipeline, doing=f"committing to {pipeline}"):
            with at_once(self._engine, partial(CommitOutcomeUnknown, pipeline, batch), begun=begun) as connection:
                position = run(connection, commit, self._reached)
            self._reached(CommitStep.COMMITTED)
        _log_commit(commit, position)
        return position

    def declare(self, pipeline: Pipeline, *, version: Version | None = None, may_be_paused: bool = True) -> Version:
        """Register a pipeline, or take a new version of its declaration. Work of earlier versions is dropped."""
        with transaction(self._engine, pipeline.name, doing="declaring a pipeline") as connection:
            pipeline_id, taken = declare(connection, pipeline, version=version, may_be_paused=may_be_paused)
        self._ids.note(pipeline.name, pipeline_id)
        return taken

    def find_version(self, pipeline: Pipeline) -> Version | None:
        """The version in force, if the declaration is unchanged. Refuses the edits that a load would refuse."""
        with transaction(self._engine, pipeline.name, doing="reading the ledger") as connection:
            return find_version(connection, pipeline)

    def register(self, pipeline: str, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ProducerId]:
        """Return the producer id of each (name, generation). New producers have consumed nothing."""
        check_producers(names)
        with transaction(self._engine, pipeline, doing="registering producers") as connection:
            return producers.register(connection, pipeline, names)

    def find(self, pipeline: str, names: Sequence[str], *, here: Pipeline | None = None) -> dict[str, KnownProducer]:
        """The latest generation of each registered name, with the claims of all sessions."""
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return producers.find(connection, self._ids.of(connection, pipeline), names, here=here)

    def refuse_files_of_others(self, pipeline: Pipeline, names: Sequence[str]) -> None:
        """Refuse files that another pipeline has loaded into the same table, as a commit would."""
        with transaction(self._engine, pipeline.name, doing="reading the ledger") as connection:
            loaded_files.refuse_files_of_others(connection, pipeline, names)

    def others_by_content(self, pipeline: Pipeline) -> dict[str, str]:
        """The folders of other pipelines that load into the same table, and know files by their content."""
        with transaction(self._engine, pipeline.name, doing="reading the ledger") as connection:
            return loaded_files.others_by_content(connection, pipeline)

    def outlook(self, pipeline: str) -> Outlook:
        """The position of the ledger, and the producers that any session is loading."""
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return claims.outlook(connection, self._ids.of(connection, pipeline), asking=producers.NO_SESSION)

    def open_session(self, pipeline: str, name: SessionName, *, version: Version | None = None) -> Session:
        """Start a new epoch of a session. From now on, calls of earlier epochs are refused."""
        with transaction(self._engine, pipeline, doing="opening a session") as connection:
            session = opening.open_session(connection, pipeline, name, version=version)
        log_opened(session)
        return session

    def open_session_of_load(self, pipeline: str, name: SessionName, *, version: Version) -> opening.Opened:
        """The same for a load, which has declared its pipeline."""
        with transaction(self._engine, pipeline, doing="opening a session") as connection:
            pipeline_id = self._ids.of(connection, pipeline)
            opened = opening.open_session_of_load(connection, pipeline_id, pipeline, name, version=version)
        log_opened(opened.session)
        return opened

    def know(self, session: Session, producer_ids: Sequence[ProducerId]) -> dict[ProducerId, Knowledge]:
        """The input for `judge`, as this session sees it."""
        with transaction(self._engine, session.pipeline, doing="reading the ledger") as connection:
            return producers.know(connection, self._ids.of(connection, session.pipeline), session.name, producer_ids)

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
        """Claim spans that are neither consumed nor claimed by another session."""
        with transaction(self._engine, session.pipeline, doing="claiming spans") as connection:
            return claims.claim(
                connection,
                session,
                spans,
                batch=batch,
                lease_s=lease_s,
                names=names,
                unchanged=unchanged,
                only_names=only_names,
            )

    def renew(self, session: Session, *, lease_s: float) -> None:
        """Extend the claims of a session by another lease. Claims that have expired stay expired."""
        with transaction(self._engine, session.pipeline, doing="renewing claims") as connection:
            claims.renew(connection, session, lease_s=lease_s)

    def drop_ended_claims(self, pipeline: str) -> None:
        """Drop the claims of planners that have expired or lost their stage."""
        with transaction(self._engine, pipeline, doing="dropping claims") as connection:
            claims.drop_ended(connection, lock_pipeline(connection, pipeline).pipeline_id)

    def release(self, claim: Claim) -> None:
        """Release a claim. What it has not committed can be claimed again."""
        with transaction(self._engine, claim.session.pipeline, doing="releasing a claim") as connection:
            connection.execute(SQL["release_claim"], holder_binds(claim))

    def proof_of(self, pipeline: str, producer_id: ProducerId, *, end: int | None = None) -> Proof:
        """Sum up what all commits of one producer read, or those that end before a sequence id."""
        with transaction(self._engine, pipeline, doing="reading receipts") as connection:
            return receipts.proof_of(connection, self._ids.of(connection, pipeline), producer_id, end=end)

    def position(self, pipeline: str) -> Position:
        """The number of the last commit, or zero."""
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return Position(get_pipeline(connection, pipeline).position)

    def outcome_of(self, pipeline: str, batch: Batch, *, after: Position) -> Outcome:
        """The sum of what a batch committed since a position."""
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return receipts.outcome_of(connection, self._ids.of(connection, pipeline), batch, after=after)

    def replaced_by(self, pipeline: str, batch: Batch, *, after: Position) -> dict[str, int]:
        """The files that a batch has replaced since a position, each with the number of its old rows."""
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return receipts.replaced_by(connection, self._ids.of(connection, pipeline), batch, after=after)

    def all_bad(self, pipeline: str, batch: Batch) -> dict[str, int]:
        """For each producer from which this batch loaded no row: the number of its records still in quarantine."""
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return receipts.all_bad(connection, self._ids.of(connection, pipeline), batch)

    def done_by(self, pipeline: str, batch: Batch, *, after: Position | None = None) -> dict[str, Position]:
        """The files that a batch has replaced, or loaded since a position, each with its last position."""
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return receipts.done_by(connection, self._ids.of(connection, pipeline), batch, after=after)

    def forget_idle(self, pipeline: str) -> tuple[str, ...]:
        """Delete producers that records name, never files, if idle for the declared time. Returns their names."""
        doing, see = "forgetting idle producers", f"onceload producers --pipeline {quote(pipeline)}"
        with change(self._engine, pipeline, doing=doing, see=see) as connection:
            return producers.forget_idle(connection, pipeline)

    def entries(self, pipeline: str, *, after: Position) -> Iterator[Entry]:
        """The commits after a position, oldest first."""
        while page := self._page(pipeline, after):
            yield from page
            after = page[-1].position

    def _page(self, pipeline: str, after: Position) -> list[Entry]:
        # No transaction stays open while the caller handles a page.
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return list(page_of_entries(connection, self._ids.of(connection, pipeline), after))

    def states(self, pipeline: str) -> Snapshot:
        """The live states of all producers that have consumed anything, and their position."""
        with translated(pipeline=pipeline, doing="reading the live states"), one_view(self._engine) as connection:
            found = get_pipeline(connection, pipeline)
            now = connection.execute(SQL["database_now"]).scalar_one()
            rows = connection.execute(SQL["live_states"], {"pipeline_id": found.pipeline_id})
            states = {row.producer_id: state_in(row) for row in rows}
        return Snapshot(pipeline=pipeline, position=found.position, taken_at=now, states=states)

    def id_of(self, pipeline: str) -> int:
        """The number of a pipeline."""
        if (known := self._ids.known(pipeline)) is not None:
            return known
        with transaction(self._engine, pipeline, doing="reading the ledger") as connection:
            return self._ids.of(connection, pipeline)


def _log_commit(commit: AnyCommit, position: Position) -> None:
    event(
        "committed",
        level=logging.DEBUG,
        pipeline=commit.session.pipeline,
        batch=commit.batch,
        session=commit.session.name,
        position=position,
        rows=commit.counts.loaded,
    )


def _log_discarded(settlement: Settlement[Connection], position: Position) -> None:
    event(
        "records_discarded",
        pipeline=settlement.session.pipeline,
        batch=settlement.batch,
        session=settlement.session.name,
        position=position,
        records=len(settlement.records),
    )


def one_view(engine: Engine) -> Connection:
    """A connection whose statements all read one snapshot of the database."""
    return engine.connect().execution_options(isolation_level="REPEATABLE READ")
