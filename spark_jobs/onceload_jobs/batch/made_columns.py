"""The columns that a transform makes, and what the rest of the pipeline file needs of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from onceload_core.errors import SettingRefused
from onceload_jobs.batch.job import Job, TransformRefused
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import Declared, OnRewrite


def writing_columns(job: Job, made: Sequence[Column], *, has_lineage: bool) -> Job:
    """The job that writes the columns of its transform, which may be others than the declared ones."""
    key = job.declared.target.key
    written = tuple(replace(column, not_null=True) if column.name in key else column for column in made)
    _check_needed(job.declared, {column.name: column.type for column in written}, has_lineage=has_lineage)
    changed = with_lineage_of(job.declared, has_lineage=has_lineage)
    return replace(job, written=written, has_lineage=has_lineage, declared=changed)


def with_lineage_of(declared: Declared, *, has_lineage: bool) -> Declared:
    """The declaration for the rows of a transform, which have lineage if the transform kept it."""
    return replace(declared, target=replace(declared.target, lineage=declared.target.lineage and has_lineage))


def _check_needed(declared: Declared, made: dict[str, ColumnType], *, has_lineage: bool) -> None:
    """Refuse a transform without the columns that the rest of the pipeline file needs."""
    for place, name in _needed(declared):
        if name not in made:
            found = f"{name}, but the transform makes {', '.join(made)}"
            raise SettingRefused(place, found, "a column that the transform makes")
    deleted = declared.target.deleted
    if deleted and made[deleted] != ColumnType(kind=Kind.BOOLEAN):
        raise SettingRefused("target.deleted", f"{deleted}, which the transform makes as {made[deleted]}", "a boolean")
    if declared.on_rewrite is OnRewrite.REPLACE and not has_lineage:
        why = "which on_rewrite: replace needs to find old rows"
        raise SettingRefused("transform", ", ".join(made), f"{PRODUCER_ID} and {SEQUENCE} among its columns, {why}")


def _needed(declared: Declared) -> Iterator[tuple[str, str]]:
    """The settings of the pipeline file that name a written column, and the column."""
    yield from (("target.key", name) for name in declared.target.key)
    if declared.target.deleted:
        yield "target.deleted", declared.target.deleted


#: Such rows would be rows of no record to some, and rows of a file to others.
HALF_A_NAME = f"rows have {PRODUCER_ID} or {SEQUENCE} without the other"


def lineage_refused(job: Job, why: str) -> TransformRefused:
    """An error about the records that rows name."""
    return TransformRefused(job.declared.name, f"{why} (select {PRODUCER_ID} and {SEQUENCE} unchanged)")
