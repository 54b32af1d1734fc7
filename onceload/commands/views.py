"""The commands that show the database's tables: producers, ledger, sessions, audits."""

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
            pipeline = arguments.pipeline or only_pipeline(engine)
            rows = look(engine, view, pipeline=pipeline, at_most=arguments.limit + 1)
        if len(rows) > arguments.limit:
            rows.pop()
            words(f"only the first {arguments.limit} are shown; use --limit to see more")
        if arguments.json:
            show_json({view: rows})
        else:
            show_table(_shown_columns(view, rows), nothing=f"nothing to show: no {_NOTHING[view]} yet")
        return ExitCode.DONE

    return run


def _shown_columns(view: View, rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The columns that fit a screen; --json has them all."""
    left_out = _LEFT_OUT.get(view, ())
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]


_VIEWS: dict[View, str] = {
    "producers": "show the producers of a pipeline (files or devices), and what is loaded of each",
    "ledger": "show the commits of a pipeline, newest first",
    "sessions": "show the sessions of a pipeline, their epochs and what they hold",
    "audits": "show the audit results of a pipeline, newest first",
}


_NOTHING: dict[View, str] = {
    "producers": "producer",
    "ledger": "commit",
    "sessions": "session",
    "snapshots": "snapshot",
    "audits": "audit",
}


_LEFT_OUT: dict[View, tuple[str, ...]] = {
    "producers": ("generation", "size"),
    "ledger": ("filtered", "bytes", "epoch", "dag_id", "run_id", "try_number"),
    "audits": ("suite", "checked", "observed", "sample", "audited_at"),
}
