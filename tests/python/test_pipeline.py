"""What the command line does, from Python."""

import logging
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import yaml

import onceload
from onceload.pipeline_file import read_pipeline
from onceload.snapshot_file import write_snapshot
from onceload_core.names import Position
from onceload_core.replay import Snapshot
from tests.python.conftest import Place
from tests.servers import execute, temporary_home
from tests.waiting import PATIENCE_S

PIPELINES = sorted(Path("pipelines").glob("*.yaml"))


def test_a_load_from_python_and_its_repetition(place: Place) -> None:
    place.write("a.jsonl", 1, 2)
    pipeline = place.pipeline()

    planned = pipeline.plan()
    first, second = pipeline.load(), pipeline.load(only="a.jsonl")

    assert [each.listed.name for each in planned.to_read] == ["a.jsonl"]
    assert (first.loaded, first.position, second.loaded, second.position) == (2, 1, 0, 1)
    assert place.rows() == [(1,), (2,)]
    assert (pipeline.verify(deep=True).differing, pipeline.verify(deep=True).rows_compared) == (0, 2)
    assert pipeline.why("a.jsonl").next_load == "does nothing: all of it is loaded"


def test_a_batch_is_staged_audited_and_published_or_given_up(place: Place) -> None:
    place.write("a.jsonl", 1)
    pipeline = place.pipeline()

    staged = pipeline.stage(batch="first")
    with pytest.raises(onceload.SettingRefused, match="suite"):
        pipeline.audit("first")
    assert (staged.staged, place.rows()) == (1, [])
    assert (pipeline.give_up("first"), pipeline.give_up("first")) == (True, False)
    with pytest.raises(onceload.NothingKept):
        pipeline.publish("first")
    pipeline.stage(batch="second")
    assert [pipeline.publish("second").loaded, pipeline.publish("second").loaded] == [1, 1]
    assert place.rows() == [(1,)]


def test_a_process_that_must_not_have_children_may_load(place: Place) -> None:
    """A worker of Celery is one."""
    place.write("a.jsonl", 1)
    load = place.pipeline().load
    process = get_context("spawn").Process(target=load, kwargs={"engine": "local"}, daemon=True)

    process.start()
    process.join(PATIENCE_S)

    assert (process.exitcode, place.rows()) == (0, [(1,)])


def test_recoveries_from_python(place: Place) -> None:
    place.write("a.jsonl", 1)
    pipeline = place.pipeline()
    pipeline.load()
    execute(place.dsn, "UPDATE onceload.producer SET consumed = '{[0,5)}'")

    assert pipeline.recover_state(dry_run=True).differing == ("a.jsonl",)
    assert pipeline.recover_state().applied
    assert pipeline.recover_rewind(position=0, dry_run=True).rows == 1
    assert pipeline.recover_rewind(position=0).applied
    assert (place.rows(), pipeline.load().loaded, place.rows()) == ([], 1, [(1,)])


def test_a_lost_database_is_rebuilt_and_compared_with_a_snapshot_of_it(place: Place, tmp_path: Path) -> None:
    place.write("a.jsonl", 1, 2)
    pipeline = place.pipeline()
    exported = tmp_path / "exported.snapshot"
    before = Snapshot(pipeline=pipeline.name, position=Position(1), taken_at=datetime.now(UTC), states={})
    write_snapshot(before, exported)

    rebuilt = pipeline.recover_rebuild(snapshot=exported, batch="again")

    assert (rebuilt.report.loaded, rebuilt.report.batch, place.rows()) == (2, "again", [(1,), (2,)])
    assert rebuilt.comparison is not None
    assert rebuilt.comparison.ahead == ("a.jsonl",)
    with pytest.raises(onceload.SettingRefused, match="with 1 commits in this database"):
        pipeline.recover_rebuild()


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_a_mapping_is_read_as_its_file_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    monkeypatch.chdir(path.parent)

    of_mapping = onceload.Pipeline.of(_typed(described), values={}).declared
    of_file = read_pipeline(Path(path.name))

    assert of_mapping == of_file


def _typed(value: Any) -> Any:
    """Numbers and booleans, which the loader above leaves as texts."""
    match value:
        case dict():
            return {key: _typed(each) for key, each in value.items()}
        case list():
            return tuple(map(_typed, value))
        case "true" | "false":
            return value == "true"
        case str() if value.isdecimal():
            return int(value)
        case _:
            return value


@dataclass(frozen=True)
class AsDataclass:
    """A description with the keys of a pipeline file."""

    pipeline: str
    source: dict[str, Any]
    columns: dict[str, str]
    target: dict[str, str]
    schedule: str | None = None
    delivery: dict[str, Any] = field(default_factory=lambda: {"open_max": None})


def test_a_dataclass_is_read_as_its_mapping_is(place: Place) -> None:
    described = place.describe()

    assert onceload.Pipeline.of(AsDataclass(**described), dsn=place.dsn) == place.pipeline()


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (["pipeline"], "a value of type list"),
        (AsDataclass, "a value of type type"),
        ({"pipeline": object()}, "a value of type object"),
        ({1: "events"}, "the key 1"),
        ({"pipeline": "\ud800"}, "which is not UTF-8"),
    ],
    ids=["a list", "a class", "an object", "a number as key", "half a character"],
)
def test_a_description_of_another_type_is_refused(description: object, message: str) -> None:
    with pytest.raises(onceload.SettingRefused, match=message):
        onceload.Pipeline.of(description)


def test_a_mapping_that_contains_itself_is_refused() -> None:
    description: dict[str, object] = {}
    description["columns"] = description

    with pytest.raises(onceload.SettingRefused, match="contains itself"):
        onceload.Pipeline.of(description)


def test_all_errors_of_a_mapping_come_at_once_and_without_lines(place: Place) -> None:
    with pytest.raises(onceload.PipelineFileRefused) as refused:
        place.pipeline(columns={"id": "bigserial"}, delivery={"sessions": "4"}, targets={})
    assert [each.split(": ")[1] for each in refused.value.problems] == ["columns.id", "delivery.sessions", "targets"]
    assert refused.value.problems[0].startswith("the description of the pipeline: columns.id: expected one of")


def test_the_address_of_the_database_is_not_shown(place: Place) -> None:
    with pytest.raises(onceload.SettingRefused, match="dsn: found another value"):
        onceload.Pipeline.of(place.describe(), dsn="host=x password=secret")

    shown = repr(onceload.Pipeline.of(place.describe(), dsn="postgresql://u:secret@h/d"))

    assert "secret" not in shown


def test_a_misspelled_option_is_not_ignored(place: Place) -> None:
    with pytest.raises(TypeError, match="replace"):
        place.pipeline().load(replace=True)  # type: ignore[call-arg]


def test_an_unknown_engine_is_refused_before_anything_starts(place: Place) -> None:
    with pytest.raises(onceload.SettingRefused, match="engine: found 'sparc'"):
        place.pipeline().load(engine="sparc")  # type: ignore[arg-type]


def test_two_pipelines_load_in_two_threads_and_leave_the_program_as_it_was(place: Place) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers, main = list(logging.getLogger().handlers), sys.modules["__main__"]
    pipelines = []
    for number in (1, 2):
        place.write(f"{number}.jsonl", *range(number, 200, 2))
        source = {"path": str(place.folder / f"{number}.jsonl"), "format": "jsonl", "chunk_bytes": 1000}
        changes: dict[str, Any] = {"pipeline": f"p{number}", "source": source, "target": {"table": f"t{number}"}}
        pipelines.append(place.pipeline(**changes, publish="direct"))

    with ThreadPoolExecutor(2) as threads:
        loaded = [each.loaded for each in threads.map(lambda pipeline: pipeline.load(engine="local"), pipelines)]

    assert (loaded, len(place.rows(table="t1")), len(place.rows(table="t2"))) == ([100, 99], 100, 99)
    assert {number: signal.getsignal(number) for number in before} == before
    assert (logging.getLogger().handlers, sys.modules["__main__"]) == (handlers, main)


def test_a_failing_callback_is_logged_once_and_does_not_stop_the_load(place: Place, caplog) -> None:
    place.write("a.jsonl", 1)
    called = threading.Event()

    def on_progress(progress: onceload.Progress | onceload.Waiting) -> None:
        called.set()
        raise ZeroDivisionError

    from onceload.host_program import guarded

    report = guarded(on_progress)
    assert report is not None
    for _ in range(2):
        report(onceload.Waiting(waits_for="Spark"))

    assert called.is_set()
    # A thread of an earlier test may still log.
    ours = [each for each in caplog.records if each.thread == threading.get_ident()]
    assert [each.getMessage() for each in ours] == [
        "on_progress raised an error and is not called again; the load continues"
    ]
    assert place.pipeline().load(on_progress=on_progress).loaded == 1


SCRIPT = """
import onceload
pipeline = onceload.Pipeline.of({description!r})
for _ in range(2):
    print(pipeline.load(engine="local").loaded)
with onceload.database() as dsn:
    print(onceload.Pipeline.of({description!r}, dsn=dsn).load().loaded)
"""


@pytest.mark.long
def test_a_script_without_a_main_guard_loads_twice_into_the_embedded_database(place: Place) -> None:
    place.write("a.jsonl", 1)
    script = place.folder.parent / "script.py"
    script.write_text(SCRIPT.format(description=place.describe()), encoding="utf-8")

    with temporary_home() as home:
        environment = {"ONCELOAD_HOME": str(home), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("1\n0\n0\n", "")


def test_a_pipeline_of_another_database_is_another_value(place: Place) -> None:
    pipeline = place.pipeline()

    assert pipeline == place.pipeline()
    assert pipeline != replace(pipeline, settings=replace(pipeline.settings, dsn="postgresql://h/d"))
