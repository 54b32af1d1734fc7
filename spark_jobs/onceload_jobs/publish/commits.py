"""One commit: of all that a batch has read of files, or of the records of the quarantine that it settles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import RowsRefused
from onceload_core.events import event
from onceload_core.ports import Claim, MadeOfRecords
from onceload_core.postgres import BulkCommit, BulkSettlement, PostgresLedger
from onceload_core.postgres.connection import first_line
from onceload_core.replay import EntryKind
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.used_ids import OFFERED, IdTables
from onceload_jobs.publish.totals import BatchTotals
from onceload_jobs.write.find_refused import is_of_rows
from onceload_jobs.write.sql import table_name
from onceload_jobs.write.until_certain import until_certain


def until_it_took_effect(
    ledger: PostgresLedger, job: Job, write: Callable[[], bool], *, last_totals: Callable[[], BatchTotals | None]
) -> bool:
    """Write a batch until it is certain that it took effect, completely or not at all; whether this process saw it.

    `write` returns whether there was anything to commit, and `last_totals` what its last try would have committed.
    """
    unsure: BatchTotals | None = None
    has_committed = False

    def find_rest() -> Callable[[], bool] | None:
        return None if unsure is not None and _took_effect(ledger, job, unsure) else write

    def try_once(write: Callable[[], bool]) -> None:
        nonlocal has_committed
        has_committed = write()

    def note_unsure() -> None:
        nonlocal unsure
        unsure = last_totals()

    until_certain(find_rest, try_once, is_whole=True, on_unsure=note_unsure)
    return has_committed


def _took_effect(ledger: PostgresLedger, job: Job, totals: BatchTotals) -> bool:
    """A commit exists completely or not at all, so one of its spans is enough to check."""
    probe = next((advance for advance in totals.advances if advance.spans), None)
    if probe is None:
        return False
    known = ledger.know(job.session, [probe.producer_id])
    return known[probe.producer_id].state.consumed.covers(probe.spans)


def publish_commit(
    ledger: PostgresLedger,
    job: Job,
    totals: BatchTotals,
    ids: IdTables,
    *,
    write_rows: Callable[[Connection], int],
    claim: Claim | None,
    is_last: bool = True,
    begun: Connection | None = None,
    is_logged_as: str = "batch_published",
) -> None:
    """Commit a batch, whose ids are offered in tables."""
    commit = _commit_of(job, totals, ids, write_rows=write_rows, claim=claim, is_last=is_last)
    with refusing_rows(job):
        if isinstance(commit, BulkSettlement):
            ledger.settle(commit, begun=begun)
            return
        position = ledger.commit(commit, begun=begun)
    event(
        is_logged_as,
        pipeline=job.declared.name,
        batch=job.batch,
        session=job.session.name,
        position=position,
        rows=totals.rows,
        quarantined=len(totals.quarantined),
    )


def _commit_of(
    job: Job,
    totals: BatchTotals,
    ids: IdTables,
    *,
    write_rows: Callable[[Connection], int],
    claim: Claim | None,
    is_last: bool,
) -> BulkCommit | BulkSettlement:
    settling = partial(
        BulkSettlement, kind=EntryKind.RETRY, session=job.session, batch=job.batch, records=totals.settled
    )
    if totals.settled and ids.used is None:
        return settling(write_rows=write_rows, made=totals.made, bytes=totals.bytes, offered_messages=ids.messages)
    load = BulkCommit(
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
    if not totals.settled:
        return load
    # The rows of records that name their producers are in a commit of their own.
    return settling(write_rows=lambda _: 0, made=MadeOfRecords(rows=0, rows_of={}), load=load)


@contextmanager
def refusing_rows(job: Job) -> Iterator[None]:
    """Translate the target's refusal of the batch, while the server's own message is still available."""
    try:
        yield
    except DBAPIError as error:
        if not is_of_rows(error):
            raise
        raise RowsRefused(job.declared.name, table_name(job.declared.target), first_line(error)) from error
