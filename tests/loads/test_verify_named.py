"""Values of rows whose records name their producers are compared with all records of their name and id."""

from dataclasses import replace

import pytest

from onceload.cli import main
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.declared import Target, UnknownFields, Write
from onceload_jobs.verify.findings import Kind
from tests.loads.rewinding import back
from tests.loads.test_record_producers import devices, publish, record
from tests.loads.verified import named, verified
from tests.servers import execute

__all__ = ["devices", "publish"]


@pytest.fixture
def loaded(devices):
    devices.write("a.jsonl", record("d1", 0) + record("d2", 0) + record("d1", 1, "bad"))
    devices.load()
    devices.write("b.jsonl", record("d1", 0, "9.99") + record("d1", 2, "3.00") + record("d1", 2, "4.00"))
    devices.load()
    return devices


def of_values(verification):
    return [
        (each.producer, each.kind, each.sequence_id, each.column, each.expected, each.found)
        for each in verification.differences
    ]


def test_rows_that_equal_their_record_are_compared(loaded):
    found = verified(loaded, deep=True)

    assert (named(found), found.rows_compared, found.not_compared) == ([], 3, ())


def test_a_changed_value_is_named_by_its_producer_and_id(loaded):
    execute(loaded.admin_dsn, "UPDATE target SET amount = 5 WHERE device = 'd1' AND seq = 2")

    found = verified(loaded, deep=True)

    assert of_values(found) == [("device=d1", Kind.VALUE_CHANGED, 2, "amount", "3.00", "5.00")]
    assert found.differing == 1


def test_a_row_of_an_id_that_no_record_has_is_named(loaded):
    execute(loaded.admin_dsn, "UPDATE target SET _sequence = 1, amount = 5 WHERE device = 'd2'")

    kinds = {kind for _, kind, _ in named(verified(loaded, deep=True))}

    assert kinds >= {Kind.ROW_FROM_NOWHERE}


def test_many_changed_rows_are_counted(loaded):
    loaded.write("c.jsonl", "".join(record("d3", number) for number in range(50)))
    loaded.load()
    execute(loaded.admin_dsn, "UPDATE target SET amount = 5 WHERE device = 'd3'")

    found = verified(loaded, deep=True)

    assert (found.differing, len(found.differences)) == (50, 20)


def test_rows_of_a_file_that_is_not_compared_are_counted_in_a_note(loaded, tmp_path, capsys):
    (loaded.folder / "b.jsonl").unlink()

    found = verified(loaded, deep=True)

    assert named(found) == [("b.jsonl", Kind.FILE_MISSING, None)]
    (note,) = [note for note in found.not_compared if note.name == '"public"."target"']
    assert "the values of 1 rows were not compared: they equal no record of the files that were compared" in note.reason
    assert found.rows_compared == 2
    execute(loaded.admin_dsn, "UPDATE target SET amount = 5 WHERE device = 'd2'")
    assert verified(loaded, deep=True).rows_compared == 1


def test_a_dropped_column_of_undeclared_fields_is_named_too(devices):
    devices.declared = replace(devices.declared, unknown_fields=UnknownFields.ADD)
    devices.write("a.jsonl", '{"device": "d1", "seq": 1, "color": "red"}\n{"device": "d1", "seq": 2}\n')
    devices.load()
    assert named(verified(devices, deep=True)) == []

    execute(devices.admin_dsn, "ALTER TABLE target DROP COLUMN color")

    assert of_values(verified(devices, deep=True)) == [
        ("device=d1", Kind.VALUE_CHANGED, 1, "color", "red", "no such column")
    ]


def test_rows_of_a_producer_that_was_forgotten_are_compared(devices):
    devices.declared = replace(devices.declared, pipeline=replace(devices.declared.pipeline, forget_idle_after_s=60))
    devices.write("a.jsonl", record("d1", 0))
    devices.load()
    devices.ask("UPDATE onceload.producer SET advanced_at = '2000-01-01' RETURNING name")
    assert devices.ledger.forget_idle("events") == ("device=d1",)
    devices.write("b.jsonl", record("d1", 0, "2.00") + record("d1", 1, "3.00"))
    devices.load()

    found = verified(devices, deep=True)
    assert (named(found), found.rows_compared) == ([], 3)
    execute(devices.admin_dsn, "UPDATE target SET amount = 5 WHERE amount = 1")
    assert [each[1:4] for each in of_values(verified(devices, deep=True))] == [(Kind.VALUE_CHANGED, 0, "amount")]


def test_rows_that_were_rewound_and_loaded_again_are_compared(loaded):
    back(loaded, 1)
    loaded.load()

    assert named(verified(loaded, deep=True)) == []


@pytest.mark.parametrize("devices", [Order.ORDERED], indirect=True)
def test_merged_rows_equal_the_record_that_their_lineage_names(devices):
    assert devices.declared.producer.order is Order.ORDERED
    devices.declared = replace(
        devices.declared, target=Target(schema="public", table="target", write=Write.MERGE, key=("device",))
    )
    devices.write("a.jsonl", record("d1", 0) + record("d2", 0) + record("d1", 1, "2.00"))
    devices.load()
    found = verified(devices, deep=True)
    assert (named(found), found.rows_compared) == ([], 2)

    execute(devices.admin_dsn, "UPDATE target SET amount = 1 WHERE device = 'd1'")

    assert of_values(verified(devices, deep=True)) == [("device=d1", Kind.VALUE_CHANGED, 1, "amount", "2.00", "1.00")]


def test_the_command_line_compares_values(loaded, tmp_path, capsys):
    file = tmp_path / "events.yaml"
    file.write_text(
        f"pipeline: events\nsource: {{path: {loaded.folder}/**/*.jsonl*, format: jsonl}}\n"
        "columns: {device: text, seq: bigint, amount: 'numeric(12,2)'}\n"
        f"producer: {{name: device, sequence: seq, order: {loaded.declared.producer.order}}}\n"
        "target: {table: public.target}\n"
    )
    environment = {"ONCELOAD_DSN": loaded.dsn}

    assert main(["verify", str(file), "--deep"], environment) == 0
    assert "compared the values of 3 rows; no differences" in capsys.readouterr().err
    execute(loaded.admin_dsn, "UPDATE target SET amount = 5 WHERE device = 'd2'")
    assert main(["verify", str(file), "--deep"], environment) == 4
