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


OWN = {"ingest__dated", "ingest__chunks", "ingest__one", "ingest__two", "ingest__arriving"}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    home = tmp_path_factory.mktemp("parsing")
    pipelines = home / "pipelines"
    shutil.copytree(ROOT / "pipelines", pipelines)
    return Airflow(home=home / "airflow", pipelines=pipelines)


@pytest.fixture(scope="module")
def parsed(airflow):
    """Many files are parsed by one process, as starting it takes the time."""
    always = PLAIN.replace("{{{{ ds }}}}/", "")
    written = {
        "dated": PLAIN.format(name="dated"),
        "chunks": PLAIN.format(name="chunks") + "publish: direct\n",
        "bad": PLAIN.format(name="bad").replace("jsonl}", "jsn}"),
        "a.b": "# use {{ ds }} for a day\n" + always.format(name="one"),
        "a_b": "# use {{ ds }} for a day\n" + always.format(name="two"),
        "arriving": always.format(name="arriving") + "schedule: on_arrival\n",
        **{f"p{number}": PLAIN.format(name=f"p{number}") for number in range(100)},
    }
    for name, content in written.items():
        (airflow.pipelines / f"{name}.yaml").write_text(content)
    return airflow.parsed()


def test_each_pipeline_file_is_a_dag_that_says_what_it_does(parsed):
    assert parsed["heavy"] == []
    assert set(parsed["dags"]) == SAMPLES | OWN | {f"ingest__p{number}" for number in range(100)}
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
    assert parsed["dags"]["ingest__events"]["schedule"] == "*/5 * * * *"


def test_a_dag_asks_for_the_day_that_its_files_need_and_a_comment_asks_for_nothing(parsed):
    assert "date" in parsed["dags"]["ingest__dated"]["params"]
    assert "date" not in parsed["dags"]["ingest__one"]["params"]


def test_a_broken_pipeline_file_breaks_its_own_dag_alone_and_says_what_to_fix(airflow, parsed):
    ((file, said),) = parsed["errors"].items()
    assert file.startswith("ingest__bad_yaml_")
    assert (
        f"{airflow.pipelines}/bad.yaml:2: source.format: expected one of jsonl, csv, fixed, json, parquet, orc, avro, "
        "found 'jsn'" in said
    )


def test_the_form_of_backfill_names_the_pipelines_that_cannot_replace_rows(parsed):
    _, about = parsed["dags"]["backfill"]["params"]["mode"]
    _, refusing = about.split(" Not for ")

    assert "chunks" in refusing
    assert "dated" not in refusing
    assert "Not for" not in parsed["dags"]["ingest__dated"]["params"]["mode"][1]


def test_a_pipeline_that_runs_on_arrival_is_parsed_without_a_look(parsed):
    assert "news of arriving" in parsed["dags"]["ingest__arriving"]["schedule"]


@pytest.mark.long
def test_a_pipeline_file_that_goes_takes_its_dag_with_it(airflow, parsed):
    (airflow.pipelines / "events.yaml").unlink()

    assert set(airflow.parsed()["dags"]) == set(parsed["dags"]) - {"ingest__events"}
