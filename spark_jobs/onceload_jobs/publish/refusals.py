"""Refusals of a batch by the constraints or triggers of its target."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from onceload_core.errors import RowsRefused
from onceload_core.postgres.connection import first_line
from onceload_jobs.batch.job import Job
from onceload_jobs.write.find_refused import is_of_rows
from onceload_jobs.write.sql import table_name


@contextmanager
def refusing_rows(job: Job) -> Iterator[None]:
    """Translate the server's refusal of the batch, while its own message is still available."""
    try:
        yield
    except DBAPIError as error:
        if not is_of_rows(error):
            raise
        raise RowsRefused(job.declared.name, table_name(job.declared.target), first_line(error)) from error
