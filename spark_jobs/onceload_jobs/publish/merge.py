"""Merge rows into the target by key."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, CursorResult

from onceload_core.postgres.connection import statements
from onceload_jobs.batch.job import Job, TransformRefused
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column
from onceload_jobs.pipeline.declared import Target
from onceload_jobs.write.sql import Sql, filled, listed, quoted, table_name
from onceload_jobs.write.target import count_written, refuse_altered
from onceload_jobs.write.writer import Writer, cast_to_target

SQL = statements("merge.sql", package=__package__)


def refuse_twice(connection: Connection, job: Job, source: Sql) -> None:
    """Refuse several rows with one key and one record, or without lineage: their order is unknown."""
    key = job.declared.target.key
    find = filled(SQL["find_twice"], source=source, key=listed(key))
    if connection.execute(find).first() is not None:
        raise TransformRefused(
            job.declared.name,
            # A message, and no SQL.
            f"several rows have the same key ({', '.join(key)}), and which one is the last is unknown. Select"  # noqa: S608
            f" {PRODUCER_ID} and {SEQUENCE} and make at most one row per key from each record, or group by the key",
        )


def merge_in(
    connection: Connection, target: Target, source: Sql, columns: tuple[Column, ...], *, is_late: bool = False
) -> int:
    """The last record of each key wins, in the batch and against an earlier row of the same producer.

    Each record that comes late is ordered against the existing row as in one batch. Return how many rows of the source
    are merged; a trigger of the target may have discarded some.
    """
    merge = _Merge(connection=connection, target=target, source=source, is_late=is_late)
    overtaken = merge.run("delete_overtaken").rowcount if is_late and target.lineage else 0
    # Keys of two types could not be compared.
    refuse_altered(connection, table_name(target), columns=columns, lineage=target.lineage)
    merge.run("make_latest")
    undeleted = merge.delete(marked=target.deleted) if target.deleted else 0
    written = merge.write(columns)
    rows = merge.count("count_rows")
    return overtaken + rows - max(0, undeleted) - merge.unwritten(written)


@dataclass(frozen=True, kw_only=True)
class _Merge:
    """The statements of a merge. They call a row of the target `there`, and the last row of its key `latest`."""

    connection: Connection
    target: Target
    source: Sql
    is_late: bool

    def delete(self, *, marked: str) -> int:
        """Delete the keys whose newer row is marked as deleted, and return how many rows a trigger kept."""
        is_deleted = f"{self._has_same_key} AND latest.{quoted(marked)} AND ({self.is_newer('latest')})"
        found = self.count("count_deleted", is_deleted=is_deleted)
        return found - self.run("delete", is_deleted=is_deleted).rowcount

    def write(self, columns: tuple[Column, ...]) -> int:
        """Write the other rows, and return how many the server wrote."""
        names = Writer.into_target(self.target, columns).names
        # A row of nothing but its key is written with its key, so that it counts as written.
        changing = [name for name in names if name not in self.target.key] or [self.target.key[0]]
        write = partial(
            self.run,
            "write",
            names=listed(names),
            arriving=cast_to_target(columns, lineage=self.target.lineage),
            changes=", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in changing),
            is_newer=self.is_newer("excluded"),
        )
        table, lineage = table_name(self.target), self.target.lineage
        return count_written(self.connection, table, lambda: write().rowcount, columns=columns, lineage=lineage)

    def unwritten(self, written: int) -> int:
        """How many of the latest rows the server did not write, although no newer row of their key exists."""
        expected = self.count("count_kept")
        if written == expected or not self.target.lineage:
            return expected - written
        self.run("analyze")
        return expected - written - self.count("count_overtaken", is_newer=self.is_newer("latest"))

    def is_newer(self, row: str) -> str:
        """Whether a row is newer than the one of its key in the target, as SQL."""
        if not self.target.lineage:
            return "true"
        if self.is_late:
            # The number of a record alone decides its order, also against a row written concurrently.
            return f"coalesce((there.{PRODUCER_ID}, there.{SEQUENCE}) < ({row}.{PRODUCER_ID}, {row}.{SEQUENCE}), true)"
        return f"there.{PRODUCER_ID} IS DISTINCT FROM {row}.{PRODUCER_ID} OR there.{SEQUENCE} < {row}.{SEQUENCE}"

    @property
    def _has_same_key(self) -> str:
        return " AND ".join(f"there.{quoted(name)} = latest.{quoted(name)}" for name in self.target.key)

    def count(self, statement: str, **texts: str) -> int:
        counted: int = self.run(statement, **texts).scalar_one()
        return counted

    def run(self, statement: str, **texts: str) -> CursorResult[*tuple[Any, ...]]:
        deleted = self.target.deleted
        whole = filled(
            SQL[statement],
            source=self.source,
            table=table_name(self.target),
            key=listed(self.target.key),
            has_same_key=self._has_same_key,
            is_kept=f"latest.{quoted(deleted)} IS NOT TRUE" if deleted else "true",
            **texts,
        )
        return self.connection.execute(whole)
