"""Merge rows into the target by key."""

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
    """One advance per producer, with the proofs of its parts in order."""
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
    """Refuse several rows with one key and one record, or without lineage: their order is unknown."""
    key = ", ".join(map(quoted, job.declared.target.key))
    record = f"{PRODUCER_ID}, {SEQUENCE}"
    if (
        run(connection, f"SELECT FROM {source} GROUP BY {key}, {record} HAVING count(*) > 1 LIMIT 1").first()
        is not None
    ):
        raise TransformRefused(
            job.declared.name,
            f"several rows have the same key ({', '.join(job.declared.target.key)}), and which one is the last is"
            f" unknown. Select {PRODUCER_ID} and {SEQUENCE} and make at most one row per key from each record, or group"
            " by the key",
        )


def merge_in(
    connection: Connection, target: Target, source: str, columns: tuple[Column, ...], *, late: bool = False
) -> int:
    """The last record of each key wins, in the batch and against an earlier row of the same producer.

    Return how many rows of the source are merged; a trigger of the target may have discarded some.
    """
    table, key = table_name(target), ", ".join(map(quoted, target.key))
    run(
        connection,
        f"CREATE TEMPORARY TABLE latest ON COMMIT DROP AS SELECT DISTINCT ON ({key}) * FROM {source}"
        f" ORDER BY {key}, {PRODUCER_ID} DESC, {SEQUENCE} DESC",
    )
    is_newer = f"there.{PRODUCER_ID} IS DISTINCT FROM latest.{PRODUCER_ID} OR there.{SEQUENCE} < latest.{SEQUENCE}"
    if late:
        # The number of a record alone decides its order, also against a row written concurrently.
        is_newer = (
            f"coalesce((there.{PRODUCER_ID}, there.{SEQUENCE}) < (latest.{PRODUCER_ID}, latest.{SEQUENCE}), true)"
        )
    if not target.lineage:
        is_newer = "true"
    kept, undeleted = "true", 0
    if target.deleted:
        kept = f"latest.{quoted(target.deleted)} IS NOT TRUE"
        gone = f"{_same_key(target)} AND latest.{quoted(target.deleted)} AND ({is_newer})"
        # The lock keeps these rows until they are deleted, whatever other transactions commit.
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
    """How many of the latest rows the server did not write, although no newer row of their key exists."""
    expected: int = run(connection, f"SELECT count(*) FROM latest WHERE {kept}").scalar_one()
    if written == expected or not target.lineage:
        return expected - written
    # Rows of this transaction do not explain why others were not written.
    run(connection, "ANALYZE latest")
    late = run(
        connection,
        f"SELECT count(*) FROM latest JOIN {table_name(target)} AS there ON {_same_key(target)}"
        f" WHERE {kept} AND NOT ({is_newer}) AND there.xmin <> CAST(pg_current_xact_id() AS xid)",
    )
    return expected - written - int(late.scalar_one())
