"""The command that starts a load in Spark, as the connection and the task ask for it."""

import json
import os

import pytest

from onceload_core.errors import SettingRefused


def command_of(connection, conf, **program):
    # Each process of the tests collects this module, and few of them need Airflow, which is slow to import.
    from airflow.sdk import Connection

    from onceload_airflow.spark_submit import submit_command

    return submit_command(Connection(conn_id="c", **connection), conf, **program)


@pytest.fixture
def submit(monkeypatch, tmp_path):
    program = tmp_path / "spark-submit"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def made(connection, **conf):
        command = command_of(connection, conf, name="run", program="main.py", arguments=["load", "a.yaml"])
        assert command[0] == str(program)
        return command[1:]

    return made


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ({"conn_type": "spark", "host": "local[*]"}, "local[*]"),
        ({"conn_type": "spark", "host": "spark://a:7077,b:7077"}, "spark://a:7077,b:7077"),
        ({"conn_type": "spark", "host": "a", "port": 7077}, "spark://a:7077"),
        ({"conn_type": "spark", "host": "k8s://https://a", "port": 443}, "k8s://https://a:443"),
        ({"conn_type": "generic", "host": "k8s://https://a:443"}, "k8s://https://a:443"),
        ({"conn_type": "k8s", "host": "https://a:443"}, "k8s://https://a:443"),
        ({"conn_type": "k8s", "host": "https://a", "port": 443}, "k8s://https://a:443"),
        ({"conn_type": "spark", "host": "yarn"}, "yarn"),
        ({"conn_type": "spark"}, "yarn"),
    ],
)
def test_the_master_is_found_in_a_form_and_in_the_parts_of_a_uri(submit, connection, master):
    assert submit(connection)[:2] == ["--master", master]


def test_extras_are_settings_and_those_of_the_task_replace_them(submit):
    extra = {"queue": "nightly", "spark.archives": "a.tar.gz#environment", "spark.executor.memory": "1g"}

    command = submit(
        {"conn_type": "spark", "host": "yarn", "extra": json.dumps(extra)},
        **{"spark.executor.memory": "4g"},
    )

    assert command[2:] == [
        *("--conf", "spark.yarn.queue=nightly"),
        *("--conf", "spark.archives=a.tar.gz#environment"),
        *("--conf", "spark.executor.memory=4g"),
        *("--name", "run", "main.py", "load", "a.yaml"),
    ]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"spark-home": "/srv/spark"}, "connection c, extra: found spark-home. Nothing was changed. Expected settings"),
        ({"spark-binary": "/bin/sh"}, "connection c, extra spark-binary: found /bin/sh. Nothing was changed. Expected"),
        ({"spark-binary": "spark3-submit"}, "spark3-submit: found no such program on the PATH. Nothing was changed."),
    ],
)
def test_other_extras_and_other_programs_are_refused(submit, extra, words):
    with pytest.raises(SettingRefused, match=f"^{words}"):
        submit({"conn_type": "spark", "host": "yarn", "extra": json.dumps(extra)})


def test_without_one_on_the_path_the_program_of_pyspark_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    command = command_of({"conn_type": "spark"}, {}, name="n", program="p", arguments=[])

    assert command[0].endswith("pyspark/bin/spark-submit")
