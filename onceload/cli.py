"""The command line: a thin face over the core; results on stdout, words on stderr, exit codes by error group."""

import argparse
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import DatabaseLost, ExitCode, NotFound, OnceloadError, SettingRefused
from dedup_core.postgres import LedgerSettings, PostgresSnapshots, connect
from dedup_core.postgres.connection import first_line, is_lost
from dedup_core.postgres.views import View, look
from onceload import (
    delivery_commands,
    doctor,
    load_commands,
    maintain_commands,
    quarantine_commands,
    recover_commands,
    schema,
    suggest_commands,
    verify_commands,
)
from onceload.outcome import Outcome, write_outcome
from onceload.settings import Settings, database, read_settings
from onceload.snapshot_file import read_snapshot, write_snapshot
from onceload.terminal import on_terminal, progress, show_json, show_table, words

Arguments = argparse.Namespace


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> ExitCode:
    """Run one command; whatever goes wrong is said in one sentence."""
    parsed = build_parser().parse_args(arguments)
    try:
        run: Callable[[Arguments, Settings], ExitCode] = parsed.run
        outcome = Outcome(exit_code=run(parsed, read_settings(environment)))
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no command ends with a traceback.
        if environment.get("ONCELOAD_LOG") == "debug":
            traceback.print_exc()
        message, exit_code = _in_words(error)
        outcome = _said(error, message, exit_code, json=parsed.json)
    with suppress(OSError):
        write_outcome(outcome, environment)
    return outcome.exit_code


def _in_words(error: BaseException) -> tuple[str, ExitCode]:
    """One sentence, and what the caller may do."""
    match error:
        case OnceloadError():
            return str(error), error.exit_code
        case DBAPIError() if is_lost(error):
            return str(DatabaseLost("working", first_line(error))), ExitCode.CALL_AGAIN
        case DBAPIError():
            return f"{first_line(error)}; nothing was changed", ExitCode.WRONG_USE
        case KeyboardInterrupt():
            said = "interrupted. What was not committed was rolled back. Run the command again"
            return said, ExitCode.CALL_AGAIN
        case OSError() | UnicodeError() | RuntimeError():
            # What was done before the answer could not be written stays done; asking again tells.
            return f"{type(error).__name__}: {error}", ExitCode.CALL_AGAIN
        case _:
            # The words of an error that nobody expected may be values of rows.
            unexpected = f"an unexpected {type(error).__name__} stopped this command. This is a bug in Onceload"
            what_now = (
                "What was not committed was rolled back. Set ONCELOAD_LOG=debug to see the traceback, and report it"
            )
            return f"{unexpected}. {what_now}.", ExitCode.CALL_AGAIN


def _said(error: BaseException, message: str, exit_code: ExitCode, *, json: bool) -> Outcome:
    for line in f"onceload: {message}".split("\n"):
        words(line)
    if json:
        with suppress(OSError):
            show_json({"error": type(error).__name__, "message": message, "exit_code": exit_code})
    return Outcome(exit_code=exit_code, error=type(error).__name__, message=message)


@contextmanager
def open_database(settings: Settings, *, schema_checked: bool = True) -> Iterator[Engine]:
    """An engine on the database that the settings name, refused unless it fits this code."""
    with database(settings) as dsn, opened(dsn, schema_checked=schema_checked) as engine:
        yield engine


@contextmanager
def opened(dsn: str, *, schema_checked: bool = True) -> Iterator[Engine]:
    """An engine on the database of this address."""
    engine = connect(LedgerSettings(dsn=dsn))
    try:
        if schema_checked:
            schema.check(engine)
        yield engine
    finally:
        engine.dispose()


def init(arguments: Arguments, settings: Settings) -> ExitCode:
    """Make the schema, or bring it up to date."""
    with open_database(settings, schema_checked=False) as engine:
        before, after = schema.upgrade(engine)
        has_roles = schema.has_roles(engine)
    if arguments.json:
        show_json({"revision_before": before, "revision": after, "has_roles": has_roles})
    words(f"the schema is at revision {after}" + ("" if before != after else " already") + "; nothing else to do")
    if not has_roles:
        words("there are no roles: this user may not make them, and does everything alone (docs/how-to/roles.md)")
    return ExitCode.DONE


def diagnose(arguments: Arguments, settings: Settings) -> ExitCode:
    """Check what Onceload needs, and say how to mend what is missing."""
    checks = doctor.examine(settings, open_database=open_database)
    if arguments.json:
        show_json({"healthy": all(check.healthy for check in checks), "checks": checks})
    else:
        show_table([{"check": each.name, "ok": each.healthy, "found": each.found} for each in checks], nothing="")
    for check in checks:
        if not check.healthy:
            words(f"{check.name}: expected {check.expected}, found {check.found}; {check.fix}")
    return ExitCode.DONE if all(check.healthy for check in checks) else ExitCode.WRONG_USE


def show(view: View) -> Callable[[Arguments, Settings], ExitCode]:
    """A command that shows the rows of one view."""

    def run(arguments: Arguments, settings: Settings) -> ExitCode:
        with open_database(settings) as engine:
            pipeline = arguments.pipeline or (None if view == "status" else _only_pipeline(engine))
            rows = look(engine, view, pipeline=pipeline, at_most=arguments.limit + 1)
        if len(rows) > arguments.limit:
            rows.pop()
            words(f"only the first {arguments.limit} are shown; --limit shows more")
        if arguments.json:
            show_json({view: rows})
        else:
            show_table(_for_people(view, rows), nothing=f"nothing to show: no {_NOTHING[view]} yet")
        return ExitCode.DONE

    return run


def _for_people(view: View, rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The columns that fit a screen; --json holds them all."""
    left_out = _LEFT_OUT.get(view, ())
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]


def _only_pipeline(engine: Engine) -> str:
    """The pipeline that is meant where none is named: the only one there is."""
    names = [str(row["pipeline"]) for row in look(engine, "status", pipeline=None, at_most=6)]
    if len(names) != 1:
        if not names:
            raise NotFound("pipeline", "(any)")
        raise SettingRefused("--pipeline", "no name", f"one of {', '.join(names)}")
    return names[0]


def validate(arguments: Arguments, settings: Settings) -> ExitCode:
    """Read a pipeline file completely, and start nothing."""
    del settings
    return load_commands.validate(arguments)


def plan(arguments: Arguments, settings: Settings) -> ExitCode:
    """Say what a load would read, and why not the rest."""
    with open_database(settings) as engine:
        return load_commands.plan(arguments, engine)


def load(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load what is new, exactly once."""
    with ready_database(settings) as dsn:
        return load_commands.load(arguments, settings, dsn)


def stage(arguments: Arguments, settings: Settings) -> ExitCode:
    """Stage what is new, for `publish`."""
    with ready_database(settings) as dsn:
        return load_commands.load(arguments, settings, dsn, publishes=False)


def audit(arguments: Arguments, settings: Settings) -> ExitCode:
    """Ask the suite about a staged batch, or draft one."""
    if arguments.suggest:
        with ready_database(settings) as dsn:
            return suggest_commands.suggest(arguments, dsn)
    if arguments.batch is None or arguments.output is not None:
        found = "no batch" if arguments.batch is None else "--output"
        raise SettingRefused("onceload audit", found, "--batch NAME, or --suggest with or without --output FILE")
    with ready_database(settings) as dsn:
        return load_commands.audit(arguments, settings, dsn)


def publish(arguments: Arguments, settings: Settings) -> ExitCode:
    """Publish a staged batch."""
    with ready_database(settings) as dsn:
        return load_commands.publish(arguments, settings, dsn)


def consume(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load as one session among others, without Spark."""
    with ready_database(settings) as dsn:
        return delivery_commands.consume(arguments, dsn)


@contextmanager
def ready_database(settings: Settings) -> Iterator[str]:
    """The address of a database with the schema; of our own, it is made when it is missing."""
    with database(settings) as dsn:
        with opened(dsn, schema_checked=False) as engine:
            if settings.dsn is None:
                schema.make_if_missing(engine)
            schema.check(engine)
        yield dsn


def on_one_pipeline(run: Callable[[Arguments, Engine], ExitCode]) -> Callable[[Arguments, Settings], ExitCode]:
    """A command on what one pipeline keeps: records that could not be loaded, or deliveries."""

    def run_on_it(arguments: Arguments, settings: Settings) -> ExitCode:
        with open_database(settings) as engine:
            if getattr(arguments, "pipeline", "") is None:
                arguments.pipeline = _only_pipeline(engine)
            return run(arguments, engine)

    return run_on_it


def verify(arguments: Arguments, settings: Settings) -> ExitCode:
    """Compare the files and the rows with the ledger, and name what differs."""
    with open_database(settings) as engine:
        return verify_commands.verify(arguments, engine)


def why(arguments: Arguments, settings: Settings) -> ExitCode:
    """Say why a file is or is not loaded."""
    with open_database(settings) as engine:
        return verify_commands.why(arguments, engine)


def snapshot_take(arguments: Arguments, settings: Settings) -> ExitCode:
    """Keep the states of all producers as they are now."""
    with open_database(settings) as engine:
        pipeline = arguments.pipeline or _only_pipeline(engine)
        position = PostgresSnapshots(engine).take(pipeline)
    if arguments.json:
        show_json({"pipeline": pipeline, "position": position})
    words(f"pipeline {pipeline}: there is a snapshot at position {position}")
    return ExitCode.DONE


def snapshot_export(arguments: Arguments, settings: Settings) -> ExitCode:
    """Write a snapshot to a file, so that it outlives the database."""
    with open_database(settings) as engine:
        pipeline = arguments.pipeline or _only_pipeline(engine)
        on_terminal("reading the snapshot")
        snapshot = PostgresSnapshots(engine).get(pipeline, arguments.position)
    # A line for each producer, and one that says what they are.
    watched = partial(progress, total=len(snapshot.states) + 1, doing="lines written")
    write_snapshot(snapshot, arguments.file, watched=watched)
    written = {"pipeline": pipeline, "position": snapshot.position, "producers": len(snapshot.states)}
    if arguments.json:
        show_json({**written, "file": str(arguments.file), "bytes": arguments.file.stat().st_size})
    words(f"pipeline {pipeline}: position {snapshot.position}, {len(snapshot.states)} producers → {arguments.file}")
    return ExitCode.DONE


def snapshot_import(arguments: Arguments, settings: Settings) -> ExitCode:
    """Bring an exported snapshot back beside the ones that are kept."""
    snapshot = read_snapshot(arguments.file)
    with open_database(settings) as engine:
        PostgresSnapshots(engine).put(snapshot)
    if arguments.json:
        show_json({"pipeline": snapshot.pipeline, "position": snapshot.position, "producers": len(snapshot.states)})
    words(f"pipeline {snapshot.pipeline}: there is a snapshot at position {snapshot.position}")
    return ExitCode.DONE


def recover(arguments: Arguments, settings: Settings) -> ExitCode:
    """Rebuild the producer states from the whole ledger."""
    with open_database(settings) as engine:
        arguments.pipeline = arguments.pipeline or _only_pipeline(engine)
        return recover_commands.state(arguments, engine)


def rewind(arguments: Arguments, settings: Settings) -> ExitCode:
    """Take back rows and state after a position."""
    with open_database(settings) as engine:
        return recover_commands.rewind(arguments, engine)


def rebuild(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load everything into a new database, and compare it with a snapshot."""
    with database(settings) as dsn:
        with opened(dsn):
            pass
        return recover_commands.rebuild(arguments, dsn)


def maintain(arguments: Arguments, settings: Settings) -> ExitCode:
    """Let go of what has ended, of every pipeline."""
    with open_database(settings) as engine:
        return maintain_commands.maintain(arguments, engine, home=settings.home)


def metrics(arguments: Arguments, settings: Settings) -> ExitCode:
    """Figures for those who watch."""
    from onceload.metrics import metrics as print_or_serve

    with open_database(settings) as engine:
        return print_or_serve(arguments, engine)


def run_all(arguments: Arguments, settings: Settings) -> ExitCode:
    """Run an embedded Postgres, Airflow and growing samples until somebody says stop."""
    from onceload import stack

    _refuse_another_database("onceload run", settings)
    stack.run(settings.home, port=arguments.port, pipelines=arguments.pipelines)
    return ExitCode.DONE


def run_cluster(arguments: Arguments, settings: Settings) -> ExitCode:
    """Run a Spark cluster on this machine until somebody says stop."""
    from onceload import cluster

    cluster.run(settings.home, port=arguments.port, ui_port=arguments.ui_port, workers=arguments.workers)
    return ExitCode.DONE


def tell_demo(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load, kill, break and recover, and tell what came of it."""
    from onceload.demo import demo

    del arguments
    _refuse_another_database("onceload demo", settings)
    with load_commands.interrupted_by_sigterm():
        demo(settings.home)
    return ExitCode.DONE


def _refuse_another_database(command: str, settings: Settings) -> None:
    if settings.dsn is not None:
        expected = "no ONCELOAD_DSN: this brings a Postgres of its own, below ONCELOAD_HOME"
        raise SettingRefused(command, "ONCELOAD_DSN", expected)


def build_parser() -> argparse.ArgumentParser:
    """Every command, with help that teaches."""
    parser = argparse.ArgumentParser(
        prog="onceload",
        description="Loads files into Postgres exactly once.",
        epilog="The database is ONCELOAD_DSN; unset, an embedded Postgres under .onceload/ is started on demand.\n"
        "Exit codes: 0 done, 1 failed and safe to call again, 2 wrong usage, 3 outcome unknown, 4 needs a person.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _command(commands, "init", init, "make the schema, or bring it up to date", "onceload init")
    _command(commands, "doctor", diagnose, "check Python, Java, database, schema, disk and clock", "onceload doctor")
    _load_commands(commands)
    _verify_commands(commands)
    for view, teaches in _VIEWS.items():
        command = _command(commands, view, show(view), teaches, f"onceload {view} --pipeline events --limit 20")
        _pipeline_option(command)
        _limit_option(command)
    _delivery_commands(commands)
    _quarantine_commands(commands)
    _snapshot_commands(commands)
    _recover_commands(commands)
    teaches = "let go of what has ended: old names, audits and pages, idle devices, stages"
    _command(commands, "maintain", maintain, teaches, "onceload maintain")
    teaches = "print or serve figures in the text format of Prometheus"
    figures = _command(commands, "metrics", metrics, teaches, "onceload metrics --port 9188 --pipelines pipelines")
    _metrics_arguments(figures)
    teaches = "run Postgres, Airflow and sample files that grow, all on this machine"
    everything = _command(commands, "run", run_all, teaches, "onceload run --port 8090")
    everything.add_argument("--port", type=_positive, default=8080, metavar="N", help="of Airflow (default: 8080)")
    everything.add_argument(
        "--pipelines",
        type=Path,
        default=Path("pipelines"),
        metavar="FOLDER",
        help="the pipeline files, each of which becomes a DAG (default: pipelines)",
    )
    teaches = "run a Spark master and workers on this machine, for loads to go to"
    workers = _command(commands, "cluster", run_cluster, teaches, "onceload cluster --workers 2")
    workers.add_argument("--port", type=_positive, default=7077, metavar="N", help="of the master (default: 7077)")
    workers.add_argument(
        "--ui-port", type=_positive, default=8081, metavar="N", help="of the page that shows it (default: 8081)"
    )
    workers.add_argument(
        "--workers", type=_positive, default=2, metavar="N", help="how many, with one core each (default: 2)"
    )
    teaches = "load, kill, break and recover on this machine, and tell what came of it"
    _command(commands, "demo", tell_demo, teaches, "onceload demo")
    return parser


def _metrics_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--port", type=_positive, metavar="N", help="serve them there until Ctrl-C, instead of printing them once"
    )
    command.add_argument(
        "--address", default="127.0.0.1", metavar="IP", help="where to listen (default: 127.0.0.1, this machine alone)"
    )
    command.add_argument(
        "--pipelines",
        type=Path,
        metavar="FOLDER",
        help="look at the files of these pipelines too, and say how much of them is not loaded",
    )
    command.add_argument(
        "--look-every", type=_positive, default=60, metavar="SECONDS", help="how often to look at files (default: 60)"
    )


def _load_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, run, teaches in (
        ("validate", validate, "read a pipeline file, and say all that is wrong with it"),
        ("plan", plan, "say what a load would read, from which byte, and why not the rest"),
        ("load", load, "load what is new, exactly once"),
    ):
        command = _command(commands, name, run, teaches, f"onceload {name} pipelines/events.yaml")
        load_commands.file_arguments(command)
        if name in ("plan", "load"):
            load_commands.choice_arguments(command)
        if name == "load":
            load_commands.load_arguments(command)
            load_commands.differences_argument(command)
    for name, run, teaches in (
        ("stage", stage, "read what is new, and keep it where nobody sees it yet"),
        ("audit", audit, "ask the pipeline's suite about a staged batch, or draft one"),
        ("publish", publish, "let a staged batch take effect, in one commit"),
    ):
        command = _command(commands, name, run, teaches, f"onceload {name} pipelines/orders.yaml --batch today")
        load_commands.file_arguments(command)
        if name == "stage":
            load_commands.choice_arguments(command)
            load_commands.load_arguments(command)
        else:
            load_commands.batch_argument(command, required=name == "publish")
        if name == "publish":
            load_commands.differences_argument(command)
            command.add_argument(
                "--give-up",
                action="store_true",
                help="publish nothing, and let go of the batch: the next load plans the same records anew",
            )
        if name == "audit":
            suggest_commands.suggest_arguments(command)


def _verify_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    teaches = "compare files and rows with the ledger, and name what differs"
    proof = _command(commands, "verify", verify, teaches, "onceload verify pipelines/events.yaml")
    load_commands.file_arguments(proof)
    verify_commands.verify_arguments(proof)
    teaches = "say why a file is or is not loaded, and what the next load does"
    reason = _command(commands, "why", why, teaches, "onceload why pipelines/events.yaml 2026/a.jsonl")
    load_commands.file_arguments(reason)
    verify_commands.why_arguments(reason)


_VIEWS: dict[View, str] = {
    "status": "every pipeline: its position, its last commit, its last snapshot",
    "producers": "the files or devices of a pipeline, and what is consumed of each",
    "ledger": "the commits of a pipeline, newest first",
    "sessions": "who loads for a pipeline, in which epoch, and what they hold",
    "audits": "what suites said of the batches of a pipeline, newest first",
}


_NOTHING: dict[View, str] = {
    "status": "pipeline",
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


def _delivery_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    teaches = "load as one session among others, without Spark"
    example = "onceload consume pipelines/events.yaml --session loader-1"
    consumer = _command(commands, "consume", consume, teaches, example)
    load_commands.file_arguments(consumer)
    delivery_commands.consume_arguments(consumer)
    teaches = "look at what waits, is in hand or was set aside, and redeliver or abandon it"
    group = commands.add_parser("deliveries", help=teaches, description=_sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for action, (run, sentence, example) in _DELIVERIES.items():
        command = _command(actions, action, on_one_pipeline(run), sentence, f"onceload deliveries {action} {example}")
        delivery_commands.add_arguments(action, command)
        if action == "list":
            _pipeline_option(command)
            _limit_option(command)


_DELIVERIES: dict[delivery_commands.Action, tuple[Callable[[Arguments, Engine], ExitCode], str, str]] = {
    "list": (delivery_commands.list_them, "what waits, is in hand, is staged or was set aside", "--state dead"),
    "show": (delivery_commands.show, "what a delivery covers, and each try of it that failed", "12"),
    "redeliver": (delivery_commands.redeliver, "give a dead letter all its tries again, once it is mended", "12"),
    "abandon": (delivery_commands.abandon, "give a delivery up, so that the next load plans it anew", "12"),
}


def _quarantine_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    teaches = "look at records that could not be loaded, mend, retry or discard them"
    group = commands.add_parser("quarantine", help=teaches, description=_sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for action, (run, sentence, example) in _QUARANTINE.items():
        command = _command(actions, action, on_one_pipeline(run), sentence, f"onceload quarantine {action} {example}")
        quarantine_commands.add_arguments(action, command)
        if action in ("list", "export", "discard"):
            _pipeline_option(command)
        if action == "list":
            _limit_option(command)


_QUARANTINE: dict[quarantine_commands.Action, tuple[Callable[[Arguments, Engine], ExitCode], str, str]] = {
    "list": (
        quarantine_commands.list_records,
        "which records are in quarantine, and how many of each reason",
        "--reason 'no integer'",
    ),
    "show": (quarantine_commands.show, "all that is known of one record, with its bytes", "12"),
    "export": (
        quarantine_commands.export,
        "write records to a file, to mend and retry them",
        "bad.jsonl --file 2026/a.jsonl",
    ),
    "retry": (
        quarantine_commands.retry,
        "load what is good now: the pipeline was changed, or the records mended",
        "events.yaml --from bad.jsonl\n         onceload quarantine retry events.yaml --id 12 --id 13\n"
        "What is still bad stays held. Retrying again, or twice at once, loads nothing\ntwice.",
    ),
    "discard": (
        quarantine_commands.discard,
        "give records up: the ledger says so, and their bytes are kept",
        "--id 12 --yes",
    ),
}


def _snapshot_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    teaches = "keep, list, export and import the states of all producers at one position"
    group = commands.add_parser("snapshot", help=teaches, description=_sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    take = _command(actions, "take", snapshot_take, "keep the states as they are now", "onceload snapshot take")
    kept = _command(actions, "list", show("snapshots"), "the snapshots that are kept", "onceload snapshot list")
    _limit_option(kept)
    out = _command(
        actions, "export", snapshot_export, "write a snapshot to a file", "onceload snapshot export events.snapshot"
    )
    back = _command(
        actions,
        "import",
        snapshot_import,
        "bring an exported snapshot back",
        "onceload snapshot import events.snapshot",
    )
    for command in (take, kept, out):
        _pipeline_option(command)
    _position_option(out)
    for command in (out, back):
        command.add_argument("file", type=Path, metavar="FILE", help="the snapshot's file")


def _recover_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    teaches = "rebuild what was damaged from what proves it"
    group = commands.add_parser("recover", help=teaches, description=_sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    state = _command(
        actions, "state", recover,
        "rebuild producer states from the whole ledger",
        "onceload recover state --pipeline events --dry-run",
    )  # fmt: skip
    _pipeline_option(state)
    state.add_argument(
        "--position",
        type=_number,
        default=0,
        metavar="N",
        help="start from the snapshot at this position (default: 0, from none): faster, but damage that is older than "
        "the snapshot is not found",
    )
    state.add_argument("--dry-run", action="store_true", help="say what differs, and change nothing")
    back = _command(actions, "rewind", rewind, *recover_commands.TEACHES["rewind"])
    back.add_argument(
        "--position",
        type=_number,
        metavar="N",
        help="as it was at this position (default: that of the latest snapshot); 0: before everything",
    )
    recover_commands.add_arguments("rewind", back)
    anew = _command(actions, "rebuild", rebuild, *recover_commands.TEACHES["rebuild"])
    recover_commands.add_arguments("rebuild", anew)


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[Arguments, Settings], ExitCode],
    teaches: str,
    example: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=teaches,
        description=_sentence(teaches),
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="one JSON document on stdout")
    command.set_defaults(run=run)
    return command


def _sentence(teaches: str) -> str:
    return teaches[0].upper() + teaches[1:] + "."


def _pipeline_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pipeline", metavar="NAME", help="which pipeline; may be left out where there is only one")


def _limit_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--limit", type=_positive, default=50, metavar="N", help="at most so many rows (default: 50)")


def _position_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--position", type=_positive, metavar="N", help="the snapshot at this position (default: the latest)"
    )


#: One more must still be an int8.
_NUMBER_MAX = 2**63 - 2


def _positive(text: str) -> int:
    return _number(text, least=1)


def _number(text: str, *, least: int = 0) -> int:
    number = int(text)
    if not least <= number <= _NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"expected {least} to {_NUMBER_MAX}, found {text}")
    return number
