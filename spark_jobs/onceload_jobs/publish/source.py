"""Questions about the rows of a stage."""

from sqlalchemy import Connection

from onceload_core.postgres.connection import statements
from onceload_jobs.batch.stage import Stage, StageLost
from onceload_jobs.write.sql import Sql, filled

SQL = statements("source.sql", package=__package__)

#: For sorts and joins of whole batches.
WORK_MEMORY = "SET LOCAL work_mem = '256MB'"


def check_rows(connection: Connection, stage: Stage, table: Sql, *, rows: int) -> None:
    """Refuse a table of a stage that does not hold what was staged."""
    if connection.execute(filled(SQL["count_rows"], rows=table)).scalar_one() != rows:
        raise StageLost(stage.name)
