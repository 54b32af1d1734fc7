"""Workers read what verify compares: they share large files, may die, and find the same in the same order."""

import gzip
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload.cli import main
from onceload_core.errors import ExitCode
from onceload_jobs.executor.executor import InProcessExecutor, Outcome
from onceload_jobs.executor.local import LocalExecutor
from onceload_jobs.pipeline.declared import CsvOptions, Format, Publish, RecordProducer, Target, Write
from onceload_jobs.verify import files, ranges
from onceload_jobs.verify.findings import Kind
from onceload_jobs.verify.ranges import Range
from onceload_jobs.verify.read_bytes import Stretch
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads, line

pytestmark = pytest.mark.usually_staged
#: What only a batch as a whole can load.
STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])
_RECORDS = 400


class Backwards(InProcessExecutor):
    """Three workers, the last of which answers first."""

    slots = 3

    def __init__(self) -> None:
        self.items: list[Any] = []

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        asked = list(items)
        self.items += asked
        yield from reversed(list(super().each(function, asked)))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are large ones."""
    monkeypatch.setattr(files, "_BUNDLE_BYTES", 2000)
    monkeypatch.setattr(ranges, "_LEAST_BYTES", 500)
    monkeypatch.setattr(ranges, "_FILE_BYTES", 0)


def of_csv(number: int) -> str:
    return f'{number},1.50,"x"\n'


def source_of(loads: Loads, form: str) -> Any:
    pattern, of_format = {
        "jsonl": ("*.jsonl", Format.JSONL),
        "gz": ("*.jsonl.gz", Format.JSONL),
        "csv": ("*.csv", Format.CSV),
        "multiline": ("*.csv", Format.CSV),
        "parquet": ("*.parquet", Format.PARQUET),
    }[form]
    return replace(
        loads.declared.source,
        path=str(loads.folder / pattern),
        format=of_format,
        chunk_bytes=700,
        csv=CsvOptions(multiline=form == "multiline"),
    )


def write(loads: Loads, form: str) -> None:
    """Three files of different sizes."""
    for name, first, end in (("a", 0, 300), ("b", 300, 310), ("c", 310, _RECORDS)):
        ids = range(first, end)
        match form:
            case "jsonl":
                loads.write(f"{name}.jsonl", "".join(map(line, ids)))
            case "gz":
                loads.write(f"{name}.jsonl.gz", gzip.compress("".join(map(line, ids)).encode()))
            case "csv" | "multiline":
                loads.write(f"{name}.csv", "id,amount,note\n" + "".join(map(of_csv, ids)))
            case _:
                table = pa.table({"id": list(ids), "amount": ["1.50"] * len(ids), "note": ["x"] * len(ids)})
                pq.write_table(table, loads.folder / f"{name}.parquet", row_group_size=50)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("form", ["jsonl", "gz", "csv", "multiline", "parquet"])
def test_workers_share_the_files_and_find_what_one_finds_in_the_same_order(loads, form):
    write(loads, form)
    declared = replace(loads.declared, source=source_of(loads, form))
    loads.load(source=declared.source)
    workers = Backwards()
    assert verify(declared, loads.engine, deep=True, executor=workers).differing == 0
    damage = (
        "UPDATE target SET amount = 7, note = 'y' WHERE mod(id, 9) = 1",
        "DELETE FROM target WHERE id IN (0, 150, 299)",
        "INSERT INTO target SELECT 1000, 1, 'z', _producer_id, 1000000 FROM target WHERE id = 1",
        "UPDATE target SET _sequence = NULL WHERE id = 200",
        "UPDATE target SET _sequence = _sequence + 1 WHERE id IN (320, 398)",
    )
    with loads.engine.begin() as connection:
        for statement in damage:
            connection.exec_driver_sql(statement)

    shared, alone = Backwards(), InProcessExecutor()
    found = verify(declared, loads.engine, deep=True, executor=shared)

    assert found == verify(declared, loads.engine, deep=True, executor=alone)
    assert {Kind.VALUE_CHANGED, Kind.ROW_MISSING, Kind.ROW_FROM_NOWHERE} <= set(found.counts)
    assert found.counts[Kind.VALUE_CHANGED] > 80
    assert found.rows_compared == _RECORDS
    assert len(shared.items) > 3


@pytest.mark.usefixtures("_small")
def test_a_large_file_is_cut_between_records_for_its_bytes_and_for_its_values(loads):
    loads.write("a.jsonl", "".join(map(line, range(_RECORDS))))
    declared = replace(loads.declared, source=source_of(loads, "jsonl"))
    loads.load(source=declared.source)
    workers = Backwards()

    found = verify(declared, loads.engine, deep=True, executor=workers)

    by_bytes = [each for bundle in workers.items for each in bundle if not isinstance(each, Range)]
    by_value = [each for bundle in workers.items for each in bundle if isinstance(each, Range)]
    assert (found.differing, found.rows_compared, found.bytes) == (0, _RECORDS, sum(each.bytes for each in by_bytes))
    assert len(by_bytes) > 5
    assert [each.records.first for each in by_value[1:]] == [each.last + 1 for each in by_value[:-1]]
    assert len(by_value) == 3


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("damage", ["shorter", "changed", "gone"])
def test_a_damaged_file_that_workers_share_is_reported_once(loads, damage):
    path = loads.write("a.jsonl", "".join(map(line, range(_RECORDS))))
    loads.write("b.jsonl", line(_RECORDS))
    declared = replace(loads.declared, source=source_of(loads, "jsonl"))
    loads.load(source=declared.source)
    content = path.read_bytes()
    match damage:
        case "shorter":
            path.write_bytes(content[:4000])
        case "changed":
            path.write_bytes(content.replace(b"1.50", b"1.51"))
        case _:
            path.unlink()

    found = verify(declared, loads.engine, deep=True, executor=Backwards())

    assert found == verify(declared, loads.engine, deep=True, executor=InProcessExecutor())
    kinds = {"shorter": Kind.FILE_SHORTER, "changed": Kind.BYTES_CHANGED, "gone": Kind.FILE_MISSING}
    assert set(found.counts) == {kinds[damage]}
    assert (found.counts[kinds[damage]] == 1) == (damage != "changed")
    assert found.rows_compared == 1


@STAGED
@pytest.mark.usefixtures("_small")
def test_workers_read_what_a_merge_has_loaded_and_its_rows_are_compared_at_once(loads):
    loads.write("a.jsonl", "".join(map(line, range(300))))
    loads.write("b.jsonl", "".join(line(number, amount="2.50") for number in range(100, _RECORDS)))
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    declared = replace(loads.declared, source=source_of(loads, "jsonl"), target=target)
    loads.load(source=declared.source, target=target)
    workers = Backwards()
    assert verify(declared, loads.engine, deep=True, executor=workers).differing == 0
    assert sum(isinstance(bundle[0], Range) for bundle in workers.items) > 5
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET amount = 1.50 WHERE id IN (150, 399)")
        connection.exec_driver_sql("DELETE FROM target WHERE id = 7")

    found = verify(declared, loads.engine, deep=True, executor=Backwards())

    assert found == verify(declared, loads.engine, deep=True, executor=InProcessExecutor())
    assert found.counts == {Kind.VALUE_CHANGED: 2, Kind.ROW_MISSING: 1}


@STAGED
@pytest.mark.usefixtures("_small")
def test_workers_read_records_that_name_their_producers(loads):
    loads.write("a.jsonl", "".join(line(number, note=f"d{number % 3}") for number in range(_RECORDS)))
    named = RecordProducer(name="note", sequence="id")
    declared = replace(loads.declared, source=source_of(loads, "jsonl"), producer=named)
    loads.load(source=declared.source, producer=named)
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET amount = 7 WHERE id IN (150, 399)")

    found = verify(declared, loads.engine, deep=True, executor=Backwards())

    assert found == verify(declared, loads.engine, deep=True, executor=InProcessExecutor())
    assert (found.counts, found.rows_compared) == ({Kind.VALUE_CHANGED: 2}, _RECORDS)


def die_of(function: Callable[[Any], Any], deadly: str, reading: type, items: Any) -> Any:
    """Call the function, unless it would read a deadly file."""
    for each in items:
        name = each.records.name if isinstance(each, Range) else each.name
        if isinstance(each, reading) and name == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
    return function(items)


class Mortal(LocalExecutor):
    """Real processes, which die of one file."""

    def __init__(self, deadly: str, reading: type) -> None:
        super().__init__(2)
        self._deadly, self._reading = deadly, reading

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        yield from super().each(partial(die_of, function, self._deadly, self._reading), items)


@pytest.mark.parametrize("reading", [Stretch, Range])
@pytest.mark.parametrize("write_mode", [Write.APPEND, Write.MERGE])
def test_a_file_that_kills_its_reader_is_named_and_the_others_are_compared(loads, reading, write_mode):
    for number, name in enumerate("abc"):
        loads.write(f"{name}.jsonl", line(number))
    key = ("id",) if write_mode is Write.MERGE else ()
    target = Target(schema="public", table="target", write=write_mode, key=key)
    loads.load(target=target)
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET amount = 7 WHERE id IN (1, 2)")

    with closing(Mortal("b.jsonl", reading)) as processes:
        found = verify(replace(loads.declared, target=target), loads.engine, deep=True, executor=processes)

    of_b, of_c = found.differences
    assert (of_b.producer, of_b.kind) == ("b.jsonl", Kind.FILE_UNREADABLE)
    assert of_b.found == "while it was read, its process ended with SIGKILL"
    assert (of_c.producer, of_c.kind, of_c.column) == ("c.jsonl", Kind.VALUE_CHANGED, "amount")
    assert found.rows_compared == 2


def test_all_workers_compare_with_the_rows_of_the_moment_at_which_the_command_began(loads):
    for number, name in enumerate("abc"):
        loads.write(f"{name}.jsonl", line(number))
    loads.load()

    class Meanwhile(InProcessExecutor):
        def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
            asked = list(items)
            if isinstance(asked[0][0], Range):
                with loads.engine.begin() as connection:
                    connection.exec_driver_sql("UPDATE target SET amount = amount + 1")
            yield from super().each(function, asked)

    assert verify(loads.declared, loads.engine, deep=True, executor=Meanwhile()).differing == 0
    assert verify(loads.declared, loads.engine, deep=True).counts == {Kind.VALUE_CHANGED: 3}


@pytest.mark.parametrize("option", [("--engine", "local"), ()])
def test_the_command_reads_with_processes_of_this_machine(loads, option, tmp_path, capsys):
    loads.write("a.jsonl", "".join(map(line, range(10))))
    file = tmp_path / "events.yaml"
    file.write_text(
        f"pipeline: events\nsource: {{path: {loads.folder}/*.jsonl, format: jsonl}}\n"
        "columns: {id: bigint not null, amount: 'numeric(12,2)', note: text}\ntarget: {table: public.target}\n"
    )
    environment = {"ONCELOAD_DSN": loads.dsn}
    assert main(["load", str(file)], environment) is ExitCode.DONE

    assert main(["verify", str(file), "--deep", "--json", *option], environment) is ExitCode.DONE

    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (shown["rows_compared"], shown["differing"]) == (10, 0)
