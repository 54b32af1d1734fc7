"""What people ask of the ledger: rows to show, never to decide by."""

from typing import Literal

from sqlalchemy import Engine

from dedup_core.pipeline import Guarantee
from dedup_core.postgres.commit import get_pipeline
from dedup_core.postgres.connection import statements, translated

SQL = statements("views.sql")
View = Literal["status", "producers", "ledger", "sessions", "snapshots", "audits"]


def look(
    engine: Engine, view: View, *, pipeline: str | None, at_most: int, switch: Guarantee = Guarantee.EXACTLY_ONCE
) -> list[dict[str, object]]:
    """The rows of a view; a pipeline that nobody declared is an error, not an empty table."""
    with translated(pipeline=pipeline or "(any)", doing=f"reading {view}"), engine.begin() as connection:
        if pipeline is not None:
            get_pipeline(connection, pipeline)
        binds = {"pipeline": pipeline, "at_most": at_most, "switch": switch}
        return [dict(row) for row in connection.execute(SQL[view], binds).mappings()]
