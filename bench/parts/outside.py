"""`onceload load` as a user calls it, from outside."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.events import COLUMNS
from onceload_jobs.pipeline.declared import Publish


def pipeline_file(path: Path, source: Path, *, publish: Publish) -> Path:
    # All JSON is YAML too.
    content = {
        "pipeline": "events",
        "source": {"path": str(source), "format": "jsonl"},
        "columns": COLUMNS,
        "target": {"table": "public.target"},
        "publish": publish,
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def run_load(dsn: str, pipeline: Path, *options: str, spark: str | None = None) -> tuple[float, Mapping[str, Any]]:
    """The seconds of `onceload load`, and its report; with the address of a Spark that runs, in this one."""
    started = time.perf_counter()
    with start_load(dsn, pipeline, *options, spark=spark) as process:
        report = finished(process)
    return time.perf_counter() - started, report


def start_load(dsn: str, pipeline: Path, *options: str, spark: str | None = None) -> "subprocess.Popen[str]":
    return start(
        [sys.executable, "-m", "onceload", "load", str(pipeline), "--json", *options],
        {"ONCELOAD_DSN": dsn, "ONCELOAD_SPARK": spark or ""},
    )


def start(command: Sequence[str], settings: Mapping[str, str]) -> "subprocess.Popen[str]":
    # By default Python keeps what it has compiled; the shell of a bench may forbid that.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        command,
        env={**environment, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: "subprocess.Popen[str]") -> Mapping[str, Any]:
    """Wait for the end of the command, and return its report."""
    output, messages = process.communicate()
    if process.returncode:
        raise SystemExit(f"onceload load: exit code {process.returncode}. Nothing was measured\n{messages}")
    report: Mapping[str, Any] = json.loads(output)
    return report
