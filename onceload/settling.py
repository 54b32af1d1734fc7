"""Decisions of people on quarantined records: load them now, or discard them. The ledger records who decided."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import Engine

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import SettingRefused
from onceload_core.names import Batch, Position
from onceload_core.ports import Settlement
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.quarantine import Fix, KeptRecord, QuarantineId
from onceload_core.postgres.sessions import session_of
from onceload_core.replay import EntryKind

if TYPE_CHECKING:
    # Arrow takes a while to import, and only a retry needs it.
    from onceload_jobs.pipeline.declared import Declared
    from onceload_jobs.recover.retry import RetryReport

_IDS_SHOWN = 20


def retry(
    engine: Engine,
    declared: "Declared",
    records: Sequence[KeptRecord],
    *,
    fixed: Mapping[QuarantineId, Fix],
    batch: str | None = None,
    by: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> "RetryReport":
    """Load the records that are valid now, with their fixed bytes if there are some.

    `where` names the Spark of a transform in Spark SQL; a process that must not start one has none.
    """
    from onceload_jobs.load.settings import EngineSettings, new_batch
    from onceload_jobs.recover.retry import retry as retry_now

    chosen = Batch(batch) if batch else new_batch()
    if declared.needs_spark and where is None:
        ids = " ".join(f"--id {record.quarantine_id}" for record in records[:_IDS_SHOWN])
        found = "a transform in Spark SQL, which this process does not run"
        expected = f"the command `onceload quarantine retry {PIPELINE_FILE} {ids}`, where the loads run"
        raise SettingRefused(f"retrying records of {declared.name} here", found, expected)
    ledger, engines = PostgresLedger(engine), EngineSettings(**(where or {}))
    return retry_now(engine, ledger, declared, records, batch=chosen, fixed=fixed, by=by, where=engines)


def discard(engine: Engine, pipeline: str, records: Sequence[KeptRecord], *, by: str) -> Position:
    """Mark the records as discarded, by an entry in the ledger; none is deleted."""
    ledger = PostgresLedger(engine)
    batch = Batch(f"discard-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}")
    session = ledger.open_session(pipeline, session_of(batch, f"discard by {by}"))
    return ledger.settle(
        Settlement(
            kind=EntryKind.DISCARD,
            session=session,
            batch=batch,
            records={(record.producer_id, record.sequence_id): None for record in records},
            write_rows=lambda _: 0,
        )
    )
