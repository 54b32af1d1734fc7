"""Views of the ledger for people. No code may decide by them."""

from typing import Literal

from sqlalchemy import Engine

from onceload_core.names import Batch
from onceload_core.postgres.connection import statements, translated
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.rewound import owed

SQL = statements("views.sql")
View = Literal["status", "producers", "ledger", "sessions", "snapshots", "audits"]


def look(
    engine: Engine,
    view: View,
    *,
    pipeline: str | None,
    batch: Batch | None = None,
    at_most: int,
) -> list[dict[str, object]]:
    """The rows of a view, or those of one batch. An unknown pipeline is an error, not an empty table."""
    with translated(pipeline=pipeline or "(any)", doing=f"reading {view}"), engine.begin() as connection:
        if pipeline is not None:
            get_pipeline(connection, pipeline)
        binds = {"pipeline": pipeline, "batch": batch, "at_most": at_most}
        rows = [dict(row) for row in connection.execute(SQL[view], binds).mappings()]
        if view == "status":
            for row in rows:
                pipeline_id = get_pipeline(connection, str(row["pipeline"])).pipeline_id
                row["not_loaded_again"] = len(owed(connection, pipeline_id))
        return rows
