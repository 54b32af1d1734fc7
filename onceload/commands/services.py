"""The commands that run until they are stopped: run, cluster, demo, metrics."""

import argparse
from pathlib import Path

from dedup_core.errors import ExitCode, SettingRefused
from onceload.commands.arguments import Arguments, Commands, command, positive
from onceload.databases import open_database
from onceload.settings import Settings
from onceload.stopping import interrupted_by_sigterm


def add(commands: Commands) -> None:
    teaches = "print or serve figures in the text format of Prometheus"
    figures = command(commands, "metrics", metrics, teaches, "onceload metrics --port 9188 --pipelines pipelines")
    _metrics_arguments(figures)
    teaches = "run Postgres, Airflow and sample files that grow, all on this machine"
    everything = command(commands, "run", run_all, teaches, "onceload run --port 8090")
    everything.add_argument("--port", type=positive, default=8080, metavar="N", help="of Airflow (default: 8080)")
    everything.add_argument(
        "--pipelines",
        type=Path,
        default=Path("pipelines"),
        metavar="FOLDER",
        help="the pipeline files, each of which becomes a DAG (default: pipelines)",
    )
    teaches = "run a Spark master and workers on this machine, for loads to go to"
    workers = command(commands, "cluster", run_cluster, teaches, "onceload cluster --workers 2")
    workers.add_argument("--port", type=positive, default=7077, metavar="N", help="of the master (default: 7077)")
    workers.add_argument(
        "--ui-port", type=positive, default=8081, metavar="N", help="of the page that shows it (default: 8081)"
    )
    workers.add_argument(
        "--workers", type=positive, default=2, metavar="N", help="how many, with one core each (default: 2)"
    )
    teaches = "load, kill, break and recover on this machine, and tell what came of it"
    command(commands, "demo", tell_demo, teaches, "onceload demo")


def _metrics_arguments(figures: argparse.ArgumentParser) -> None:
    figures.add_argument(
        "--port", type=positive, metavar="N", help="serve them there until Ctrl-C, instead of printing them once"
    )
    figures.add_argument(
        "--address", default="127.0.0.1", metavar="IP", help="where to listen (default: 127.0.0.1, this machine alone)"
    )
    figures.add_argument(
        "--pipelines",
        type=Path,
        metavar="FOLDER",
        help="look at the files of these pipelines too, and say how much of them is not loaded",
    )
    figures.add_argument(
        "--look-every", type=positive, default=60, metavar="SECONDS", help="how often to look at files (default: 60)"
    )


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
    with interrupted_by_sigterm():
        demo(settings.home)
    return ExitCode.DONE


def _refuse_another_database(command: str, settings: Settings) -> None:
    if settings.dsn is not None:
        expected = "no ONCELOAD_DSN: this brings a Postgres of its own, below ONCELOAD_HOME"
        raise SettingRefused(command, "ONCELOAD_DSN", expected)
