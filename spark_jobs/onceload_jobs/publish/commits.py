"""What a batch commits: what it has read of files, or the records of the quarantine that it settles."""

from collections.abc import Callable

from sqlalchemy import Connection

from onceload_core.events import event
from onceload_core.names import Position
from onceload_core.ports import Claim, MadeOfRecords, Settlement
from onceload_core.postgres import BulkCommit, BulkSettlement, PostgresLedger
from onceload_core.replay import EntryKind
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.used_ids import OFFERED, IdTables
from onceload_jobs.publish.totals import BatchTotals

WriteRows = Callable[[Connection], int]
#: The rows of records that name their producers are in a commit of their own.
_NO_ROWS = MadeOfRecords(rows=0, rows_of={})


def commit_of(
    job: Job,
    totals: BatchTotals,
    ids: IdTables,
    *,
    claim: Claim | None,
    is_last: bool = True,
    write_rows: WriteRows,
) -> BulkCommit | BulkSettlement:
    """The commit of a batch, whose ids are offered in tables."""
    if not totals.settled:
        return _load_of(job, totals, ids, claim=claim, is_last=is_last, write_rows=write_rows)
    if ids.used is not None:
        load = _load_of(job, totals, ids, claim=claim, is_last=is_last, write_rows=write_rows)
        return BulkSettlement(
            kind=EntryKind.RETRY,
            session=job.session,
            batch=job.batch,
            records=totals.settled,
            write_rows=lambda _: 0,
            made=_NO_ROWS,
            load=load,
        )
    made = None
    if totals.rows_of_settled is not None:
        made = MadeOfRecords(rows=totals.rows, rows_of=totals.rows_of_settled, filtered=totals.filtered)
    return BulkSettlement(
        kind=EntryKind.RETRY,
        session=job.session,
        batch=job.batch,
        records=totals.settled,
        write_rows=write_rows,
        made=made,
        bytes=totals.bytes,
        offered_messages=ids.messages,
    )


def _load_of(
    job: Job, totals: BatchTotals, ids: IdTables, *, claim: Claim | None, is_last: bool, write_rows: WriteRows
) -> BulkCommit:
    return BulkCommit(
        session=job.session,
        batch=job.batch,
        advances=totals.advances,
        write_rows=write_rows,
        claim=claim,
        is_last=is_last,
        counts=totals.counts,
        bytes=totals.bytes,
        quarantined=totals.quarantined,
        run=job.run,
        engine=job.engine,
        spark_ui=job.spark_ui,
        offered=OFFERED if ids.used else None,
        offered_messages=ids.messages,
    )


def publish_commit(
    ledger: PostgresLedger,
    commit: BulkCommit | BulkSettlement,
    *,
    begun: Connection | None = None,
    is_logged_as: str = "batch_published",
) -> Position:
    if isinstance(commit, Settlement):
        return ledger.settle(commit, begun=begun)
    position = ledger.commit(commit, begun=begun)
    event(
        is_logged_as,
        pipeline=commit.session.pipeline,
        batch=commit.batch,
        session=commit.session.name,
        position=position,
        rows=commit.counts.loaded,
        quarantined=commit.counts.quarantined,
    )
    return position
