"""The shared state of one load: its batch, its planning session, its ledger, its job, and what runs its workers."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

from sqlalchemy import Engine as DatabaseEngine

from onceload_core.errors import SettingRefused
from onceload_core.names import Batch
from onceload_core.ports import Claim, Outlook
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.batches import planner_of
from onceload_core.postgres.deliveries import OpenWork, PostgresDeliveries
from onceload_core.replay import Run
from onceload_jobs.batch.job import Job
from onceload_jobs.executor.executor import Executor
from onceload_jobs.executor.local import LocalExecutor
from onceload_jobs.files.addresses import is_of_s3, known_access
from onceload_jobs.files.notes import Note
from onceload_jobs.load.report import Phase, Stopwatch
from onceload_jobs.load.settings import Engine, LoadSettings, Ran
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.bundles import offers_of
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish.postgres_transform import with_made_columns
from onceload_jobs.work.parts import Culprit
from onceload_jobs.work.progress import Waiting, Watch
from onceload_jobs.work.session import BEATS_PER_LEASE
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.rights import check_schema
from onceload_jobs.write.sql import table_name
from onceload_jobs.write.target import check_target, columns_to_read, ensure_target

if TYPE_CHECKING:
    from onceload_jobs.work.spark.spark import Spark


class LoadContext:
    """One call of a batch, while no other call runs under its name."""

    #: How the target table was changed.
    notes: tuple[Note, ...] = ()
    #: Rows that wait to be published by another call; None if there are none.
    kept: int | None = None
    _have_worked = False

    def __init__(
        self,
        declared: Declared,
        settings: LoadSettings,
        engine: DatabaseEngine,
        *,
        batch: Batch,
        run: Run | None,
        executor: Executor | None,
        running: ExitStack,
    ) -> None:
        self.declared, self.settings, self.engine, self.batch, self.run = declared, settings, engine, batch, run
        #: The executor of the caller, or what ends ours.
        self._given, self._running = executor, running
        self.stopwatch, self.watch = Stopwatch(), Watch(settings.on_progress)
        self.ledger = PostgresLedger(engine)
        check_schema(engine, declared)
        version = self.ledger.declare(
            pipeline_with_declaration(declared), version=settings.version, may_be_paused=False
        )
        self._is_target_recorded = check_target(engine, self.ledger, declared)
        pipeline_id = self.ledger.id_of(declared.name)
        self.board = PostgresDeliveries(engine, declared.name, declared.delivery, pipeline_id=pipeline_id)
        # First release everything that an earlier epoch under this name still holds.
        self.board.end_earlier(batch, reason=f"a later run of batch {batch} took over")
        opened = self.ledger.open_session_of_load(declared.name, planner_of(batch), version=version)
        #: The position of the pipeline at the start.
        self.session, self.before = opened.session, opened.position
        self.is_snapshot_due = declared.pipeline.snapshot.is_due(
            commits_since=opened.commits_since, seconds_since=opened.seconds_since
        )
        #: How often a lease is renewed.
        self.beat_s: float = declared.delivery.ack_deadline_s / BEATS_PER_LEASE
        is_consumer = settings.session is not None
        #: Whether deliveries are handed out to sessions: where they have an order, and to consumers.
        self.uses_board = declared.is_direct and (declared.keeps_order or is_consumer)
        #: Whether this is one of the fixed sessions, which only takes its own deliveries.
        self.has_own_line = declared.has_fixed_sessions and is_consumer
        self.ran = settings.chosen(needs_spark=declared.needs_spark)

    def renew(self) -> None:
        self.ledger.renew(self.session, lease_s=self.declared.delivery.ack_deadline_s)

    @property
    def is_stopped(self) -> bool:
        return self.settings.is_stopped()

    def left(self) -> OpenWork:
        return until_answered(partial(self.board.open_work, self.batch, session=self.settings.session))

    def outlook(self) -> Outlook:
        return until_answered(partial(self.ledger.outlook, self.declared.name))

    def set_aside(self, claim: Claim, culprits: Sequence[Culprit]) -> None:
        """Make dead letters of chunks that failed in all of their tries."""
        for culprit in culprits:
            (offer,) = offers_of([(culprit.chunk,)])
            until_answered(partial(self.board.set_aside, claim, offer, batch=self.batch, reasons=culprit.reasons))

    @cached_property
    def job(self) -> Job:
        """The job of all workers; the first look creates or changes the target table if needed."""
        declared, settings, engine = self.declared, self.settings, self.engine
        columns = columns_to_read(engine, declared)
        job = Job(
            declared=declared,
            columns=columns,
            written=columns,
            ledger=settings.ledger,
            session=self.session,
            batch=self.batch,
            run=self.run,
            engine=str(self.ran) if self._given is None else None,
            spark_ui=settings.remote_ui,
            wait_s=settings.wait_s,
            differences_accepted=settings.differences_accepted,
            access=known_access() if is_of_s3(declared.source.path) else {},
        )
        if declared.is_made_by_postgres:
            job = with_made_columns(engine, job)
        if declared.needs_spark:
            job = self.spark.writing(job)
        replaces = settings.choice.replaces
        if replaces and not job.has_lineage:
            found = "a transform without them, so the old rows would stay beside the new ones"
            expected = f"{PRODUCER_ID} and {SEQUENCE} among the columns of the transform"
            raise SettingRefused(f"replacing rows of pipeline {declared.name}", found, expected)
        changes = evolve_target(engine, declared, self.session, columns=job.written)
        self.notes = tuple(Note(name=table_name(declared.target), reason=each.outcome) for each in changes)
        is_recorded = self._is_target_recorded
        ensure_target(engine, declared, columns=job.written, is_recorded=is_recorded, replaces=replaces)
        return job

    @cached_property
    def executor(self) -> Executor:
        """What runs the workers."""
        self._have_worked = True
        if self._given is not None:
            return self._given
        if self.ran.engine is Engine.SPARK:
            return self.spark
        return self._running.enter_context(closing(LocalExecutor()))

    @cached_property
    def spark(self) -> "Spark":
        self._have_worked = True
        if self._given is not None:
            return cast("Spark", self._given)
        if self.settings.engine is Engine.LOCAL:
            found = "local, for a pipeline with a transform in Spark SQL"
            raise SettingRefused("--engine", found, "spark or auto, because only Spark runs it")
        self.report_waiting("Spark to start")
        with self.stopwatch.during(Phase.START):
            tries = self.declared.delivery.deliveries_max
            started = self.settings.spark(self.declared.name, batch=self.batch, tries=tries)
            spark = self._running.enter_context(started)
        self.ran = replace(self.ran, ui=self.ran.ui or spark.ui)
        return spark

    @property
    def has_run(self) -> Ran | None:
        """What ran the workers, if there was work for them."""
        return self.ran if self._have_worked and self._given is None else None

    def report_waiting(self, waits_for: str) -> None:
        if (on_progress := self.settings.on_progress) is not None:
            with suppress(OSError):
                on_progress(Waiting(waits_for=waits_for))

    def watching_commits(self) -> AbstractContextManager[None]:
        """Report what workers commit while the block runs."""
        return self.watch.watching(self._committed)

    def _committed(self) -> tuple[int, int]:
        """The bytes and the records so far."""
        outcome = self.ledger.outcome_of(self.declared.name, self.batch, after=self.before)
        counts = outcome.counts
        return outcome.bytes, counts.loaded + counts.duplicate + counts.quarantined
