"""Spark that does not start: its options or its Java are wrong, or its JVM died."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onceload_core.errors import ExitCode
from tests.waiting import PATIENCE_S

START = """
import sys
from onceload_core.errors import OnceloadError
from onceload_jobs.work.spark.classic import ClassicSpark

try:
    with ClassicSpark.started("events", None, dict([sys.argv[1].split("=")])):
        pass
except OnceloadError as error:
    print(type(error).__name__, int(error.exit_code), error)
"""


def started(java: str, *, home: Path, option: str = "spark.ui.enabled=false") -> list[str]:
    """How the start ends with a Java whose JVM of Spark is this shell command."""
    program = home / "bin" / "java"
    program.parent.mkdir()
    real = shutil.which("java")
    program.write_text(f'#!/bin/sh\ncase "$*" in *launcher.Main*) exec {real} "$@";; *) {java};; esac\n')
    program.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(home)}
    command = [sys.executable, "-c", START, option]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.stdout.split(maxsplit=2)


@pytest.mark.parametrize("java", ["kill -9 $$", "exit 137"])
def test_a_jvm_that_is_killed_while_spark_starts_may_be_tried_again(tmp_path, java):
    name, code, message = started(java, home=tmp_path)

    assert (name, int(code)) == ("TasksFailed", ExitCode.CALL_AGAIN)
    assert "Spark did not start" in message
    assert "Committed rows stay loaded. Run the same command again" in message


def test_a_java_that_ends_with_an_error_is_refused(tmp_path):
    name, code, message = started("exit 1", home=tmp_path)

    assert (name, int(code)) == ("SparkRefused", ExitCode.WRONG_USE)
    assert "`onceload doctor`" in message


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "name"),
    [("spark.task.cpus=x", "SparkRefused"), ("spark.driver.bindAddress=203.0.113.7", "TasksFailed")],
)
def test_an_option_that_spark_does_not_know_is_refused_and_a_port_that_is_not_free_is_not(tmp_path, option, name):
    real = shutil.which("java")

    assert started(f'exec {real} "$@"', home=tmp_path, option=option)[0] == name
