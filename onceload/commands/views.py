"""The commands that show the database's tables: status, producers, ledger, sessions, audits."""

from collections.abc import Callable

from onceload.commands.arguments import Arguments, Commands, command, limit_option, pipeline_option
from onceload.databases import only_pipeline, open_database
from onceload.settings import Settings
from onceload.terminal import (
    show_json,
    show_table,
    words,
)
from onceload_core.errors import ExitCode
from onceload_core.postgres.views import View, look


def add(commands: Commands) -> None:
    for view, teaches in _VIEWS.items():
        each = command(commands, view, show(view), teaches, f"onceload {view} --pipeline events --limit 20")
        pipeline_option(each)
        limit_option(each)


def show(view: View) -> Callable[[Arguments, Settings], ExitCode]:
    """A command that shows the rows of one view."""

    def run(arguments: Arguments, settings: Settings) -> ExitCode:
        with open_database(settings) as engine:
            pipeline = arguments.pipeline or (None if view == "status" else only_pipeline(engine))
            rows = look(engine, view, pipeline=pipeline, at_most=arguments.limit + 1)
        if len(rows) > arguments.limit:
            rows.pop()
            words(f"only the first {arguments.limit} are shown; use --limit to see more")
        if arguments.json:
            show_json({view: rows})
        else:
            show_table(_shown_columns(view, rows), nothing=f"nothing to show: no {_NOTHING[view]} yet")
        for row in rows:
            if not_again := row.get("not_loaded_again"):
                words(_NOT_LOADED_AGAIN.format(row["pipeline"], not_again))
        return ExitCode.DONE

    return run


def _shown_columns(view: View, rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The columns that fit a screen; --json has them all."""
    left_out = _LEFT_OUT.get(view, ())
    shown = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
    if not any(row.get("paused_at") for row in rows):
        return shown
    return [shown_row | {"paused": _pause_of(row)} for shown_row, row in zip(shown, rows, strict=True)]


def _pause_of(row: dict[str, object]) -> str | None:
    return f"by {row['paused_by']}: {row['pause_reason']}" if row["paused_at"] else None


_VIEWS: dict[View, str] = {
    "status": "show each pipeline with its position, last commit and last snapshot",
    "producers": "show the producers of a pipeline (files or devices), and what is loaded of each",
    "ledger": "show the commits of a pipeline, newest first",
    "sessions": "show the sessions of a pipeline, their epochs and what they hold",
    "audits": "show the audit results of a pipeline, newest first",
}


_NOTHING: dict[View, str] = {
    "status": "pipeline",
    "producers": "producer",
    "ledger": "commit",
    "sessions": "session",
    "snapshots": "snapshot",
    "audits": "audit",
}


_NOT_LOADED_AGAIN = (
    "pipeline {}: producers of which records are not loaded again since a rewind: {}. `onceload verify` says which of "
    "them the next load does not bring"
)


_LEFT_OUT: dict[View, tuple[str, ...]] = {
    "status": ("paused_at", "paused_by", "pause_reason", "not_loaded_again"),
    "producers": ("generation", "size"),
    "ledger": ("filtered", "bytes", "epoch", "dag_id", "run_id", "try_number"),
    "audits": ("suite", "checked", "observed", "sample", "audited_at"),
}
