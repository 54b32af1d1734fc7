"""Deletion of old sessions, audits and failed loads, business ids beyond their window and producers idle beyond theirs.

It may run at any time, concurrently, or never: it only frees space.
"""

from dataclasses import dataclass
from shlex import quote

from sqlalchemy import Engine

from onceload_core.postgres.connection import change, statements, transaction
from onceload_core.postgres.ledger import PostgresLedger
from onceload_core.postgres.pipeline_row import lock_pipeline
from onceload_core.postgres.sessions import OF_BATCH

SQL = statements("upkeep.sql")
#: A process that was suspended for longer could take a later epoch for its own.
SESSIONS_KEPT_S = 30 * 86_400.0
AUDITS_KEPT_S = 365 * 86_400.0
#: The loads of a pipeline that never loaded anything.
ATTEMPTS_KEPT_S = 30 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Gone:
    """How many things of one pipeline were deleted, by kind."""

    pipeline: str
    sessions: int
    audits: int
    producers: int


def tidy(engine: Engine, pipeline: str) -> Gone:
    """Delete expired claims of planners, sessions of old batches, old audits and idle producers."""
    ledger = PostgresLedger(engine)
    ledger.drop_ended_claims(pipeline)
    producers = len(ledger.forget_idle(pipeline))
    see = f"onceload sessions --pipeline {quote(pipeline)}"
    with change(engine, pipeline, doing="deleting old sessions and audits", see=see) as connection:
        binds = {"pipeline_id": lock_pipeline(connection, pipeline).pipeline_id}
        of_batch = {**binds, "of_batch": OF_BATCH, "kept_s": SESSIONS_KEPT_S}
        sessions = connection.execute(SQL["drop_ended_sessions"], of_batch).rowcount
        audits = connection.execute(SQL["drop_old_audits"], {**binds, "kept_s": AUDITS_KEPT_S}).rowcount
    return Gone(pipeline=pipeline, sessions=sessions, audits=audits, producers=producers)


def forget_messages(engine: Engine) -> tuple[str, ...]:
    """Drop the days of business ids that no pipeline remembers any more, and return them."""
    with change(engine, "(any)", doing="dropping business ids") as connection:
        return tuple(connection.execute(SQL["forget_messages"]).scalars())


def forget_attempts(engine: Engine) -> int:
    """Forget the old loads of names without a pipeline, and return how many."""
    with change(engine, "(any)", doing="forgetting old loads") as connection:
        forgotten: int = connection.execute(SQL["forget_attempts"], {"kept_s": ATTEMPTS_KEPT_S}).scalar_one()
        return forgotten


def pipelines(engine: Engine) -> tuple[str, ...]:
    with transaction(engine, "(any)", doing="listing pipelines") as connection:
        return tuple(connection.execute(SQL["pipelines"]).scalars())
