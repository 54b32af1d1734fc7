"""The rows that a commit selects, and how their records are distinguished."""

from dataclasses import dataclass

from sqlalchemy import Connection, TextClause

from onceload_core.postgres.connection import statements
from onceload_jobs.batch.stage import Stage, StageLost
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.write.sql import Sql, filled

SQL = statements("source.sql", package=__package__)

#: For sorts and joins of whole batches.
WORK_MEMORY = "SET LOCAL work_mem = '256MB'"


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """Rows to select from, as SQL."""

    rows: Sql
    #: The columns with the file and the position of a row's record.
    of_record: tuple[str, str] = (PRODUCER_ID, SEQUENCE)

    @property
    def counts(self) -> TextClause:
        """A statement that counts the rows by producer."""
        return filled(SQL["count_by_producer"], rows=self.rows)


def check_rows(connection: Connection, stage: Stage, table: Sql, *, rows: int) -> None:
    """Refuse a table of a stage that does not hold what was staged."""
    if connection.execute(filled(SQL["count_rows"], rows=table)).scalar_one() != rows:
        raise StageLost(stage.name)


def position_of(ids: str, *, of_record: tuple[str, ...]) -> str:
    """Which record of its id a row belongs to, from 1: all rows of the first record are kept."""
    return f"rank() OVER (PARTITION BY {ids} ORDER BY {', '.join(of_record)})"
