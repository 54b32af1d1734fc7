"""Replace the rows of old generations: delete and count them in the commit that writes the new ones.

The receipts are authoritative: they state how many rows each generation has in the target. If another number is
deleted, nothing is committed, because rows that were not found would stay beside the new ones.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import NeedsAPerson
from onceload_core.names import ProducerId
from onceload_core.ports import Advance
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import statements
from onceload_core.postgres.pipeline_row import get_pipeline, lock_pipeline
from onceload_core.postgres.receipts import Promise, Unattributed, rows_promised, rows_unattributed
from onceload_jobs.batch.job import Job, Replacement
from onceload_jobs.batch.piece import Piece, advances_of
from onceload_jobs.files.notes import Note
from onceload_jobs.write.sql import filled, table_name

SQL = statements("replaced_rows.sql", package=__package__)
_NAMES_SHOWN = 5


@dataclass(eq=False)
class ReplacedRowsDiffer(NeedsAPerson):
    """The old rows of a file to replace differ from its receipts."""

    pipeline: str
    table: str
    #: Each with the expected and the found number of rows.
    files: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.files[:_NAMES_SHOWN])
        more = f" and {len(self.files) - _NAMES_SHOWN} more" if len(self.files) > _NAMES_SHOWN else ""
        return (
            f"pipeline {self.pipeline}: the number of old rows in {self.table} differs from what was loaded: "
            f"{shown}{more}. Nothing was changed, because old rows that were not found could stay beside the new "
            "ones as duplicates, and rows added by others could be deleted. Run "
            f"`onceload verify {PIPELINE_FILE}` to see which rows differ, and repair the table. To go ahead "
            "despite the difference and replace only the rows that are found, retry with --accept-differences."
        )


def half_read(job: Job, pieces: Sequence[Piece], notes: Sequence[Note]) -> dict[ProducerId, Replacement]:
    """New generations that were not read completely: they must not replace loaded rows."""
    if not job.replaced:
        return {}
    read = {advance.producer_id: advance for advance in advances_of(pieces)}
    noted = {note.name for note in notes}
    return {
        new: replacement
        for new, replacement in job.replaced.items()
        if new not in read or replacement.name in noted or not replacement.is_whole(read[new])
    }


def without_records(job: Job, ledger: PostgresLedger, pieces: Sequence[Piece]) -> dict[ProducerId, Note]:
    """New generations without a record to load; unless a user accepts it, they must not replace earlier records."""
    if job.differences_accepted or not job.replaced:
        return {}
    # The rows of an advance are its good records, even if a transform makes no row of them.
    without = [advance for advance in advances_of(pieces) if advance.producer_id in job.replaced and not advance.rows]
    return {
        advance.producer_id: Note.of_nothing_to_load(job.replaced[advance.producer_id].name, _why_none(advance, pieces))
        for advance in without
        if ledger.proof_of(job.declared.name, job.replaced[advance.producer_id].old).records
    }


def _why_none(advance: Advance, pieces: Sequence[Piece]) -> str:
    bad = (record for piece in pieces for record in piece.quarantined if record.producer_id == advance.producer_id)
    if (first := next(bad, None)) is None:
        return "its new content has no record"
    return f"its new content has no good record ({advance.records:,} bad, the first because {first.reason})"


def replace_rows(connection: Connection, job: Job, replaced: Sequence[ProducerId], write: Callable[[], int]) -> int:
    """Write the new rows in place of the old ones, if any, and return how many the server wrote.

    The old rows are deleted first, because of the target's unique indexes. If one of their records is retried
    meanwhile, that commit is either visible here, because the pipeline is locked after it, or it is refused later.
    """
    if not replaced:
        return write()
    pipeline = job.declared.name
    before = get_pipeline(connection, pipeline)
    promised = rows_promised(connection, before.pipeline_id, replaced)
    deleted = _delete(connection, job, replaced)
    written = write()
    if lock_pipeline(connection, pipeline).position != before.position:
        deleted += _delete(connection, job, replaced)
        promised = rows_promised(connection, before.pipeline_id, replaced)
    unattributed = rows_unattributed(connection, before.pipeline_id, replaced)
    differing = _differing(promised, deleted, unattributed)
    if differing and not job.differences_accepted:
        raise ReplacedRowsDiffer(pipeline, table_name(job.declared.target), differing)
    return written


def _delete(connection: Connection, job: Job, replaced: Sequence[ProducerId]) -> Counter[ProducerId]:
    """Delete the rows of generations, and count those of each."""
    ids = ", ".join(map(str, replaced))
    deleted = connection.execute(filled(SQL["delete"], table=table_name(job.declared.target), ids=ids))
    return Counter({ProducerId(row.producer_id): row.rows for row in deleted})


def _differing(
    promised: Mapping[ProducerId, Promise], deleted: Counter[ProducerId], unattributed: Sequence[Unattributed]
) -> tuple[str, ...]:
    """The files whose old rows are others than promised, or are not known."""
    return (
        *(
            f"{promise.name!r} ({promise.rows:,} rows expected, {deleted[producer_id]:,} found)"
            for producer_id, promise in promised.items()
            if promise.rows != deleted[producer_id]
        ),
        *(
            f"{each.name!r} ({each.rows:,} rows that were loaded in the same commit, position {each.position}, have no"
            " lineage, so their file is unknown)"
            for each in unattributed
        ),
    )
