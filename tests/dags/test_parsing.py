"""DAGs as Airflow parses them: one for each pipeline file, from nothing but that file."""

import shutil

import pytest

from tests.dags.stand import ROOT, Airflow

PLAIN = """\
pipeline: {name}
source: {{path: "in/{{{{ ds }}}}/*.jsonl", format: jsonl}}
columns: {{n: bigint}}
target: {{table: public.{name}}}
"""

SAMPLES = {"ingest__events", "ingest__orders", "ingest__readings"} | {
    "backfill",
    "maintain",
    "recover",
    "snapshot",
    "verify",
}


@pytest.fixture
def airflow(tmp_path):
    pipelines = tmp_path / "pipelines"
    shutil.copytree(ROOT / "pipelines", pipelines)
    return Airflow(home=tmp_path / "airflow", pipelines=pipelines)


def test_each_pipeline_file_is_a_dag_that_says_what_it_does(airflow):
    (airflow.pipelines / "dated.yaml").write_text(PLAIN.format(name="dated"))
    (airflow.pipelines / "chunks.yaml").write_text(PLAIN.format(name="chunks") + "publish: direct\n")

    parsed = airflow.parsed()

    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert set(parsed["dags"]) == {*SAMPLES, "ingest__dated", "ingest__chunks"}
    then = {name: {task: its["then"] for task, its in dag["tasks"].items()} for name, dag in parsed["dags"].items()}
    assert then["ingest__orders"] == {
        "plan": ["load"],
        "load": ["audit"],
        "audit": ["publish"],
        "publish": ["report"],
        "report": [],
    }
    for without_suite in ("ingest__dated", "ingest__chunks"):
        assert then[without_suite] == {"plan": ["load"], "load": ["report"], "report": []}
    for dag in parsed["dags"].values():
        assert dag["doc"]
        assert not dag["catchup"]
        assert "onceload" in dag["tags"]
        assert all(task["doc"] and task["owner"] == "onceload" for task in dag["tasks"].values())
        assert all(task["retries"] for task in dag["tasks"].values())
        assert all(schema["type"] and about for schema, about in dag["params"].values())
    assert "date" in parsed["dags"]["ingest__dated"]["params"]
    assert parsed["dags"]["ingest__events"]["schedule"] == "*/5 * * * *"


def test_a_broken_pipeline_file_breaks_its_own_dag_alone_and_says_what_to_fix(airflow):
    (airflow.pipelines / "bad.yaml").write_text(PLAIN.format(name="bad").replace("jsonl}", "jsn}"))

    parsed = airflow.parsed()

    assert set(parsed["dags"]) == SAMPLES
    ((file, said),) = parsed["errors"].items()
    assert file.startswith("ingest__bad_yaml_")
    assert (
        f"{airflow.pipelines}/bad.yaml:2: source.format: expected one of jsonl, csv, fixed, json, parquet, orc, avro, "
        "found 'jsn'" in said
    )


def test_a_pipeline_file_that_goes_takes_its_dag_with_it(airflow):
    airflow.parsed()
    (airflow.pipelines / "events.yaml").unlink()

    assert set(airflow.parsed()["dags"]) == SAMPLES - {"ingest__events"}


def test_files_whose_names_look_alike_are_two_dags_and_a_comment_asks_for_nothing(airflow):
    for file, name in (("a.b.yaml", "one"), ("a_b.yaml", "two")):
        content = PLAIN.format(name=name).replace("{{ ds }}/", "")
        (airflow.pipelines / file).write_text(f"# use {{{{ ds }}}} for a day\n{content}")

    parsed = airflow.parsed()

    assert set(parsed["dags"]) == {*SAMPLES, "ingest__one", "ingest__two"}
    assert "date" not in parsed["dags"]["ingest__one"]["params"]


def test_a_hundred_pipelines_are_a_hundred_dags(airflow):
    for number in range(100):
        (airflow.pipelines / f"p{number}.yaml").write_text(PLAIN.format(name=f"p{number}"))

    assert len(airflow.parsed()["dags"]) == 100 + len(SAMPLES)


def test_a_pipeline_that_runs_on_arrival_is_parsed_without_a_look(airflow):
    content = PLAIN.format(name="arriving").replace("{{ ds }}/", "")
    (airflow.pipelines / "arriving.yaml").write_text(f"{content}schedule: on_arrival\n")

    parsed = airflow.parsed()

    assert (parsed["errors"], parsed["heavy"]) == ({}, [])
    assert "news of arriving" in parsed["dags"]["ingest__arriving"]["schedule"]
