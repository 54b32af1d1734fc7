"""How a load ends is remembered until a later one succeeds, and so are the files that it left."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest

import onceload
from onceload.runs import look_for_run
from onceload.settings import Settings
from onceload.states import Found, State, Verdict, state_of
from onceload_core.errors import DatabaseLost, ExitCode, NotFound, OnceloadError, TooManyQuarantined
from onceload_core.names import Batch
from onceload_core.pause import PipelinePaused
from onceload_core.postgres import LedgerSettings, PostgresSnapshots, pausing
from onceload_core.postgres.attempts import find_left, look_attempts
from onceload_core.postgres.metrics import look_now
from onceload_core.postgres.upkeep import forget_attempts
from onceload_jobs.load import load as loading
from onceload_jobs.load import recorded
from onceload_jobs.load.offering import Offering
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import NothingKept, publish_batch
from onceload_jobs.pipeline.declared import Publish, QuarantineLimit
from onceload_jobs.plan.choice import Choice
from tests.loads.conftest import InThisProcess, Loads, line
from tests.servers import execute


def test_a_rename_takes_the_last_outcome_and_the_waits_along(loads: Loads) -> None:
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.jsonl", line(2)[:-1])
    loads.load()
    before = find_left(loads.engine, "events")
    new = replace(loads.declared, pipeline=replace(loads.declared.pipeline, name="new"))
    with pytest.raises(OnceloadError):
        loads.load(pipeline=new.pipeline)
    assert look_attempts(loads.engine, only="new")
    # Upkeep and audits do not ask whether a pipeline has loaded anything.
    PostgresSnapshots(loads.engine).take("new")
    execute(
        loads.dsn,
        "INSERT INTO onceload.audit (pipeline_id, batch, stage, suite, asked, rows, passed)"
        " SELECT pipeline_id, 'b', 's', 'sound', 'd', 0, false FROM onceload.pipeline WHERE name = 'new'",
    )

    execute(loads.dsn, "UPDATE onceload.pipeline SET name = 'new' WHERE name = 'events'")

    assert list(before.since) == ["b.jsonl"]
    assert find_left(loads.engine, "new") == before
    assert [(each.pipeline, each.exit_code) for each in look_attempts(loads.engine)] == [("new", 0)]


def test_upkeep_forgets_old_loads_of_names_without_a_pipeline(loads: Loads) -> None:
    loads.write("a.jsonl", line(1))
    loads.load()
    old = "INSERT INTO onceload.attempt (pipeline, batch, begun_at) VALUES ('{}', 'b', now() - interval '{} days')"
    for name, days in (("gone", 31), ("young", 29), ("events", 31)):
        execute(loads.dsn, old.format(name, days))

    assert [forget_attempts(loads.engine) for _ in range(2)] == [1, 0]

    assert {each.pipeline for each in look_attempts(loads.engine)} == {"events", "young"}


class Killed(BaseException):
    """The process is dead."""


def outcome(loads: Loads) -> tuple[int | None, str | None]:
    """The exit code and the reason of the last load."""
    (found,) = look_attempts(loads.engine, only="events")
    return found.exit_code, found.reason


def verdict(loads: Loads) -> Verdict:
    rows, attempts = look_now(loads.engine, only="events"), look_attempts(loads.engine, only="events")
    found = Found(name="events", row=rows[0] if rows else None, attempt=attempts[0] if attempts else None)
    return state_of(found, now=datetime.now(UTC))


@pytest.fixture
def staged(loads: Loads) -> Loads:
    loads.declared = replace(loads.declared, publish=Publish.STAGED)
    return loads


def keep(loads: Loads, batch: str) -> None:
    how = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, publishes=False)
    loading.load(loads.declared, how, batch=Batch(batch), executor=InThisProcess())


def publish(loads: Loads, batch: str) -> None:
    publish_batch(loads.declared, LoadSettings(ledger=LedgerSettings(dsn=loads.dsn)), batch=Batch(batch))


def test_a_failure_is_remembered_until_a_load_succeeds(loads):
    away = loads.folder.rename(loads.folder.with_name("away"))
    with pytest.raises(NotFound):
        loads.load()

    assert outcome(loads) == (ExitCode.WRONG_USE, "NotFound")
    assert verdict(loads).state is State.FAILED

    away.rename(loads.folder)
    loads.load()
    assert outcome(loads) == (ExitCode.DONE, "")
    assert verdict(loads).state is not State.FAILED


def test_a_failure_before_a_pipeline_is_registered_is_remembered(loads):
    execute(loads.admin_dsn, "REVOKE INSERT ON onceload.pipeline FROM onceload_loader")
    with pytest.raises(OnceloadError):
        loads.load()

    assert verdict(loads).state is State.FAILED


def test_no_value_of_a_record_is_remembered_with_a_failure(loads):
    limit = QuarantineLimit(records=0)
    loads.write("a.jsonl", line(1, amount="a secret"))
    with pytest.raises(TooManyQuarantined, match="a secret"):
        loads.load(quarantine_limit=limit)

    assert outcome(loads) == (ExitCode.NEEDS_A_PERSON, "TooManyQuarantined")


def test_files_that_need_a_person_are_counted_in_the_outcome(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("a.jsonl", line(2))
    loads.load()

    assert outcome(loads) == (ExitCode.NEEDS_A_PERSON, "files that cannot be loaded: 1")


def test_a_load_of_a_paused_pipeline_has_not_failed(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    pausing.pause(loads.engine, "events", by="ann", why="a repair")

    with pytest.raises(PipelinePaused):
        loads.load()

    assert outcome(loads) == (ExitCode.DONE, "")
    assert verdict(loads).state is State.PAUSED


def test_a_killed_load_is_stuck_until_a_load_succeeds(loads, monkeypatch):
    loads.write("a.jsonl", line(1))
    with monkeypatch.context() as dying:

        def die(*_: object) -> None:
            raise Killed

        dying.setattr(loading._Load, "_load", die)
        dying.setattr(recorded, "end", lambda *_, **__: None)
        with pytest.raises(Killed):
            loads.load()

    assert verdict(loads).state is State.FINE
    execute(loads.admin_dsn, "UPDATE onceload.attempt SET begun_at = begun_at - interval '16 minutes'")
    assert verdict(loads).state is State.STUCK
    loads.load()
    assert verdict(loads).state is State.FINE


def test_a_failure_stays_while_its_batch_is_tried_again(loads, monkeypatch):
    def fail(*_: object) -> None:
        seen.append(verdict(loads).state)
        raise NotFound("source folder", "away")

    seen: list[State] = []
    with monkeypatch.context() as failing:
        failing.setattr(loading._Load, "_load", fail)
        for _ in range(2):
            with pytest.raises(NotFound):
                loads.load(batch="today")

    assert seen[-1] is State.FAILED
    loads.load(batch="today")
    assert outcome(loads) == (ExitCode.DONE, "")


def test_a_load_that_cannot_record_its_end_has_loaded(loads):
    loads.write("a.jsonl", line(1))
    execute(loads.admin_dsn, "ALTER TABLE onceload.attempt RENAME TO away")

    loads.load()

    assert loads.rows() == [1]


def test_files_of_a_kept_batch_wait_until_it_is_published(staged):
    staged.write("a.jsonl", line(1))
    keep(staged, "today")
    assert list(find_left(staged.engine, "events").since) == ["a.jsonl"]
    assert verdict(staged).state is not State.FAILED

    publish(staged, "today")

    assert find_left(staged.engine, "events").since == {}
    assert outcome(staged) == (ExitCode.DONE, "")


def test_a_batch_that_cannot_be_published_is_a_failure_until_one_is(staged):
    staged.write("a.jsonl", line(1))
    with pytest.raises(NothingKept):
        publish(staged, "today")
    assert verdict(staged).state is State.FAILED

    keep(staged, "tomorrow")
    # Nothing has taken effect yet.
    assert verdict(staged).state is State.FAILED
    publish(staged, "tomorrow")
    assert verdict(staged).state is State.FINE


def test_a_load_of_one_day_ends_no_wait_of_another_day(loads):
    by_day = replace(
        loads.declared.source,
        path=str(loads.folder / "2026-03-01" / "*.jsonl"),
        pattern=str(loads.folder / "{{ ds }}" / "*.jsonl"),
        root=str(loads.folder),
    )
    execute(loads.admin_dsn, "INSERT INTO onceload.waiting_file VALUES ('events', '2026-02-28/a.jsonl', now())")
    loads.write("2026-03-01/a.jsonl", line(1))

    loads.load(source=by_day)

    left = find_left(loads.engine, "events")
    assert (list(left.since), left.looked_at) == (["2026-02-28/a.jsonl"], None)


def test_a_run_that_finds_nothing_new_ends_a_failure(loads):
    pipeline = onceload.Pipeline(loads.declared, Settings(dsn=loads.dsn))
    loads.folder.rename(loads.folder.with_name("away"))
    with pytest.raises(NotFound):
        look_for_run(pipeline, batch="one")
    assert verdict(loads).state is State.FAILED

    loads.folder.with_name("away").rename(loads.folder)
    look_for_run(pipeline, batch="two")

    assert outcome(loads) == (ExitCode.DONE, "")


def test_a_run_with_something_to_load_goes_on(loads):
    loads.write("a.jsonl", line(1))

    assert look_for_run(onceload.Pipeline(loads.declared, Settings(dsn=loads.dsn)), batch="one").is_anything_new

    (found,) = look_attempts(loads.engine, only="events")
    assert (found.exit_code, found.running) == (None, "one")


def test_a_load_of_one_file_has_not_looked_at_the_others(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    before = find_left(loads.engine, "events")
    loads.write("b.jsonl", line(2))
    how = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, choice=Choice(files=("a.jsonl",)))

    loading.load(loads.declared, how, batch=Batch("one"), executor=InThisProcess())

    assert before.looked_at is not None
    assert find_left(loads.engine, "events") == before


@pytest.mark.parametrize("ahead", ["2 hours", "-2 hours"])
def test_the_last_outcome_counts_whatever_the_clock_showed_when_earlier_ones_were_recorded(loads, monkeypatch, ahead):
    loads.write("a.jsonl", line(1))
    loads.load()
    for number, fails in enumerate((True, False, True, False), start=2):
        loads.write(f"{number}.jsonl", line(number))
        execute(
            loads.admin_dsn,
            f"UPDATE onceload.attempt SET begun_at = begun_at + interval '{ahead}', ended_at = ended_at + interval"
            f" '{ahead}', listed_at = listed_at + interval '{ahead}', looked_at = looked_at + interval '{ahead}'",
        )
        if fails:
            break_off(loads, monkeypatch)
        else:
            loads.load()

        assert (verdict(loads).state is State.FAILED) == fails
        (found,) = look_attempts(loads.engine, only="events")
        assert found.ended_age_s >= 0


def test_a_file_waits_since_now_at_most_though_the_clock_was_ahead(loads, monkeypatch):
    loads.write("a.jsonl", line(1))
    loads.load()
    execute(loads.admin_dsn, "UPDATE onceload.attempt SET looked_at = looked_at + interval '2 hours'")
    loads.write("b.jsonl", line(2))
    break_off(loads, monkeypatch)

    assert find_left(loads.engine, "events").since["b.jsonl"] <= datetime.now(UTC).timestamp()


def test_files_that_wait_are_remembered_while_the_source_has_none(loads, monkeypatch):
    """As when a store is not mounted, and only the folder is there."""
    loads.write("a.jsonl", line(1))
    break_off(loads, monkeypatch)
    before = find_left(loads.engine, "events").since
    away = loads.folder.rename(loads.folder.with_name("away"))
    loads.folder.mkdir()

    loads.load()

    assert before.keys() == {"a.jsonl"}
    assert find_left(loads.engine, "events").since == before
    loads.folder.rmdir()
    away.rename(loads.folder)
    loads.load()
    assert find_left(loads.engine, "events").since == {}


def break_off(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load fails after its plan, because the connection is lost."""

    def lost(*_: object) -> None:
        raise DatabaseLost("claiming spans", "the server closed the connection")

    with monkeypatch.context() as failing:
        failing.setattr(Offering, "claimed", lost)
        with pytest.raises(DatabaseLost):
            loads.load()


def test_loads_that_end_at_once_record_their_ends(loads):
    for number in range(3):
        loads.write(f"{number}.jsonl", line(number))
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda batch: loads.load(batch=batch), "abc"))

    # One that found files held by another has failed, but none is missing.
    (found,) = look_attempts(loads.engine, only="events")
    assert found.exit_code is not None
    assert found.running is None
