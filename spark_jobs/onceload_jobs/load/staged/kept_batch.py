"""Audit, publish or give up a batch that was staged and kept.

Each may be called again, by any process, at any time, and concurrently: at most one commit publishes a stage.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from shlex import quote

from sqlalchemy import Engine

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import (
    AlreadyConsumed,
    CallAgain,
    DeliveryTakenAway,
    ExitCode,
    NeedsAPerson,
    OnceloadError,
    WrongUse,
)
from onceload_core.names import Batch, Position
from onceload_core.postgres import PostgresLedger, connect
from onceload_core.postgres.batches import STAGE_KEPT_S, Audit, KeptBatch, PostgresBatches
from onceload_core.postgres.connection import translated
from onceload_core.postgres.pausing import refuse_paused
from onceload_core.postgres.sessions import check_own_name
from onceload_core.replay import Run
from onceload_jobs.batch.job import Job, with_lineage_of
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage import PublishInput, Stage, StageLost, drop_stage, publish_input_of
from onceload_jobs.load.load import refuse_direct, snapshot_if_due
from onceload_jobs.load.recorded import recorded
from onceload_jobs.load.report import Phase, Report, Stopwatch, report_of
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.overtaking import goes_on
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish.table_road import publish
from onceload_jobs.quality.audit import audit_stage, check
from onceload_jobs.work.progress import repeated
from onceload_jobs.write.codec import OtherRelease
from onceload_jobs.write.writer import ColumnsDiffer

#: How often a kept stage is renewed while it may be kept.
_RENEWALS = 60


@dataclass(eq=False)
class NothingKept(CallAgain):
    """This batch has no stage, and was not published."""

    pipeline: str
    batch: str
    found: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: batch {self.batch} cannot be published: {self.found}. Nothing of it was "
            f"published, and the next load plans the same records again. Run `onceload load {PIPELINE_FILE}`, or stage "
            f"the batch again under the same name with `onceload stage {PIPELINE_FILE} --batch={quote(self.batch)}`."
        )


@dataclass(eq=False)
class NotAudited(WrongUse):
    """A batch of a pipeline with a suite was not audited yet."""

    pipeline: str
    batch: str
    suite: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: batch {self.batch} was not published, because it was not audited with suite "
            f"{self.suite}. It stays staged. First run `onceload audit {PIPELINE_FILE} --batch={quote(self.batch)}`."
        )


@dataclass(eq=False)
class SealedLineContinued(NeedsAPerson):
    """A last line that counted as sealed when its batch was staged has grown since."""

    pipeline: str
    batch: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: batch {self.batch} was not published, because files have grown since it was "
            f"staged, in a last line that counted as sealed (source.sealed): {', '.join(self.files)}. The staged rows "
            "hold only the beginning of that line, and nothing of the batch was loaded. Give the batch up with "
            f"`onceload publish {PIPELINE_FILE} --batch={quote(self.batch)} --give-up`, and load again."
        )


@dataclass(frozen=True, kw_only=True)
class _OpenedBatch:
    """A kept batch with everything needed to publish it."""

    job: Job
    stage: Stage
    pieces: tuple[Piece, ...]
    kept: KeptBatch
    publish_input: PublishInput


def publish_batch(declared: Declared, settings: LoadSettings, *, batch: Batch, run: Run | None = None) -> Report:
    """Publish a kept batch; if it was published before, nothing changes."""
    stopwatch = Stopwatch(Phase.PUBLISH)
    with (
        _engine(declared, settings, batch, doing="publishing") as engine,
        recorded(engine, declared.name, batch, is_whole=False) as record,
        translated(pipeline=declared.name, doing=f"publishing batch {batch}"),
    ):
        ledger, batches = PostgresLedger(engine), PostgresBatches(engine, declared.name)
        try:
            with _locked(engine, declared, settings, batch, run=run) as opened:
                # A batch that is already published is reported as such, paused or not.
                refuse_paused(engine, declared.name)
                if declared.suite is not None and not opened.kept.has_passed:
                    raise NotAudited(declared.name, batch, declared.suite.name)
                if continued := sorted(
                    end.name for end in opened.publish_input.sealed if goes_on(end, declared.source)
                ):
                    raise SealedLineContinued(declared.name, batch, tuple(continued))
                before = ledger.position(declared.name)
                with _naming_the_way_out(batch):
                    publish(engine, ledger, opened.job, opened.stage, opened.pieces, claim=opened.kept.claim)
        except (NothingKept, DeliveryTakenAway, AlreadyConsumed):
            # An earlier or concurrent call published it.
            if (position := batches.published_at(batch)) is None:
                raise
            record.report = report_of(ledger, declared, batch, after=Position(position - 1))
            return record.report
        stopwatch.switch_to(Phase.END)
        drop_stage(engine, opened.kept.stage)
        notes = opened.publish_input.notes + snapshot_if_due(engine, declared.name)
        report = report_of(ledger, declared, batch, after=before)
        record.left, record.report = {}, report.timed(stopwatch).with_notes(notes + report.notes)
    return record.report


@contextmanager
def _naming_the_way_out(batch: Batch) -> Iterator[None]:
    """Add to an error that only a person can solve how to give the batch up."""
    try:
        yield
    except OnceloadError as error:
        if error.exit_code in (ExitCode.WRONG_USE, ExitCode.NEEDS_A_PERSON):
            give_it_up = f"`onceload publish {PIPELINE_FILE} --batch={quote(batch)} --give-up`"
            error.add_note(
                f"Batch {batch} stays staged, and holds its files for another hour. Publish it again when the cause is "
                f"fixed, or discard its rows with {give_it_up} and load again."
            )
        raise


def audit_batch(declared: Declared, settings: LoadSettings, *, batch: Batch) -> Audit:
    """Audit a kept batch; if it fails, give it up, and keep its rows for inspection."""
    with _engine(declared, settings, batch, doing="auditing") as engine:
        batches = PostgresBatches(engine, declared.name)
        with _locked(engine, declared, settings, batch, run=None) as opened:
            audit = audit_stage(engine, opened.job, opened.stage, opened.pieces, docs=settings.docs)
            if not audit.passed:
                # The next load plans the same records again.
                batches.give_up(opened.kept)
        check(audit, opened.job, opened.stage)
    return audit


def give_up(declared: Declared, settings: LoadSettings, *, batch: Batch) -> bool:
    """Release a kept batch, or the rows of one that failed its audit, so that the next load plans its records again.

    Return whether there was one.
    """
    with _engine(declared, settings, batch, doing="giving up") as engine:
        batches = PostgresBatches(engine, declared.name)
        stages: list[str] = []
        # Another run may stage the batch again meanwhile.
        while not stages and (found := batches.find(batch)) is not None:
            with batches.alone_with(found):
                # The previous holder may have published it.
                kept = batches.find(batch)
                if kept is not None and kept.stage == found.stage:
                    batches.give_up(kept)
                    stages.append(kept.stage)
        stages += batches.drop_evidence(batch)
        for stage in stages:
            drop_stage(engine, stage)
    return bool(stages)


@contextmanager
def _engine(declared: Declared, settings: LoadSettings, batch: Batch, *, doing: str) -> Iterator[Engine]:
    check_own_name("batch", batch)
    refuse_direct(declared, doing=doing)
    engine = connect(settings.ledger)
    try:
        with translated(pipeline=declared.name, doing=f"{doing} batch {batch}"):
            yield engine
    finally:
        engine.dispose()


@contextmanager
def _locked(
    engine: Engine, declared: Declared, settings: LoadSettings, batch: Batch, *, run: Run | None
) -> Iterator[_OpenedBatch]:
    """Hold a kept batch while the block runs."""
    batches = PostgresBatches(engine, declared.name)
    if (found := batches.find(batch)) is None:
        raise NothingKept(declared.name, batch, "it is not staged")
    with batches.alone_with(found):
        # The previous holder may have published it, or given it up.
        kept = batches.find(batch, asked=declared.suite.digest if declared.suite else None)
        if kept is None or kept.stage != found.stage:
            raise NothingKept(declared.name, batch, "it is not staged")
        try:
            with _opened(engine, declared, settings, kept, batch=batch, run=run) as opened:
                yield opened
        except (StageLost, OtherRelease, ColumnsDiffer, AlreadyConsumed) as error:
            found_now = _why_not_publishable(declared, error)
            if found_now is None:
                raise
            # It can no longer be published, so release its files.
            batches.give_up(kept)
            raise NothingKept(declared.name, batch, found_now) from error


def _why_not_publishable(declared: Declared, error: Exception) -> str | None:
    match error:
        case StageLost():
            return "its stage is empty, because the server crashed or a standby took over"
        case OtherRelease():
            return "another release of Onceload staged it"
        case AlreadyConsumed() if declared.producer is not None or declared.message_id is not None:
            return "another load has loaded some of its records since it was staged"
        case ColumnsDiffer():
            return str(error)
        case _:
            return None


@contextmanager
def _opened(
    engine: Engine, declared: Declared, settings: LoadSettings, kept: KeptBatch, *, batch: Batch, run: Run | None
) -> Iterator[_OpenedBatch]:
    batches = PostgresBatches(engine, declared.name)
    version = PostgresLedger(engine).find_version(pipeline_with_declaration(declared))
    if version != kept.claim.session.version:
        batches.give_up(kept)
        raise NothingKept(declared.name, batch, "the pipeline file was edited after the batch was staged")
    keep_on = partial(batches.keep, kept.claim, stage=kept.stage)
    # Other loads of the same files wait until this is released.
    keep_on()
    with repeated(keep_on, every_s=STAGE_KEPT_S / _RENEWALS):
        stage = Stage.called(kept.stage, (), declared.target, lineage=True)
        publish_input, pieces = publish_input_of(engine, declared.name, stage)
        declared = with_lineage_of(declared, has_lineage=publish_input.has_lineage)
        stage = Stage.called(kept.stage, publish_input.written, declared.target, lineage=publish_input.has_lineage)
        job = Job(
            declared=declared,
            columns=publish_input.written,
            written=publish_input.written,
            ledger=settings.ledger,
            session=kept.claim.session,
            batch=batch,
            run=run,
            replaced=publish_input.replaced,
            differences_accepted=settings.differences_accepted,
            has_lineage=publish_input.has_lineage,
            engine=publish_input.engine,
            spark_ui=publish_input.spark_ui,
        )
        yield _OpenedBatch(job=job, stage=stage, pieces=pieces, kept=kept, publish_input=publish_input)
