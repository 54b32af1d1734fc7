"""The events of real loads: each once, with its counts, and without values of records."""

import logging
from dataclasses import replace

import pytest

from onceload.cli import main
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import ExitCode, PipelineBusy
from onceload_core.names import Batch
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_jobs.batch.stage import sweep
from onceload_jobs.load.load import load
from onceload_jobs.load.staged.kept_batch import audit_batch, give_up
from onceload_jobs.pipeline.declared import Publish, Suite
from onceload_jobs.quality.audit import AuditFailed
from onceload_jobs.recover.retry import retry
from tests.loads.conftest import InThisProcess, line
from tests.loads.test_audit import POSITIVE, UNIQUE
from tests.loads.test_kept import settings_of, stage

#: A value of good records, and one of bad records.
GOOD, BAD = "value-8317", "value-2946"


def test_a_load_logs_its_start_its_commit_and_its_end(loads, logged):
    size = loads.write("a.jsonl", line(1) + line(2) + "no json\n").stat().st_size

    loads.load(batch="one")

    is_direct = loads.declared.is_direct
    commits = ["chunk_committed"] if is_direct else ["batch_staged", "batch_published"]
    assert logged.names(level=logging.INFO) == ["load_started", *commits, "load_ended"]
    of_load = {"pipeline": "events", "batch": "one"}
    assert logged.one("load_started") == {**of_load, "files": 1, "bytes": size}
    assert logged.one("load_ended") == {
        **of_load, "outcome": "loaded", "rows": 2, "quarantined": 1, "noted": 0, "seconds": True,
        **{f"{phase}_s": True for phase in ("plan", "stage", "end", *([] if is_direct else ["publish"]))},
    }  # fmt: skip
    if not is_direct:
        assert logged.one("batch_staged") == {**of_load, "rows": 2, "pieces": 1, "quarantined": 1, "seconds": True}


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_at_debug_each_delivery_is_seen(loads, logged):
    loads.declared = replace(loads.declared, delivery=Rules(mode=Mode.ORDERED))
    loads.write("a.jsonl", line(1))

    loads.load(batch="one")

    sessions = [fields["session"] for name, fields in logged.all() if name == "session_opened"]
    assert len(sessions) == len(set(sessions)) == 2
    taken = logged.one("delivery_taken")
    assert taken.keys() == {"pipeline", "batch", "session", "epoch", "delivery", "tries"}
    assert (taken["batch"], taken["session"], taken["tries"]) == ("one", "one/1", 1)


def test_at_debug_each_plan_session_and_commit_is_seen(loads, logged):
    loads.write("a.jsonl", line(1))

    loads.load(batch="one")

    of_load = {"pipeline": "events", "batch": "one"}
    assert logged.one("session_opened")["session"] == "one/plan"
    assert logged.one("committed") == {
        **of_load,
        "session": logged.one("committed")["session"],
        "position": 1,
        "rows": 1,
    }
    planned = [fields for name, fields in logged.all() if name == "work_planned"]
    assert [(fields["files"], fields["done"]) for fields in planned] == [(1, 0)]


def test_a_load_that_finds_nothing_logs_nothing_at_info(loads, logged):
    loads.load()

    assert logged.names(level=logging.INFO) == []
    assert logged.one("load_ended")["outcome"] == "nothing_loaded"


def test_a_load_that_is_stopped_reports_that_at_its_end(loads, logged):
    loads.write("a.jsonl", line(1))
    settings = replace(settings_of(loads), is_stopped=lambda: "load_started" in logged.names())

    load(loads.declared, settings, batch=Batch("one"), executor=InThisProcess())

    assert logged.one("load_ended")["outcome"] == "stopped"


def test_a_load_that_fails_logs_the_kind_of_its_error(loads, logged):
    class Failing(InThisProcess):
        def begins(self):
            raise PipelineBusy("events", GOOD)

    loads.write("a.jsonl", line(1))

    with pytest.raises(PipelineBusy):
        load(loads.declared, settings_of(loads), batch=Batch("one"), executor=Failing())

    assert logged.names(level=logging.INFO) == ["load_started", "load_ended"]
    assert logged.one("load_ended") == {
        "pipeline": "events", "batch": "one", "outcome": "failed", "reason": "PipelineBusy",
    }  # fmt: skip


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_kept_batch_is_staged_and_its_audit_is_logged_once(loads, logged):
    suite = Suite(name="events", path="quality/events.yaml", expectations=(POSITIVE, UNIQUE))
    loads.declared = replace(loads.declared, suite=suite)
    loads.write("a.jsonl", line(1) + line(2, amount="-9317") + "not json\n")

    stage(loads)
    with pytest.raises(AuditFailed):
        audit_batch(loads.declared, settings_of(loads), batch=Batch("one"))

    assert logged.names(level=logging.INFO) == [
        "load_started", "batch_staged", "load_ended", "batch_audited", "batch_given_up",
    ]  # fmt: skip
    assert (logged.one("load_ended")["outcome"], logged.one("load_ended")["rows"]) == ("staged", 2)
    # They are counted where they were found, and not as none at the end.
    assert logged.one("batch_staged")["quarantined"] == 1
    assert "quarantined" not in logged.one("load_ended")
    assert logged.one("batch_audited") == {
        "pipeline": "events", "batch": "one", "suite": "events", "passed": False, "rows": 2, "expectations": 2,
        "unmet": 1,
    }  # fmt: skip
    assert "9317" not in str(logged.all())


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_retry_logs_how_many_records_failed_again(loads, logged):
    loads.write("a.jsonl", "".join(line(number) for number in range(9)) + line(9, BAD) + line(10, BAD))
    loads.load()
    asked = tuple(find_records(loads.engine, Selection(pipeline="events")))

    fixed = {asked[0].quarantine_id: Fix(raw=line(9).encode(), digest=asked[0].digest)}
    retry(loads.engine, loads.ledger, loads.declared, asked, batch=Batch("two"), fixed=fixed)

    assert logged.one("records_retried") == {
        "pipeline": "events", "batch": "two", "position": 2, "records": 2, "loaded": 1, "still_bad": 1,
        "settled_elsewhere": 0,
    }  # fmt: skip


def test_no_event_holds_a_value_of_a_record(loads, logged, caplog):
    good = "".join(line(number, note=GOOD) for number in range(9))
    loads.write("a.jsonl", good + line(9, BAD, note=GOOD) + f"{BAD}\n")

    loads.load()
    retry(loads.engine, loads.ledger, loads.declared, tuple(find_records(loads.engine, Selection(pipeline="events"))),
          batch=Batch("two"))  # fmt: skip

    assert logged.one("records_retried")["still_bad"] == 2
    assert not any(value in text for value in (GOOD, BAD) for text in (caplog.text, str(logged.all())))


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_batch_that_is_given_up_is_logged_once_with_the_stage_that_is_dropped(loads, logged):
    loads.write("a.jsonl", line(1))
    stage(loads)
    ((name,),) = loads.ask("SELECT stage FROM onceload.delivery WHERE stage IS NOT NULL")

    done = [give_up(loads.declared, settings_of(loads), batch=Batch("one")) for _ in range(2)]

    assert done == [True, False]
    assert "audited_rows_given_up" not in logged.names()
    assert logged.one("batch_given_up") == {"pipeline": "events", "batch": "one", "stage": name}
    assert logged.one("stage_dropped") == {"stage": name}


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_the_rows_of_a_failed_audit_are_logged_when_they_are_given_up(loads, logged):
    suite = Suite(name="events", path="quality/events.yaml", expectations=(POSITIVE,))
    loads.declared = replace(loads.declared, suite=suite)
    loads.write("a.jsonl", line(1, amount="-1"))
    stage(loads)
    with pytest.raises(AuditFailed):
        audit_batch(loads.declared, settings_of(loads), batch=Batch("one"))
    of_batch = logged.one("batch_given_up")
    assert "stage_dropped" not in logged.names()

    give_up(loads.declared, settings_of(loads), batch=Batch("one"))

    assert logged.one("audited_rows_given_up") == of_batch
    assert logged.one("stage_dropped") == {"stage": of_batch["stage"]}


def test_a_stage_that_no_process_holds_is_logged_when_it_is_swept(loads, logged):
    with loads.engine.begin() as connection:
        connection.exec_driver_sql('CREATE UNLOGGED TABLE onceload_stage."abandoned proof" ()')

    assert (sweep(loads.engine), sweep(loads.engine)) == (1, 0)

    assert logged.one("stage_swept") == {"stage": "abandoned"}


def test_a_discard_logs_how_many_records_it_settled(loads, logged):
    loads.write("a.jsonl", line(1) + f"{BAD}\n{BAD}\n")
    loads.load()
    ids = [f"--id={each.quarantine_id}" for each in find_records(loads.engine, Selection(pipeline="events"))]
    discarding = ["quarantine", "discard", "--pipeline", "events", *ids]

    codes = [main(arguments, {"ONCELOAD_DSN": loads.dsn}) for arguments in (discarding, [*discarding, "--yes"])]

    assert codes == [ExitCode.DONE, ExitCode.DONE]
    discarded = logged.one("records_discarded")
    (entry,) = loads.ask("SELECT batch, session FROM onceload.ledger WHERE kind = 'discard'")
    assert discarded == dict(zip(("batch", "session"), entry, strict=True)) | {
        "pipeline": "events", "position": 2, "records": 2,
    }  # fmt: skip
    assert BAD not in str(logged.all())
