"""What nobody needs any more: old names, old audits, business ids beyond their window, producers idle beyond theirs.

All of it may be called at any time, by several at once, and never: nothing depends on it but the room that it frees.
"""

from dataclasses import dataclass

from sqlalchemy import Engine

from dedup_core.postgres.commit import lock_pipeline
from dedup_core.postgres.connection import statements, translated
from dedup_core.postgres.deliveries import OF_BATCH
from dedup_core.postgres.ledger import PostgresLedger

SQL = statements("upkeep.sql")
#: A process that was stopped for longer, and then goes on, could take a later life for its own.
SESSIONS_KEPT_S = 30 * 86_400.0
AUDITS_KEPT_S = 365 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Gone:
    """What was let go of a pipeline."""

    pipeline: str
    sessions: int
    audits: int
    producers: int


def tidy(engine: Engine, pipeline: str) -> Gone:
    """Let go of what has ended: claims of planners that vanished, sessions of old batches, old audits, idle devices."""
    ledger = PostgresLedger(engine)
    ledger.drop_ended_claims(pipeline)
    producers = len(ledger.forget_idle(pipeline))
    with translated(pipeline=pipeline, doing="tidying up"), engine.begin() as connection:
        binds = {"pipeline_id": lock_pipeline(connection, pipeline).pipeline_id}
        of_batch = {**binds, "of_batch": OF_BATCH, "kept_s": SESSIONS_KEPT_S}
        sessions = connection.execute(SQL["drop_ended_sessions"], of_batch).rowcount
        audits = connection.execute(SQL["drop_old_audits"], {**binds, "kept_s": AUDITS_KEPT_S}).rowcount
    return Gone(pipeline=pipeline, sessions=sessions, audits=audits, producers=producers)


def pipelines(engine: Engine) -> tuple[str, ...]:
    with translated(pipeline="(any)", doing="looking for pipelines"), engine.begin() as connection:
        return tuple(connection.execute(SQL["pipelines"]).scalars())
