"""One load: plan, claim, let Spark's tasks read and write, and say what the ledger says.

Nothing here decides whether rows are new: the claims keep others from doing the same work, and every commit is
refused by the ledger if any part of it took effect before. A load that is killed anywhere may just be called again.
"""

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol
from uuid import uuid4

from sqlalchemy import Connection, Engine

from dedup_core.errors import AlreadyConsumed, ClaimedElsewhere, DatabaseLost, OnceloadError
from dedup_core.names import Batch, Position, ProducerId, SessionName
from dedup_core.pipeline import Guarantee
from dedup_core.ports import Advance, Claim, Commit, Outlook, Session
from dedup_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect
from dedup_core.postgres.connection import translated
from dedup_core.replay import Counts, Run
from dedup_core.spans import SEQUENCE_END, Span, SpanSet
from spark_jobs.columns import Column
from spark_jobs.declared import Declared, Format, Source, UnknownFields
from spark_jobs.loading import Delivery, Job, Patience, Replacement
from spark_jobs.plan import FileToRead, Note, Plan, depends_on_others, is_stream, make_plan
from spark_jobs.progress import Progress, WatchedTasks
from spark_jobs.publish import half_read, publish
from spark_jobs.sources.files import read_at
from spark_jobs.sources.pieces import cuts, find_newline
from spark_jobs.sources.records import Chunk
from spark_jobs.stage import Stage, StagedPart, StageLost, is_whole, open_stage, staged_parts
from spark_jobs.target import ensure_target, refuse_another_target, table_name, undeclared_columns
from spark_jobs.twins import Twin


class Tasks(Protocol):
    """Where the work is done."""

    def run(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        """Run each delivery at least once, and say what could not be read."""

    def writing(self, job: Job) -> Job:
        """The job, with the columns that it will write."""


_LEASE_S = 120.0
_BEATS_PER_LEASE = 4
#: A crash of the server empties what is unlogged; the next staging then starts from nothing.
_STAGINGS_MAX = 5


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """Where a load runs, and on which database."""

    ledger: LedgerSettings
    switch: Guarantee = Guarantee.EXACTLY_ONCE
    #: Left out, this machine.
    master: str | None = None
    spark_options: Mapping[str, str] = field(default_factory=dict)
    #: Told every second how far the load is.
    tell: Callable[[Progress], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a load did, as the ledger says."""

    pipeline: str
    batch: Batch
    position: Position
    loaded: int = 0
    duplicates: int = 0
    quarantined: int = 0
    filtered: int = 0
    bytes: int = 0
    seconds: float = 0.0
    session_start_seconds: float = 0.0
    notes: tuple[Note, ...] = ()

    @property
    def records(self) -> int:
        """How many were read, whatever became of them."""
        return self.loaded + self.duplicates + self.quarantined + self.filtered

    @property
    def rows_per_s(self) -> int:
        return round(self.loaded / self.seconds) if self.seconds else 0


def new_batch() -> Batch:
    """A name for what one run loads, for those who have none."""
    return Batch(f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}")


def load(
    declared: Declared, settings: LoadSettings, *, batch: Batch, run: Run | None = None, tasks: Tasks | None = None
) -> Report:
    """Load what is new; nothing new takes no Spark."""
    engine = connect(settings.ledger)
    try:
        with translated(pipeline=declared.name, doing=f"loading {declared.name}"):
            return _load(declared, settings, engine, batch=batch, run=run, tasks=tasks)
    finally:
        engine.dispose()


def _load(
    declared: Declared,
    settings: LoadSettings,
    engine: Engine,
    *,
    batch: Batch,
    run: Run | None,
    tasks: Tasks | None,
) -> Report:
    started = time.monotonic()
    ledger = PostgresLedger(engine, switch=settings.switch)
    ledger.declare(declared.pipeline)
    refuse_another_target(engine, ledger, declared)
    # First of all, whatever an earlier life under this name still holds falls back, and is planned anew.
    session = ledger.open_session(declared.name, SessionName(batch))
    plan = make_plan(declared, ledger, now_s=time.time())
    before = plan.outlook.position
    if not plan.to_read:
        seconds = time.monotonic() - started
        return Report(pipeline=declared.name, batch=batch, position=before, notes=plan.notes, seconds=seconds)
    columns = _columns(declared)
    if declared.unknown_fields is UnknownFields.ADD:
        with engine.begin() as connection:
            known = [column.name for column in columns]
            columns += undeclared_columns(connection, table_name(declared.target), known=known)
    job = Job(
        declared=declared,
        columns=columns,
        written=columns,
        ledger=settings.ledger,
        switch=settings.switch,
        session=session,
        batch=batch,
        run=run,
    )
    starting_s, notes = _load_all(engine, ledger, job, plan, settings=settings, tasks=tasks)
    PostgresSnapshots(engine).take_if_due(declared.name, now=datetime.now(UTC))
    return replace(
        _report(ledger, job, after=before),
        seconds=time.monotonic() - started - starting_s,
        session_start_seconds=starting_s,
        notes=(*plan.notes, *notes),
    )


def _load_all(
    engine: Engine,
    ledger: PostgresLedger,
    job: Job,
    plan: Plan,
    *,
    settings: LoadSettings,
    tasks: Tasks | None,
) -> tuple[float, list[Note]]:
    """Claim what is planned, and let tasks load it; answers with the time that their start took."""
    ids = ledger.register(job.declared.name, [(file.listed.name, file.generation) for file in plan.to_read])
    replaced = {
        ids[file.listed.name, file.generation]: Replacement(
            old=file.replaces,
            name=file.listed.name,
            planned=SpanSet(Span(first, end) for first, end in file.spans if end is not None),
        )
        for file in plan.to_read
        if file.replaces is not None
    }
    job = replace(job, replaced=replaced)
    twins = {ids[file.listed.name, file.generation]: file.twin for file in plan.to_read if file.twin}
    claims = _Claims(ledger, job, plan.outlook)
    with (
        _claimed(claims, twins, _bundles(job.declared, plan.to_read, ids)) as (deliveries, notes),
        ExitStack() as running,
    ):
        _note(ledger, job, twins)
        if not deliveries:
            return 0.0, notes
        starting = time.monotonic()
        if tasks is None:
            from spark_jobs.spark import SparkTasks

            spark = SparkTasks.started(job.declared.name, settings.master, settings.spark_options)
            tasks = running.enter_context(spark)
        starting_s = time.monotonic() - starting
        if settings.tell:
            tasks = WatchedTasks(tasks, settings.tell, after=ledger.position(job.declared.name))
        job = tasks.writing(job)
        ensure_target(engine, job.declared, columns=job.written)
        if job.is_direct:
            return starting_s, notes + tasks.run(job, deliveries)
        return starting_s, notes + _run_staged(engine, ledger, job, tasks, deliveries)


def _columns(declared: Declared) -> tuple[Column, ...]:
    """What rows are found by may not be null: such a record is quarantined, instead of failing all of them."""
    needed = {*declared.target.key, *(declared.message_id.columns if declared.message_id else ())}
    needed |= {declared.producer.name, declared.producer.sequence} if declared.producer else set()
    return tuple(replace(column, not_null=True) if column.name in needed else column for column in declared.columns)


def _note(ledger: PostgresLedger, job: Job, twins: Mapping[ProducerId, Twin]) -> None:
    """Write down what the plan found out without reading any record."""
    # What is in under another name is consumed under this one too, and its records are duplicates.
    advances = [
        Advance(
            producer_id=producer_id,
            spans=twin.consumed,
            records=twin.records,
            digest=twin.digest,
            fingerprint=twin.fingerprint,
            size=twin.size,
            condition=twin.condition,
        )
        for producer_id, twin in twins.items()
    ]
    if advances:
        commit: Commit[Connection] = Commit(
            session=job.session,
            batch=job.batch,
            advances=tuple(advances),
            write_rows=lambda _: None,
            counts=Counts(duplicate=sum(twin.records for twin in twins.values())),
            run=job.run,
        )
        ledger.commit(commit)


@contextmanager
def _claimed(
    claims: "_Claims", noted: Iterable[ProducerId], bundles: Iterable[Sequence[Chunk]]
) -> Iterator[tuple[tuple[Delivery, ...], list[Note]]]:
    """Hold what is to be read while the block runs, so that no other run does the same work."""
    with _heartbeat(claims.ledger, claims.job.session):
        try:
            claims.only_to_note(noted)
            yield claims.each(bundles) if claims.job.is_direct else claims.at_once(bundles), claims.notes
        finally:
            claims.release()


class _Claims:
    """What commits by itself is held by itself; what is published at once is held at once."""

    def __init__(self, ledger: PostgresLedger, job: Job, outlook: Outlook) -> None:
        self.ledger = ledger
        self.job = job
        # What is in, or about to be, under another name or of an earlier turn decides what is new.
        self._unchanged = outlook if depends_on_others(job.declared) else None
        self._held: list[Claim] = []
        self.notes: list[Note] = []

    def only_to_note(self, producers: Iterable[ProducerId]) -> None:
        """Hold producers of which nothing may have to be read."""
        if spans := dict.fromkeys(producers, SpanSet()):
            self._claim(spans)

    def each(self, bundles: Iterable[Sequence[Chunk]]) -> tuple[Delivery, ...]:
        deliveries: list[Delivery] = []
        taken: set[ProducerId] = set()
        for chunks in bundles:
            try:
                claim = self._claim(_spans_of(chunks))
            except (ClaimedElsewhere, AlreadyConsumed) as refused:
                # Another run was faster; what it leaves is found by the next plan.
                self.notes += [Note(name=chunk.name, reason=str(refused)) for chunk in chunks]
                taken |= {chunk.producer_id for chunk in chunks}
            else:
                deliveries.append(Delivery(number=len(deliveries), chunks=tuple(chunks), claim=claim))
        # It may have read another content of a file, so that what stands behind need not begin with a record.
        return tuple(_without(delivery, taken) for delivery in deliveries)

    def at_once(self, bundles: Iterable[Sequence[Chunk]]) -> tuple[Delivery, ...]:
        gathered = list(bundles)
        claim = self._claim(_spans_of([chunk for chunks in gathered for chunk in chunks]))
        return tuple(
            Delivery(number=number, chunks=tuple(chunks), claim=claim) for number, chunks in enumerate(gathered)
        )

    def _claim(self, spans: Mapping[ProducerId, SpanSet]) -> Claim:
        claim = self.ledger.claim(
            self.job.session,
            spans,
            batch=self.job.batch,
            lease_s=_LEASE_S,
            unchanged=self._unchanged,
        )
        self._held.append(claim)
        return claim

    def release(self) -> None:
        """Acked ones are gone; the rest fall back now instead of when their lease ends."""
        for claim in self._held:
            with suppress(OnceloadError):
                self.ledger.release(claim)


@contextmanager
def _heartbeat(ledger: PostgresLedger, session: Session) -> Iterator[None]:
    """Renew the session's claims while the block runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_LEASE_S / _BEATS_PER_LEASE):
            # A missed beat is made good by the next; when the lease has ended, the commits are refused.
            with suppress(OnceloadError):
                ledger.renew(session, lease_s=_LEASE_S)

    thread = threading.Thread(target=beat, name="onceload heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bundles(
    declared: Declared, files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId]
) -> Iterator[list[Chunk]]:
    """Large files are cut, small ones put together: what one task takes is about as much as one commit does."""
    held: list[Chunk] = []
    held_bytes = 0
    for file in files:
        for chunk in _chunks(declared, file, ids[file.listed.name, file.generation]):
            size = (chunk.size if chunk.end is None else chunk.end) - chunk.first
            if held and held_bytes + size > declared.source.chunk_bytes:
                yield held
                held, held_bytes = [], 0
            held.append(chunk)
            held_bytes += max(size, 0)
    if held:
        yield held


def _chunks(declared: Declared, file: FileToRead, producer_id: ProducerId) -> Iterator[Chunk]:
    source, listed = declared.source, file.listed
    header = file.header or (tuple(c.name for c in declared.columns) if source.format is Format.CSV else ())
    for first, end in file.spans:
        chunk = Chunk(
            producer_id=producer_id,
            name=listed.name,
            url=listed.url,
            first=first,
            end=end,
            size=listed.size,
            sealed=file.sealed,
            expected=file.expected,
            header=header,
        )
        if end is None or is_stream(source, listed.name):
            yield chunk
        else:
            yield from _cut(source, chunk, end)


def _cut(source: Source, chunk: Chunk, end: int) -> Iterator[Chunk]:
    begins = _begins(chunk, end)
    sizes = {"chunk_bytes": source.chunk_bytes, "record_bytes_max": source.record_bytes_max}
    edges = cuts(chunk.url, first=begins, end=end, **sizes) if begins < end else [(begins, end)]
    for first, cut_end in edges:
        if first == begins and begins != chunk.first:
            yield replace(chunk, begins=begins, end=cut_end)
        else:
            yield replace(chunk, first=first, end=cut_end)


def _begins(chunk: Chunk, end: int) -> int:
    """Where the first record starts: what is left of one that took effect is none."""
    if chunk.first == 0 or read_at(chunk.url, offset=chunk.first - 1, size=1) == b"\n":
        return chunk.first
    newline = find_newline(chunk.url, first=chunk.first, end=end)
    return end if newline is None else newline + 1


def _spans_of(chunks: Sequence[Chunk]) -> dict[ProducerId, SpanSet]:
    spans: dict[ProducerId, SpanSet] = {}
    for chunk in chunks:
        span = SpanSet([Span(chunk.first, SEQUENCE_END if chunk.end is None else chunk.end)])
        spans[chunk.producer_id] = spans.get(chunk.producer_id, SpanSet()) | span
    return spans


def _run_staged(
    engine: Engine, ledger: PostgresLedger, job: Job, tasks: Tasks, deliveries: Sequence[Delivery]
) -> list[Note]:
    """Stage all of it, as often as the server loses what was staged, and publish it in one commit.

    A file that should replace what was loaded of it, and cannot be read whole, is left out, and all is staged again.
    """
    left_out: list[Note] = []
    for _ in range(_STAGINGS_MAX):
        with ExitStack() as staging:
            # A crash has left connections behind that find out only now, and nobody holds what was staged over them.
            stage = Patience().until_answered(partial(_stage, staging, engine, job))
            with suppress(StageLost):
                notes = tasks.run(replace(job, stage=stage), deliveries)
                parts = Patience().until_answered(partial(_staged_parts, engine, job, stage))
                if is_whole(parts, deliveries=len(deliveries)):
                    broken = half_read(job, parts, notes)
                    if not broken:
                        publish(engine, ledger, job, stage, parts, claim=deliveries[0].claim)
                        return left_out + notes
                    left_out += _why_old_rows_stay(broken.values(), notes)
                    deliveries = [_without(delivery, broken) for delivery in deliveries]
    raise DatabaseLost(f"staging batch {job.batch}", f"the server lost staged rows {_STAGINGS_MAX} times")


def _stage(staging: ExitStack, engine: Engine, job: Job) -> Stage:
    with translated(pipeline=job.declared.name, doing="opening a stage"):
        return staging.enter_context(open_stage(engine, job.written, job.declared.target, lineage=job.has_lineage))


def _staged_parts(engine: Engine, job: Job, stage: Stage) -> tuple[StagedPart, ...]:
    with translated(pipeline=job.declared.name, doing="looking at staged pieces"), engine.begin() as connection:
        return staged_parts(connection, stage)


def _why_old_rows_stay(broken: Iterable[Replacement], notes: Sequence[Note]) -> Iterator[Note]:
    for name in (replacement.name for replacement in broken):
        told = [note for note in notes if note.name == name] or [Note(name=name, reason="it was not read to its end")]
        yield from (note.of_no_replacement() for note in told)


def _without(delivery: Delivery, producers: Container[ProducerId]) -> Delivery:
    chunks = tuple(chunk for chunk in delivery.chunks if chunk.producer_id not in producers)
    return replace(delivery, chunks=chunks)


def _report(ledger: PostgresLedger, job: Job, *, after: Position) -> Report:
    """The ledger alone knows what took effect, whatever became of tasks and answers."""
    outcome = ledger.outcome_of(job.declared.name, job.batch, after=after)
    return Report(
        pipeline=job.declared.name,
        batch=job.batch,
        position=outcome.position,
        loaded=outcome.counts.loaded,
        duplicates=outcome.counts.duplicate,
        quarantined=outcome.counts.quarantined,
        filtered=outcome.counts.filtered,
        bytes=outcome.bytes,
    )
