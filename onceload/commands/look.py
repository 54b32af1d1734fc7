"""The commands that show rows: show, sql."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload.commands.arguments import Arguments, Commands, command, limit_option, read_declared, set_option
from onceload.settings import Settings, database
from onceload.terminal import show_csv, show_json, show_values, words
from onceload_core.errors import ExitCode, SettingRefused, WrongUse
from onceload_core.postgres.connection import RIGHT_MISSING, RightMissing, first_line, is_lost, sqlstate

if TYPE_CHECKING:
    from onceload.looking import Rows

_READ_ONLY = "25006"
_MORE_LINES = "   -> "


def add(commands: Commands) -> None:
    teaches = "show the columns of a table and its rows, newest first"
    show_parser = command(commands, "show", show, teaches, "onceload show pipelines/events.yaml --limit 5")
    show_parser.add_argument(
        "what",
        metavar="TABLE|FILE",
        help="a table or view, such as public.events, or a pipeline file, whose target is shown. With lineage, rows "
        "are sorted by the first load of their file and by their place in it, newest first",
    )
    set_option(show_parser)
    limit_option(show_parser, default=20)
    _csv_option(show_parser)
    teaches = "run SQL on the database, read-only unless --write is given"
    sql_parser = command(commands, "sql", sql, teaches, 'onceload sql -c "SELECT count(*) FROM events"')
    sql_parser.add_argument(
        "-c",
        "--command",
        metavar="SQL",
        help="run this and print the rows of its last statement (default: read statements from stdin; on a terminal, "
        "open a prompt: psql if there is one)",
    )
    sql_parser.add_argument(
        "--write",
        action="store_true",
        help="allow changes. Without it, every transaction is read-only. Never change the schema onceload by hand: "
        "`onceload recover` and `onceload quarantine` do that safely",
    )
    _csv_option(sql_parser)


def show(arguments: Arguments, settings: Settings) -> ExitCode:
    """Show the columns and the newest rows of a table."""
    from onceload.looking import looking, show_rows

    name = _table_of(arguments)
    with database(settings) as dsn, looking(dsn) as connection:
        shown = show_rows(connection, name, limit=arguments.limit + 1, as_json=arguments.json)
    found, rows = shown.found, shown.found.rows[: arguments.limit]
    words(f"{shown.table}: {', '.join(map(str, shown.columns))}")
    if arguments.json:
        document = {"table": shown.table, "columns": shown.columns, "rows": _objects(found.columns, rows)}
        show_json({**document, "newest_first": shown.are_newest})
    elif arguments.csv:
        show_csv(found.columns, rows)
    elif rows:
        _show_without_lineage(found, rows)
    if not rows:
        words("it has no rows yet")
    if len(found.rows) > arguments.limit:
        which = "the newest" if shown.are_newest else "the first"
        rows_shown = "row is" if arguments.limit == 1 else f"{arguments.limit:,} rows are"
        words(f"only {which} {rows_shown} shown; use --limit to see more")
    return ExitCode.DONE


def _show_without_lineage(found: "Rows", rows: Sequence[Sequence[object]]) -> None:
    """Leave out the lineage columns, to make room for the others. --csv and --json have all columns."""
    from onceload.looking import LINEAGE

    kept = [each not in LINEAGE for each in found.columns]
    show_values(
        list(compress(found.columns, kept)),
        [list(compress(row, kept)) for row in rows],
        are_numbers=list(compress(found.are_numbers, kept)),
    )


def sql(arguments: Arguments, settings: Settings) -> ExitCode:
    """Run one command, the statements of stdin, or a prompt."""
    from onceload.looking import looking

    with database(settings) as dsn:
        is_prompt = arguments.command is None and sys.stdin.isatty()
        if is_prompt and not (arguments.json or arguments.csv):
            words("each transaction is read-only. --write allows changes" if not arguments.write else "--write is on")
            if (code := _in_psql(arguments, settings, dsn)) is not None:
                return code
        with looking(dsn, writes=arguments.write) as connection:
            if is_prompt:
                for statement in _typed():
                    _try(connection, statement, arguments)
            else:
                _run(connection, arguments.command or sys.stdin.read(), arguments)
    return ExitCode.DONE


def _in_psql(arguments: Arguments, settings: Settings, dsn: str) -> ExitCode | None:
    from onceload.psql import find_psql, run_psql

    psql = find_psql(dsn, is_embedded=settings.dsn is None)
    if psql is None:
        return None
    return ExitCode.DONE if run_psql(psql, dsn, writes=arguments.write) == 0 else ExitCode.CALL_AGAIN


def _typed() -> Iterator[str]:
    """Statements as a person types them: each ends with a semicolon, and Ctrl-D ends all."""
    with suppress(ImportError):
        # It gives input() a history and keys to edit with.
        import readline  # noqa: F401
    lines: list[str] = []
    while True:
        try:
            line = input(_MORE_LINES if lines else "sql -> ")
        except EOFError:
            words("")
            return
        if not lines and line.strip() in ("", r"\q", "exit", "quit"):
            if line.strip():
                return
            continue
        lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []


def _try(connection: Connection, statement: str, arguments: Arguments) -> None:
    """Run a statement of the prompt. An error ends the statement, but not the prompt."""
    try:
        _run(connection, statement, arguments)
    except WrongUse as refused:
        words(str(refused))
    except DBAPIError as error:
        if is_lost(error):
            raise
        words(first_line(error))


def _run(connection: Connection, statement: str, arguments: Arguments) -> None:
    from onceload.looking import ask

    if not statement.strip():
        raise SettingRefused("onceload sql", "no statement", "SQL in -c, or on stdin")
    try:
        found = ask(connection, statement, as_json=arguments.json)
    except DBAPIError as error:
        if sqlstate(error) == _READ_ONLY:
            expected = "statements that only read, or --write"
            raise SettingRefused("onceload sql", f"a change ({first_line(error)})", expected) from error
        if sqlstate(error) == RIGHT_MISSING:
            raise RightMissing(first_line(error)) from error
        raise
    if arguments.json:
        show_json({"status": found.status, "rows": _objects(found.columns, found.rows)})
    elif not found.columns:
        words(found.status)
    elif arguments.csv:
        show_csv(found.columns, found.rows)
    else:
        show_values(found.columns, found.rows, are_numbers=found.are_numbers)


def _objects(columns: tuple[str, ...], rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    twice = next((each for each in columns if columns.count(each) > 1), None)
    if twice is not None:
        raise SettingRefused("--json", f"two columns named {twice!r}", f"different names (SELECT ... AS {twice}_2)")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _csv_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--csv", action="store_true", help="print CSV on stdout; null is empty, and the empty text is quoted"
    )


def _table_of(arguments: Arguments) -> str:
    """The name of the table, as it is written in SQL."""
    if Path(arguments.what).suffix not in {".yaml", ".yml"}:
        return str(arguments.what)
    from onceload_jobs.write.sql import table_name

    arguments.file = Path(arguments.what)
    return table_name(read_declared(arguments).target)
