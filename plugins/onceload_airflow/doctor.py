"""Checks of what an Airflow finds of Onceload.

`python -m onceload_airflow.doctor` prints them as JSON, in its last line. It is a process of its own, because Airflow
takes seconds to import and logs to stdout. Run it with the environment of a worker. It changes nothing.
"""

import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Connections are then looked up in Airflow's database too, as its API server does it for a task.
os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")

from airflow import __version__
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.plugins_manager import get_plugin_info
from airflow.providers_manager import ProvidersManager

from onceload import doctor
from onceload.databases import open_database
from onceload.doctor import Check
from onceload.pipeline_file import find_pipelines
from onceload_airflow.bundle import PipelinesBundle, RecoveryBundle
from onceload_airflow.connections import CONNECTION_TYPE
from onceload_airflow.hook import OnceloadHook
from onceload_airflow.ingest import dag_of
from onceload_airflow.versions import plugin_errors
from onceload_core.errors import OnceloadError

_OLDEST = (3, 1)
_INSTALL = "install Onceload with its extra airflow in the environment of Airflow, and restart Airflow"
_LIST = "[dag_processor] dag_bundle_config_list (docs/how-to/add-to-your-airflow.md)"


def examine() -> Iterator[Check]:
    """Run all checks; one that fails does not stop the others."""
    providers: Any = ProvidersManager  # It is not typed, nor is the other manager.
    known = providers()
    yield _version()
    yield _provider(known.providers.get("onceload"))
    yield _connection_type(known.hooks.get(CONNECTION_TYPE))
    yield _plugin()
    try:
        configured: Any = DagBundlesManager
        bundles = list(configured().get_all_dag_bundles())
    except Exception as error:  # noqa: BLE001 - whatever Airflow and the classes of others raise for a wrong setting.
        found = " ".join(f"{type(error).__name__}: {error}".split())
        yield Check(
            name="bundles", healthy=False, expected="a list that Airflow can read", found=found, fix=f"fix {_LIST}"
        )
        bundles = []
    folders = [bundle.pipelines for bundle in bundles if isinstance(bundle, PipelinesBundle)]
    yield _bundle(PipelinesBundle, bundles, '{"pipelines": "/srv/pipelines"}')
    yield _bundle(RecoveryBundle, bundles, "{}")
    yield _folder(folders)
    yield from _dags(folders, bundles)
    yield from _database()


def _version() -> Check:
    number = tuple(int(each) for each in __version__.split(".")[:2])
    return Check(
        name="airflow",
        healthy=_OLDEST <= number < (4,),
        expected="Airflow 3.1 or newer, below 4",
        found=f"Airflow {__version__}, Python {sys.version.split()[0]}",
        fix="install Airflow 3.1 or newer, below 4",
    )


def _provider(info: Any) -> Check:  # noqa: ANN401 - of Airflow.
    return Check(
        name="provider",
        healthy=info is not None,
        expected="the provider onceload",
        found=f"onceload {info.version}" if info else "none",
        fix=_INSTALL,
    )


def _connection_type(hook: Any) -> Check:  # noqa: ANN401 - of Airflow. None also if its class cannot be imported.
    return Check(
        name="connection type",
        healthy=hook is not None,
        expected=f"the connection type {CONNECTION_TYPE}",
        found=hook.hook_class_name if hook else "none",
        fix=_INSTALL,
    )


def _plugin() -> Check:
    is_found = any(each["name"] == "onceload" for each in get_plugin_info(["source"]))
    errors = [f"{source}: {error}" for source, error in plugin_errors().items() if "onceload" in source]
    return Check(
        name="plugin",
        healthy=is_found and not errors,
        expected="the plugin onceload, with the pages behind the buttons",
        found="; ".join(errors) or ("onceload" if is_found else "none"),
        fix=_INSTALL,
    )


def _bundle(kind: type[Any], bundles: list[Any], arguments: str) -> Check:
    found = [each.name for each in bundles if isinstance(each, kind)]
    name = "pipelines" if kind is PipelinesBundle else "recovery"
    entry = f'{{"name": "{name}", "classpath": "onceload_airflow.bundle.{kind.__name__}", "kwargs": {arguments}}}'
    return Check(
        name=f"bundle of {name}",
        healthy=bool(found),
        expected=f"a DAG bundle of the class {kind.__name__}",
        found=", ".join(found) or f"none among {', '.join(each.name for each in bundles) or 'no bundles'}",
        fix=f"add {entry} to {_LIST}, and restart the DAG processor",
    )


def _folder(folders: list[Path]) -> Check:
    """The forms of recover, verify and snapshot list the pipelines of this folder."""
    set_to = os.environ.get("ONCELOAD_PIPELINES")
    folder = Path(set_to).absolute() if set_to else None
    return Check(
        name="ONCELOAD_PIPELINES",
        healthy=folder is not None and folder.is_dir() and (not folders or folder in folders),
        expected=f"the folder of the pipeline files{''.join(f', {each}' for each in folders)}",
        found="not set" if folder is None else f"{folder}{'' if folder.is_dir() else ', which is not a folder here'}",
        fix="set it for the DAG processor, the workers and the API server, to the folder of the bundle of pipelines",
    )


def _dags(folders: list[Path], bundles: list[Any]) -> Iterator[Check]:
    if folders:
        pipelines = [path for folder in folders for path in find_pipelines(folder)]
        yield _parsed("DAGs of pipelines", pipelines, dag_of)
    for own in (bundle.path for bundle in bundles if isinstance(bundle, RecoveryBundle)):
        yield _parsed("DAGs of recovery", sorted(own.glob("*.py")), runpy.run_path)


def _parsed(name: str, files: list[Path], parse: Callable[[Any], object]) -> Check:
    errors = [said for path in files if (said := _error_of(parse, path))]
    return Check(
        name=name,
        healthy=bool(files) and not errors,
        expected="at least one file, and a DAG from each",
        found=f"{len(files) - len(errors)} of {len(files)}",
        fix="; ".join(errors) or "put a pipeline file into the folder of the bundle, or correct its path",
    )


def _error_of(parse: Callable[[Any], object], path: Path) -> str | None:
    try:
        parse(path)
    except Exception as error:  # noqa: BLE001 - a broken file must not hide the others.
        return str(error) if isinstance(error, OnceloadError) else f"{path}: {type(error).__name__}: {error}"
    return None


def _database() -> Iterator[Check]:
    """By the address that a task has: ONCELOAD_DSN, or the connection."""
    try:
        settings = OnceloadHook().settings
    except OnceloadError as error:
        expected = f"ONCELOAD_DSN, or a connection {CONNECTION_TYPE}"
        yield Check(name="database", healthy=False, expected=expected, found="none", fix=str(error))
        return
    yield from doctor.check_database(settings, open_database)


if __name__ == "__main__":
    found = [asdict(check) for check in examine()]
    sys.stdout.write("\n" + json.dumps(found) + "\n")
