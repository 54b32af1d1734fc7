"""`onceload consume` and `onceload deliveries`, as from a shell."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from onceload_core.errors import DeliveryTakenAway, ExitCode
from onceload_core.names import Batch, SessionName
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_core.postgres.offers import Offer
from onceload_core.spans import SpanSet
from onceload_jobs.read import new_content as loading
from onceload_jobs.read.checked_parts import read_parts
from tests.loads.conftest import line
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usually_staged

PIPELINE = """
pipeline: events
source: {path: ROOT/**/*.jsonl, format: jsonl, chunk_bytes: 500}
columns: {id: bigint not null, amount: "numeric(12,2)", note: text}
target: {table: public.target}
publish: PUBLISH
delivery: {deliveries_max: 2, ack_deadline: 60s}
"""
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(loads, publish, tmp_path):
    path = tmp_path / "events.yaml"
    path.write_text(PIPELINE.replace("ROOT", str(loads.folder)).replace("PUBLISH", publish))
    return path


@pytest.fixture
def poison(monkeypatch):
    """The first chunk of a file cannot be read, until its name is taken out of here."""
    names = ["b.jsonl"]

    def read(chunk, source):
        if chunk.name in names and not chunk.first:
            raise ValueError("poison")
        yield from read_parts(chunk, source)

    monkeypatch.setattr(loading, "read_parts", read)
    return names


def write(loads):
    for name in ("a", "b"):
        loads.write(f"{name}.jsonl", "".join(line(number) for number in range(100, 130)))


def test_a_consumer_loads_what_is_new_and_says_what_it_did(loads, call, file):
    write(loads)

    code, out, err = call("consume", file, "--session", "one", "--json")
    again, _, said = call("consume", file, "--session", "one")

    assert (code, json.loads(out)["loaded"], again) == (ExitCode.DONE, 60, ExitCode.DONE)
    assert "60 loaded, 0 duplicates" in err
    assert "0 loaded" in said


def test_a_dead_letter_is_listed_shown_and_redelivered(loads, call, file, poison):
    write(loads)

    code, _, err = call("consume", file, "--session", "one")
    listed = json.loads(call("deliveries", "list", "--state", "dead", "--json")[1])["deliveries"]
    number = listed[0]["delivery"]
    _, table, _ = call("deliveries", "list")
    shown = json.loads(call("deliveries", "show", number, "--json")[1])
    _, people, words = call("deliveries", "show", number)

    assert code is ExitCode.NEEDS_A_PERSON
    assert f"b.jsonl: a part of it became dead letter {number}" in err
    assert f"`onceload deliveries show {number}`" in err
    assert [(each["state"], each["tries"], each["producer"]) for each in listed] == [("dead", 2, "b.jsonl")]
    assert "ValueError: poison" in table
    assert [(each["try"], each["reason"]) for each in shown["failures"]] == [
        (1, "ValueError: poison"),
        (2, "ValueError: poison"),
    ]
    # A batch is read for the run that plans it.
    reader = "one" if loads.declared.is_direct else "plan"
    assert {each["session"].rpartition("/")[2] for each in shown["failures"]} == {reader}
    assert [each["producer"] for each in shown["spans"]] == ["b.jsonl"]
    assert "b.jsonl" in people
    assert "last failure: ValueError: poison" in words
    poison.clear()
    redelivered, _, said = call("deliveries", "redeliver", number)
    assert (redelivered, "handed out again" in said) == (ExitCode.DONE, True)
    assert call("consume", file, "--session", "one")[0] is ExitCode.DONE
    assert len(loads.rows()) == 60


def test_a_dead_letter_that_is_given_up_is_planned_again(loads, call, file, poison):
    write(loads)
    call("consume", file, "--session", "one")
    (dead,) = json.loads(call("deliveries", "list", "--json")[1])["deliveries"]
    poison.clear()

    code, _, said = call("deliveries", "abandon", dead["delivery"])

    assert (code, "the next load plans its records again" in said) == (ExitCode.DONE, True)
    assert call("deliveries", "list")[2] == "no delivery waits, is in progress or is a dead letter\n"
    assert call("consume", file, "--session", "one")[0] is ExitCode.DONE
    assert len(loads.rows()) == 60


def lost_planner(loads, *, ahead: str):
    """A load that claimed a file and was killed, while the clock of the server was ahead."""
    (producer_id,) = loads.ledger.register("events", [("a.jsonl", 1)]).values()
    session = loads.ledger.open_session("events", SessionName("planner-of-lost"))
    claim = loads.ledger.claim(
        session, {producer_id: SpanSet.of((0, 10))}, batch=Batch("lost"), lease_s=60, names={producer_id: "a.jsonl"}
    )
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE onceload.delivery SET deadline_at = deadline_at + interval '{ahead}'")
    return claim


def test_the_claim_of_a_lost_planner_is_shown_with_its_end_and_released(loads, call, file):
    call("load", file)
    write(loads)
    claim = lost_planner(loads, ahead="50 min")

    blocked, _, err = call("load", file, "--wait", "0s")
    (listed,) = json.loads(call("deliveries", "list", "--json")[1])["deliveries"]
    _, table, _ = call("deliveries", "list")

    until_then = datetime.fromisoformat(listed["deadline_at"])
    assert blocked is ExitCode.CALL_AGAIN
    assert f"until {until_then:%Y-%m-%d %H:%M:%S} UTC, and longer while it lives. If that session is gone" in err
    assert f"`onceload deliveries abandon {claim.delivery_id}`" in err
    assert (listed["delivery"], listed["state"], listed["producer"]) == (claim.delivery_id, "held", "a.jsonl")
    assert f"{until_then:%Y-%m-%d %H:%M}Z" in table
    assert call("deliveries", "show", claim.delivery_id)[0] is ExitCode.DONE

    assert call("deliveries", "abandon", claim.delivery_id)[0] is ExitCode.DONE
    assert call("load", file, "--wait", "0s")[0] is ExitCode.DONE
    assert len(loads.rows()) == 60
    with pytest.raises(DeliveryTakenAway):
        offer_again(loads, claim)


def test_a_lease_from_a_clock_that_was_ahead_by_days_blocks_nothing(loads, call, file):
    call("load", file)
    write(loads)
    claim = lost_planner(loads, ahead="3 days")

    assert call("load", file, "--wait", "0s")[0] is ExitCode.DONE

    assert len(loads.rows()) == 60
    with pytest.raises(DeliveryTakenAway):
        offer_again(loads, claim)


def offer_again(loads, claim):
    """As the planner would if it was alive after all."""
    board = PostgresDeliveries(loads.engine, "events", loads.declared.delivery)
    board.offer(claim, [Offer(work="{}", spans=claim.spans)], batch=Batch("lost"))


@pytest.mark.parametrize("action", ["show", "redeliver", "abandon"])
def test_a_delivery_that_there_is_not_is_not_found(loads, call, file, action):
    call("consume", file, "--session", "one")

    code, _, err = call("deliveries", action, 77)

    assert (code, "delivery not found: '77'" in err) == (ExitCode.WRONG_USE, True)


def test_a_delivery_that_is_not_dead_is_not_redelivered(loads, call, file, poison):
    write(loads)
    call("consume", file, "--session", "one")
    (dead,) = json.loads(call("deliveries", "list", "--json")[1])["deliveries"]
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.delivery SET state = 'waiting'")

    code, _, err = call("deliveries", "redeliver", dead["delivery"])

    assert code is ExitCode.WRONG_USE
    assert "redrive: found a delivery that is waiting. Nothing was changed. Expected one that is dead." in err


@pytest.mark.parametrize("given", ["10", "soon", "-1s"])
def test_a_time_without_its_unit_is_refused(call, file, given):
    code, _, err = call("consume", file, "--session", "one", f"--wait={given}")

    assert (code, "Expected a time with its unit" in err) == (ExitCode.WRONG_USE, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
@pytest.mark.usefixtures("heeded_hangup")
def test_a_follower_that_is_asked_to_stop_ends_well_and_holds_nothing(loads, file, number):
    write(loads)
    command = [sys.executable, "-m", "onceload", "consume", str(file), "--session", "one", "--follow", "--json"]
    environment = {**os.environ, "ONCELOAD_DSN": loads.dsn}
    follower = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: len(loads.rows_or_none()) >= 60, "all rows are loaded")
        loads.write("c.jsonl", line(900))
        until(lambda: len(loads.rows()) >= 61, "the new row is loaded")
        follower.send_signal(number)
        document, said = follower.communicate(timeout=PATIENCE_S)
    finally:
        follower.kill()
        follower.wait()

    assert follower.returncode == ExitCode.DONE
    assert json.loads(document)["loaded"] == 61
    assert b"session one was stopped" in said
    assert loads.ask("SELECT count(*) FROM onceload.delivery") == [(0,)]
    assert loads.ask("SELECT count(*) FROM onceload.session WHERE lease_until > clock_timestamp()") == [(0,)]
