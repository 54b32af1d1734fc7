"""The three roads of rows into their target."""

from enum import StrEnum

from onceload_jobs.batch.job import Job
from onceload_jobs.batch.stage import Stage
from onceload_jobs.pipeline.declared import Declared, Write
from onceload_jobs.write.writer import Writer


class Road(StrEnum):
    #: The task commits its own chunk: rows and proof in one transaction.
    DIRECT = "direct"
    #: One transaction of the load copies pieces as they are read, then proof and COMMIT.
    BATCH = "batch"
    #: The load copies pieces into the stage table of the batch; one SQL statement publishes them, with the proof.
    TABLE = "batch through a table"


def road_of(declared: Declared, *, is_kept: bool) -> Road:
    """The road of a batch; nothing else decides about it."""
    if declared.is_direct:
        return Road.DIRECT
    needs_sql = (
        declared.suite is not None
        or declared.is_made_by_postgres
        # Which of many producers the rows name, only SQL counts.
        or (declared.producer is not None and declared.transform is not None)
        or declared.target.write is Write.MERGE
    )
    return Road.TABLE if is_kept or needs_sql else Road.BATCH


def writer_of(job: Job, road: Road) -> Writer:
    """How the rows of pieces are encoded."""
    if road is Road.BATCH:
        return Writer.into_target(job.declared.target, job.written)
    # As the table of a stage takes them.
    columns, lineage = (job.columns, True) if job.declared.is_made_by_postgres else (job.written, job.has_lineage)
    return Stage.called("", columns, job.declared.target, lineage=lineage).writer
