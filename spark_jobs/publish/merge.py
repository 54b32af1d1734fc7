"""Rows that go to the target by their key."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from sqlalchemy import Connection

from dedup_core.ports import Advance
from dedup_core.spans import SpanSet
from spark_jobs.batch.job import Job, TransformRefused
from spark_jobs.batch.parts import StagedPart
from spark_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column
from spark_jobs.pipeline.declared import Target
from spark_jobs.write.sql import quoted, run, table_name
from spark_jobs.write.target import count_written
from spark_jobs.write.writer import Writer, arrived


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


def refuse_twice(connection: Connection, job: Job, source: str) -> None:
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
