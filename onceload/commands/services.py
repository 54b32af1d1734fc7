"""The commands that start services: ui, run, cluster, demo, metrics."""

import argparse
from pathlib import Path

from onceload.commands.arguments import Arguments, Commands, command, positive
from onceload.databases import open_database
from onceload.extras import check_installed
from onceload.settings import Settings
from onceload.stopping import interrupted_by_signals
from onceload_core.errors import ExitCode, SettingRefused


def add(commands: Commands) -> None:
    teaches = "serve pages that show the state of all loads"
    console = command(commands, "ui", ui, teaches, "onceload ui --pipelines pipelines")
    _ui_arguments(console)
    teaches = "print or serve metrics for Prometheus"
    metrics_parser = command(
        commands, "metrics", metrics, teaches, "onceload metrics --port 9188 --pipelines pipelines"
    )
    _metrics_arguments(metrics_parser)
    teaches = "run Postgres, Airflow and growing sample files on this machine"
    everything = command(commands, "run", run_all, teaches, "onceload run --port 8090")
    everything.add_argument(
        "--port", type=positive, default=8080, metavar="N", help="the port of Airflow (default: 8080)"
    )
    everything.add_argument(
        "--pipelines",
        type=Path,
        default=Path("pipelines"),
        metavar="FOLDER",
        help="the folder of pipeline files; each becomes a DAG (default: pipelines)",
    )
    teaches = "run a Spark master and workers on this machine"
    workers = command(commands, "cluster", run_cluster, teaches, "onceload cluster --workers 2")
    workers.add_argument(
        "--port", type=positive, default=7077, metavar="N", help="the port of the master (default: 7077)"
    )
    workers.add_argument(
        "--ui-port", type=positive, default=8081, metavar="N", help="the port of its web UI (default: 8081)"
    )
    workers.add_argument(
        "--workers", type=positive, default=2, metavar="N", help="how many workers, with one core each (default: 2)"
    )
    teaches = "show on this machine how loads survive a kill, a broken file and deleted rows"
    command(commands, "demo", run_demo, teaches, "onceload demo")


def _ui_arguments(console: argparse.ArgumentParser) -> None:
    console.add_argument(
        "--port", type=positive, default=8088, metavar="N", help="the port of the pages (default: 8088)"
    )
    _address_argument(console)
    console.add_argument(
        "--write", action="store_true", help="allow changes, such as retries and rewinds (default: read-only)"
    )
    console.add_argument(
        "--pipelines",
        type=Path,
        default=Path("pipelines"),
        metavar="FOLDER",
        help="the folder of pipeline files; their source files are listed every minute while a page is open, to show "
        "what is not loaded yet (default: pipelines)",
    )


def _address_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        metavar="IP",
        help="the address to listen on (default: 127.0.0.1, this machine only)",
    )


def _metrics_arguments(metrics_parser: argparse.ArgumentParser) -> None:
    metrics_parser.add_argument(
        "--port", type=positive, metavar="N", help="serve the metrics on this port until Ctrl-C (default: print once)"
    )
    _address_argument(metrics_parser)
    metrics_parser.add_argument(
        "--pipelines",
        type=Path,
        metavar="FOLDER",
        help="also list the files of the pipelines in this folder, and report how much is not loaded yet",
    )
    metrics_parser.add_argument(
        "--look-every", type=positive, default=60, metavar="SECONDS", help="how often to list files (default: 60)"
    )


def ui(arguments: Arguments, settings: Settings) -> ExitCode:
    """Serve the console until stopped."""
    for package in ("fastapi", "jinja2", "uvicorn"):
        check_installed(package, needed_by="onceload ui")
    from onceload.console.standalone import serve

    folder = arguments.pipelines if arguments.pipelines.is_dir() else None
    with open_database(settings) as engine:
        serve(
            engine,
            settings,
            address=arguments.address,
            port=arguments.port,
            folder=folder,
            writes=arguments.write,
        )
    return ExitCode.DONE


def metrics(arguments: Arguments, settings: Settings) -> ExitCode:
    """Print or serve metrics."""
    from onceload.metrics import metrics as print_or_serve

    with open_database(settings) as engine:
        return print_or_serve(arguments, engine)


def run_all(arguments: Arguments, settings: Settings) -> ExitCode:
    """Run an embedded Postgres, Airflow and growing samples until stopped."""
    from onceload import stack

    _refuse_another_database("onceload run", settings)
    check_installed("airflow", needed_by="onceload run")
    stack.run(settings.home, port=arguments.port, pipelines=arguments.pipelines)
    return ExitCode.DONE


def run_cluster(arguments: Arguments, settings: Settings) -> ExitCode:
    """Run a Spark cluster on this machine until stopped."""
    from onceload import cluster

    check_installed("pyspark", needed_by="onceload cluster")
    cluster.run(settings.home, port=arguments.port, ui_port=arguments.ui_port, workers=arguments.workers)
    return ExitCode.DONE


def run_demo(arguments: Arguments, settings: Settings) -> ExitCode:
    """Run the demo: load, kill, break and recover."""
    from onceload.demo import demo

    del arguments
    _refuse_another_database("onceload demo", settings)
    check_installed("airflow", needed_by="onceload demo")
    with interrupted_by_signals():
        demo(settings.home)
    return ExitCode.DONE


def _refuse_another_database(command: str, settings: Settings) -> None:
    if settings.dsn is not None:
        expected = "no ONCELOAD_DSN, because this starts its own Postgres below ONCELOAD_HOME (unset it)"
        raise SettingRefused(command, "ONCELOAD_DSN", expected)
