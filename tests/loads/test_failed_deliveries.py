"""Deliveries that fail: they are tried again, set aside, or planned again."""

import gzip
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from onceload_core.delivery import Mode, State
from onceload_core.names import DeliveryId
from onceload_core.postgres.by_hand import abandon, describe, list_deliveries, redrive
from onceload_jobs.batch.job import BatchIncomplete
from onceload_jobs.pipeline.declared import Write
from onceload_jobs.read import new_content as loading
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.read.rows import read_adding, read_records
from onceload_jobs.work import load_delivery
from onceload_jobs.work import session as work
from tests.loads.conftest import line
from tests.loads.sharing import DIRECT, EVERY_MODE, STAGED, Board, check_order, declare, offered, write


class Poison:
    """Chunks that cannot be read, until they are fixed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, first: int = 0) -> None:
        self.tries: list[str] = []
        self.is_fixed = False

        def read(chunk: Any, source: Any) -> Iterator[Any]:
            if chunk.name in names and chunk.first <= first and not self.is_fixed:
                self.tries.append(chunk.name)
                raise ValueError("poison")
            yield from read_parts(chunk, source)

        monkeypatch.setattr(loading, "read_parts", read)


@EVERY_MODE
def test_a_poison_chunk_is_tried_a_fixed_number_of_times_then_set_aside_and_loaded_once_when_it_is_fixed(
    loads, mode, monkeypatch
):
    declare(loads, mode, deliveries_max=3)
    numbers = write(loads)
    if mode is Mode.ORDERED and not loads.declared.is_direct:
        pytest.skip("a batch in order is published whole")
    poison = Poison(monkeypatch, "1.jsonl")

    report = loads.load()

    assert poison.tries == ["1.jsonl"] * 3
    assert loads.rows() == [number for number in numbers if not 140 <= number < 150]
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("1.jsonl", True)]
    assert "dead letter" in report.notes[0].reason
    assert Board(loads).states() == ["dead"]
    # No load tries it again by itself.
    assert (loads.load().loaded, len(poison.tries)) == (0, 3)
    poison.is_fixed = True
    ((number,),) = loads.ask("SELECT delivery_id FROM onceload.delivery")
    redrive(loads.engine, "events", number, by="ann")
    loads.load()

    assert loads.rows() == numbers
    assert not loads.load().notes


@pytest.mark.parametrize("whole", [{"mode": Mode.ORDERED}, {"mode": Mode.SHARED, "write": Write.MERGE}])
@STAGED
def test_a_batch_that_makes_sense_only_whole_is_not_published_without_a_poison_chunk(loads, whole, monkeypatch):
    declare(loads, whole["mode"], deliveries_max=2)
    if "write" in whole:
        loads.declared = replace(
            loads.declared, target=replace(loads.declared.target, write=whole["write"], key=("id",))
        )
    numbers = write(loads)
    poison = Poison(monkeypatch, "1.jsonl")

    with pytest.raises(BatchIncomplete, match=r"failed 2 times, last with: ValueError: poison. Nothing was published"):
        loads.load()
    assert loads.rows() == []
    poison.is_fixed = True
    loads.load()

    assert loads.rows() == numbers


def test_a_delivery_that_is_given_up_is_planned_again(loads, monkeypatch):
    declare(loads, Mode.SHARED, deliveries_max=1)
    numbers = write(loads)
    poison = Poison(monkeypatch, "1.jsonl")
    loads.load()
    poison.is_fixed = True
    ((number,),) = loads.ask("SELECT delivery_id FROM onceload.delivery")

    abandon(loads.engine, "events", number, by="ann")
    report = loads.load()

    assert (report.loaded, loads.rows()) == (10, numbers)


@DIRECT
def test_a_file_that_cannot_be_read_just_now_is_tried_again_where_there_is_an_order(loads, monkeypatch):
    monkeypatch.setattr(work, "_UNREADABLE_RETRY_S", (0.01, 0.01))
    declare(loads, Mode.KEY_SHARED, deliveries_max=2)
    numbers = write(loads)
    board = offered(loads)
    hidden = (loads.folder / "1.jsonl").rename(loads.folder / "1.gone")

    report = loads.load()

    # The records behind it in its file did not take effect first.
    assert loads.rows() == [number for number in numbers if not 140 <= number < 180]
    assert {note.name for note in report.notes if note.needs_a_person} == {"1.jsonl"}
    # There is nothing behind the last of them, so that it is only planned again.
    assert board.states() == ["dead"] * 3
    hidden.rename(loads.folder / "1.jsonl")
    for (number,) in loads.ask("SELECT delivery_id FROM onceload.delivery"):
        redrive(loads.engine, "events", number, by="ann")
    loads.load()
    assert loads.rows() == numbers
    check_order(loads, Mode.KEY_SHARED)


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
@pytest.mark.parametrize("deliveries_max", [2, 3])
def test_only_the_files_of_a_delivery_that_fail_are_set_aside(loads, monkeypatch, deliveries_max, mode):
    declare(loads, mode, deliveries_max=deliveries_max)
    for at, name in enumerate("abcd"):
        loads.write(f"{name}.jsonl", line(100 + at))
    poison = Poison(monkeypatch, "b.jsonl")
    monkeypatch.setattr(loading, "read_adding", partial(read_adding, read=failing_at("c.jsonl")))

    report = loads.load()

    assert loads.rows() == [100, 103]
    assert sorted((note.name, note.needs_a_person) for note in report.notes) == [("b.jsonl", True), ("c.jsonl", True)]
    dead = list_deliveries(loads.engine, "events", state=State.DEAD, at_most=100)
    numbers = [DeliveryId(int(str(each["delivery"]))) for each in dead]
    described = [describe(loads.engine, number, at_most=100) for number in numbers]
    assert {str(each.spans[0]["producer"]): each.failures[-1]["reason"] for each in described} == {
        "b.jsonl": "ValueError: poison", "c.jsonl": "RecursionError: too deep",
    }  # fmt: skip
    poison.is_fixed = True
    monkeypatch.setattr(loading, "read_adding", read_adding)
    for number in numbers:
        redrive(loads.engine, "events", number, by="ann")
    loads.load()
    assert loads.rows() == [100, 101, 102, 103]


def failing_at(name: str) -> Any:
    def read(declared: Any, columns: Any, parts: Any) -> Any:
        if any(each.chunk.name == name for each in parts):
            raise RecursionError("too deep")
        return read_records(declared, columns, parts)

    return read


@DIRECT
@pytest.mark.parametrize("tail", ["", '{"id": 9'], ids=["whole", "still written to"])
def test_a_small_file_that_is_gone_takes_no_other_of_its_bundle_with_it(loads, monkeypatch, tail):
    monkeypatch.setattr(work, "_UNREADABLE_RETRY_S", (0.01, 0.01))
    declare(loads, Mode.KEY_SHARED, deliveries_max=2)
    for number, name in enumerate("abc"):
        loads.write(f"{name}.jsonl", line(100 + number) + (tail if name == "b" else ""))
    board = offered(loads)
    assert board.states() == ["waiting"]
    (loads.folder / "b.jsonl").unlink()

    loads.load()

    assert loads.rows() == [100, 102]
    assert board.states() == []


@EVERY_MODE
@DIRECT
def test_a_file_that_was_rewritten_since_it_was_offered_is_planned_again(loads, mode):
    declare(loads, mode)
    numbers = write(loads)
    offered(loads)
    loads.write("1.jsonl", line(900) * 3)

    loads.load()
    loads.load()

    assert loads.rows() == sorted([number for number in numbers if not 140 <= number < 180] + [900] * 3)
    assert Board(loads).states() == []


@DIRECT
def test_a_part_of_a_delivery_that_was_committed_is_not_committed_again_when_it_is_redelivered(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    # A packed file is one delivery, and commits piece by piece.
    loads.write("a.jsonl.gz", gzip.compress("".join(line(number) for number in range(100, 140)).encode()))
    commit_piece, calls = load_delivery._commit_piece, iter(range(100))

    def dying(*arguments: Any, **named: Any) -> None:
        if next(calls) == 2:
            raise ValueError("it died")
        commit_piece(*arguments, **named)

    monkeypatch.setattr(load_delivery, "_commit_piece", dying)
    report = loads.load()

    assert (report.loaded, report.duplicates) == (40, 0)
    assert loads.rows() == list(range(100, 140))
    assert loads.ask("SELECT count(*) FROM onceload.delivery_failure") == [(0,)]


def test_the_error_history_of_a_delivery_is_kept(loads, monkeypatch):
    declare(loads, Mode.SHARED, deliveries_max=2)
    write(loads)
    Poison(monkeypatch, "1.jsonl")

    loads.load(batch="b")

    history = loads.ask("SELECT try, session, reason FROM onceload.delivery_failure ORDER BY try")
    assert [(number, reason) for number, _, reason in history] == [(1, "ValueError: poison"), (2, "ValueError: poison")]
    assert {session.split("/")[0] for _, session, _ in history} == {"b"}
