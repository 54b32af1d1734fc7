"""All staged rows of a batch, and all that they prove, in one commit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import (
    AlreadyConsumed,
    CommitOutcomeUnknown,
    DatabaseLost,
    NeedsAPerson,
    PipelineBusy,
    RowsRefused,
)
from dedup_core.names import ProducerId
from dedup_core.ports import Advance, Claim, Commit
from dedup_core.postgres import BulkCommit, PostgresLedger
from dedup_core.postgres.connection import CONCURRENT_CHANGE, first_line
from dedup_core.replay import Condition, Counts
from dedup_core.spans import SpanSet
from spark_jobs.columns import Column
from spark_jobs.copy import quoted, run
from spark_jobs.declared import Target, Write
from spark_jobs.dedupe import WORK_MEMORY, new_rows
from spark_jobs.limits import check_quarantine
from spark_jobs.loading import Job, Patience, Replacement
from spark_jobs.plan import Note
from spark_jobs.replace import replace_rows
from spark_jobs.sources.records import PRODUCER_ID, SEQUENCE
from spark_jobs.stage import Stage, StagedPart, check_kept
from spark_jobs.target import count_written, table_name, undeclared_columns
from spark_jobs.transform import TransformRefused
from spark_jobs.write import ColumnsDiffer, Writer, arrived, is_of_rows


@dataclass(eq=False)
class BatchIncomplete(NeedsAPerson):
    """A batch that is published whole or not at all, and of which a part could not be staged."""

    pipeline: str
    batch: str
    tries: int
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: a part of batch {self.batch} failed {self.tries} times, last with: "
            f"{self.reason}; nothing was published, because this batch is published completely or not at all. Fix the "
            "cause, and load again."
        )


def publish(
    engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage, parts: Sequence[StagedPart], *, claim: Claim
) -> None:
    """Commit until it is certain that it took effect."""
    read = merged(parts)
    if not read:
        return
    quarantined = tuple(record for part in parts for record in part.quarantined)
    staged, records = sum(part.rows for part in parts), sum(part.records for part in parts)
    check_quarantine(job.declared, quarantined, records=records + len(quarantined))
    ids = {advance.producer_id for advance in read}
    replaced = [replacement.old for new, replacement in job.replaced.items() if new in ids]
    read += tuple(Advance(producer_id=old, spans=SpanSet(), condition=Condition.REPLACED) for old in replaced)
    probe = next((advance for advance in read if advance.spans), None)
    patience = Patience()
    with new_rows(engine, ledger, job, stage) as sieve:
        while True:
            new = patience.until_answered(partial(sieve.sift, read, staged=staged))
            commit: Commit[Connection] = (Commit if new.offered is None else partial(BulkCommit, offered=new.offered))(
                session=job.session,
                batch=job.batch,
                advances=new.advances,
                write_rows=partial(
                    _write, job=job, stage=stage, parts=len(parts), source=new.source, replaced=replaced
                ),
                claim=claim,
                counts=Counts(
                    loaded=new.count,
                    duplicate=staged - new.count,
                    quarantined=len(quarantined),
                    # A transform may also make several rows of one record; then nothing was filtered out.
                    filtered=max(0, records - staged),
                ),
                bytes=sum(part.bytes for part in parts),
                message_ids=new.message_ids,
                quarantined=quarantined,
                run=job.run,
            )
            try:
                with _refusing_rows(job):
                    ledger.commit(commit)
            except ColumnsDiffer as error:
                # Another run has just added them; the next one reads what they take.
                raise PipelineBusy(job.declared.name, CONCURRENT_CHANGE) from error
            except AlreadyConsumed as error:
                # Of records that say who they are, another run may have brought some; of files, only a stranger.
                if not job.names_records:
                    raise
                patience.wait(error)
            except (CommitOutcomeUnknown, DatabaseLost, PipelineBusy) as error:
                patience.wait(error)
                if probe and patience.until_answered(partial(_took_effect, ledger, job, probe)):
                    return
            else:
                return


@contextmanager
def _refusing_rows(job: Job) -> Iterator[None]:
    """Say of a batch that it is the target's own rules, or its triggers, that do not take it."""
    try:
        yield
    except DBAPIError as error:
        if not is_of_rows(error):
            raise
        raise RowsRefused(job.declared.name, table_name(job.declared.target), first_line(error)) from error


def half_read(job: Job, parts: Sequence[StagedPart], notes: Sequence[Note]) -> dict[ProducerId, Replacement]:
    """The new generations that were not read whole: they must not take the place of rows that were."""
    read = {advance.producer_id: advance for advance in merged(parts)}
    noted = {note.name for note in notes}
    return {
        new: replacement
        for new, replacement in job.replaced.items()
        if new in read and (replacement.name in noted or not replacement.is_whole(read[new]))
    }


def _took_effect(ledger: PostgresLedger, job: Job, advance: Advance) -> bool:
    """A commit is there whole or not at all, so that one of its spans tells."""
    known = ledger.know(job.session, [advance.producer_id])
    return known[advance.producer_id].state.consumed.covers(advance.spans)


def merged(parts: Sequence[StagedPart]) -> tuple[Advance, ...]:
    """One advance for each producer: what its parts proved, in their order."""
    in_order = sorted(
        (advance for part in parts for advance in part.advances),
        key=lambda advance: (advance.producer_id, advance.spans.end if advance.spans else -1),
    )
    return tuple(_merge(list(some)) for _, some in groupby(in_order, key=lambda advance: advance.producer_id))


def _merge(advances: list[Advance]) -> Advance:
    spans = SpanSet(span for advance in advances for span in advance.spans)
    digest = b"".join(advance.digest or b"" for advance in advances)
    rows, records = sum(advance.rows for advance in advances), sum(advance.records for advance in advances)
    return replace(advances[-1], spans=spans, rows=rows, records=records, digest=digest)


def _write(
    connection: Connection, *, job: Job, stage: Stage, parts: int, source: str, replaced: Sequence[ProducerId]
) -> int:
    check_kept(connection, stage, parts)
    run(connection, WORK_MEMORY)
    target = job.declared.target
    added = undeclared_columns(connection, stage.rows, known=[column.name for column in job.written])
    writer = Writer.into_target(target, job.written).adding(added)
    # Here the server's own words are still at hand.
    with _refusing_rows(job):
        writer.add_columns(connection)
        enter = partial(_enter, connection, job, source, writer.columns)
        return replace_rows(connection, job, replaced, enter) if replaced else enter()


def _enter(connection: Connection, job: Job, source: str, columns: tuple[Column, ...]) -> int:
    """Bring the new rows into the target; how many of them are in, by the server's count."""
    target = job.declared.target
    match target.write:
        case Write.APPEND:
            return _append(connection, target, source, columns)
        case Write.MERGE:
            if job.declared.transform is not None:
                _refuse_twice(connection, job, source)
            return merge_in(connection, target, source, columns)


def _refuse_twice(connection: Connection, job: Job, source: str) -> None:
    """Of rows of one key that one record made, or that do not tell their record, nobody knows which is the last."""
    key = ", ".join(map(quoted, job.declared.target.key))
    record = f"{PRODUCER_ID}, {SEQUENCE}"
    if (
        run(connection, f"SELECT FROM {source} GROUP BY {key}, {record} HAVING count(*) > 1 LIMIT 1").first()
        is not None
    ):
        raise TransformRefused(
            job.declared.name,
            f"several rows of one key ({', '.join(job.declared.target.key)}), and nothing tells which is the last:"
            f" select {PRODUCER_ID} and {SEQUENCE} and make at most one row of each key from a record, or group by the"
            " key",
        )


def _append(connection: Connection, target: Target, source: str, columns: tuple[Column, ...]) -> int:
    names = ", ".join(map(quoted, Writer.into_target(target, columns).names))
    table, arriving = table_name(target), f"SELECT {arrived(columns, lineage=target.lineage)} FROM {source}"
    return count_written(
        connection, table, lambda: run(connection, f"INSERT INTO {table} ({names}) {arriving}").rowcount
    )


def merge_in(
    connection: Connection, target: Target, source: str, columns: tuple[Column, ...], *, late: bool = False
) -> int:
    """The last record of each key wins: inside the batch, and against a row that the same producer left earlier.

    Returns how many rows of the source are merged; a trigger of the target may have discarded some.
    """
    table, key = table_name(target), ", ".join(map(quoted, target.key))
    run(
        connection,
        f"CREATE TEMPORARY TABLE latest ON COMMIT DROP AS SELECT DISTINCT ON ({key}) * FROM {source}"
        f" ORDER BY {key}, {PRODUCER_ID} DESC, {SEQUENCE} DESC",
    )
    is_newer = f"there.{PRODUCER_ID} IS DISTINCT FROM latest.{PRODUCER_ID} OR there.{SEQUENCE} < latest.{SEQUENCE}"
    if late:
        # Whose turn it was is told by its number alone, also beside a row that comes just now.
        is_newer = (
            f"coalesce((there.{PRODUCER_ID}, there.{SEQUENCE}) < (latest.{PRODUCER_ID}, latest.{SEQUENCE}), true)"
        )
    if not target.lineage:
        is_newer = "true"
    kept, undeleted = "true", 0
    if target.deleted:
        kept = f"latest.{quoted(target.deleted)} IS NOT TRUE"
        gone = f"{_same_key(target)} AND latest.{quoted(target.deleted)} AND ({is_newer})"
        # Locked, these rows are there until they are deleted, whatever others commit meanwhile.
        found = f"SELECT FROM {table} AS there JOIN latest ON {gone} FOR UPDATE OF there"
        undeleted = run(connection, f"WITH found AS ({found}) SELECT count(*) FROM found").scalar_one()
        undeleted -= run(connection, f"DELETE FROM {table} AS there USING latest WHERE {gone}").rowcount
    names = Writer.into_target(target, columns).names
    changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in target.key)
    guard, first = is_newer.replace("latest.", "excluded."), quoted(target.key[0])
    insert = (
        f"INSERT INTO {table} AS there ({', '.join(map(quoted, names))})"
        f" SELECT {arrived(columns, lineage=target.lineage)} FROM latest WHERE {kept}"
        f" ON CONFLICT ({key}) DO UPDATE SET {changed or f'{first} = excluded.{first}'} WHERE {guard}"
    )
    written = count_written(connection, table, lambda: run(connection, insert).rowcount)
    rows: int = run(connection, f"SELECT count(*) FROM {source}").scalar_one()
    return rows - max(0, undeleted) - _unwritten(connection, target, is_newer, kept=kept, written=written)


def _same_key(target: Target) -> str:
    return " AND ".join(f"there.{quoted(name)} = latest.{quoted(name)}" for name in target.key)


def _unwritten(connection: Connection, target: Target, is_newer: str, *, kept: str, written: int) -> int:
    """How many of the latest rows the server has not written, though no newer row of their key is there."""
    expected: int = run(connection, f"SELECT count(*) FROM latest WHERE {kept}").scalar_one()
    if written == expected or not target.lineage:
        return expected - written
    # Rows that this transaction has written are no reason for others to stay away.
    run(connection, "ANALYZE latest")
    late = run(
        connection,
        f"SELECT count(*) FROM latest JOIN {table_name(target)} AS there ON {_same_key(target)}"
        f" WHERE {kept} AND NOT ({is_newer}) AND there.xmin <> CAST(pg_current_xact_id() AS xid)",
    )
    return expected - written - int(late.scalar_one())
