"""The commands on the resident Spark: start, stop, status."""

from typing import TYPE_CHECKING

from onceload.commands.arguments import Arguments, Commands, command, positive, sentence
from onceload.extras import check_installed
from onceload.settings import Settings
from onceload.terminal import show_json, words
from onceload_core.errors import ExitCode

if TYPE_CHECKING:
    from onceload.resident import Resident


def add(commands: Commands) -> None:
    teaches = "run a Spark on this machine that stays, so that loads need not start one"
    group = commands.add_parser("spark", help=teaches, description=sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    begin = command(actions, "start", start, "start it, if it does not run", "onceload spark start")
    begin.add_argument("--port", type=positive, default=15002, metavar="N", help="its port (default: 15002)")
    begin.add_argument(
        "--ui-port", type=positive, default=4040, metavar="N", help="the port of its pages (default: 4040)"
    )
    command(actions, "stop", stop, "stop it", "onceload spark stop")
    command(actions, "status", status, "say whether it runs, and where", "onceload spark status")


def start(arguments: Arguments, settings: Settings) -> ExitCode:
    """Start a Spark Connect server below the home folder; it runs on after this command."""
    from onceload import resident

    check_installed("pyspark", needed_by="onceload spark start")
    words("starting Spark; this takes some seconds")
    _show(arguments, resident.start(settings.home, port=arguments.port, ui_port=arguments.ui_port))
    return ExitCode.DONE


def stop(arguments: Arguments, settings: Settings) -> ExitCode:
    """Stop it. A load that uses it fails, and loads the rest when it is called again."""
    from onceload import resident

    stopped = resident.stop(settings.home)
    if arguments.json:
        show_json({"stopped": stopped is not None})
    words("Spark has stopped" if stopped else f"no Spark runs below {settings.home}")
    return ExitCode.DONE


def status(arguments: Arguments, settings: Settings) -> ExitCode:
    """Say whether it runs, and where."""
    from onceload import resident

    _show(arguments, resident.running(settings.home), home=str(settings.home))
    return ExitCode.DONE


def _show(arguments: Arguments, found: "Resident | None", *, home: str = "") -> None:
    if arguments.json:
        # Everyone who may read the answer may use the server.
        show_json({"runs": found is not None, **({"remote": found.remote, "ui": found.ui} if found else {})})
    if found is None:
        words(f"no Spark runs below {home}. Start one: onceload spark start")
        return
    words(f"Spark:   {found.address}  (its jobs: {found.ui})")
    words(f"load:    onceload load FILE --remote {found.address}, or set ONCELOAD_SPARK={found.address}")
    words("stop it: onceload spark stop")
