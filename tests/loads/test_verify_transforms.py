"""Verification of rows that name no record: those that a transform makes of several records."""

from dataclasses import replace
from typing import Any

import pytest

from onceload_core.names import Batch, Position
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import OnRewrite, Publish, Target, Write
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.findings import Kind
from onceload_jobs.verify.verify import Verification, verify
from onceload_jobs.work.spark.spark import Spark
from tests.loads.conftest import InThisProcess, Loads, line

#: One row for each note, of no record.
GROUPED = "SELECT max(id) AS id, CAST(sum(amount) AS decimal(12,2)) AS amount, note FROM records GROUP BY note"
#: The same, and a row for each record of the first note.
MIXED = f"""
SELECT id, amount, note, _producer_id, _sequence FROM records WHERE note = 'a'
UNION ALL SELECT id, amount, note, CAST(NULL AS bigint), CAST(NULL AS bigint) FROM ({GROUPED})
"""
TWO_ROWS_EACH = "SELECT * FROM records UNION ALL SELECT * FROM records"
WITHOUT_LINEAGE = Target(schema="public", table="target", lineage=False)
MERGED = Target(schema="public", table="target", write=Write.MERGE, key=("id",))


@pytest.fixture
def publish() -> Publish:
    return Publish.STAGED


@pytest.fixture(autouse=True)
def table(loads: Loads) -> None:
    """A target with lineage columns, which a transform may leave empty."""
    change(
        loads,
        "CREATE TABLE target (id bigint, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)",
    )


def change(loads: Loads, statement: str) -> None:
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def write(loads: Loads, name: str, *notes: str) -> None:
    loads.write(name, "".join(line(number, note=note) for number, note in enumerate(notes)))


def load_by_spark(loads: Loads, tasks: Spark, **changes: Any) -> None:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    load(replace(loads.declared, **changes), settings, batch=Batch(new_batch()), executor=tasks)


def verified(loads: Loads, *, deep: bool = False, **changes: Any) -> Verification:
    return verify(replace(loads.declared, **changes), loads.engine, deep=deep)


def another(loads: Loads, name: str = "others") -> dict[str, Any]:
    """A pipeline that loads other files into the same table."""
    source = replace(loads.declared.source, path=str(loads.folder / "others" / "*.jsonl"))
    return {"pipeline": replace(loads.declared.pipeline, name=name), "source": source}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("transform", "rows"), [(GROUPED, 3), (MIXED, 5)])
def test_rows_that_a_transform_makes_of_several_records_are_not_reported(loads, tasks, transform, rows, deep):
    write(loads, "a.jsonl", "a", "a", "b", "b")
    load_by_spark(loads, tasks, transform=transform)
    write(loads, "b.jsonl", "b", "b")
    load_by_spark(loads, tasks, transform=transform)

    verification = verified(loads, transform=transform, deep=deep)

    assert (verification.differences, verification.rows) == ((), rows)


@pytest.mark.parametrize("transform", [GROUPED, MIXED])
def test_more_or_fewer_rows_of_no_record_than_were_loaded_are_differences(loads, tasks, transform):
    write(loads, "a.jsonl", "a", "b", "c")
    load_by_spark(loads, tasks, transform=transform)

    change(loads, "INSERT INTO target (id) VALUES (8), (9)")
    (surplus,) = verified(loads, transform=transform).differences
    assert (surplus.producer, surplus.kind) == ("(rows without _producer_id)", Kind.ROW_FROM_NOWHERE)
    assert (surplus.expected, surplus.found) == ("3 rows, which the ledger counts", "5 rows")
    assert verified(loads, transform=transform).counts == {Kind.ROW_FROM_NOWHERE: 2}
    change(loads, "DELETE FROM target WHERE _producer_id IS NULL AND id <> 9")

    verification = verified(loads, transform=transform)

    assert verification.counts == {Kind.ROW_MISSING: 2}
    assert [each.found for each in verification.differences] == ["1 rows"]
    change(loads, "DELETE FROM target WHERE _producer_id IS NULL")
    assert verified(loads, transform=transform).counts == {Kind.ROW_MISSING: 3}


def test_rows_of_no_record_are_expected_of_the_versions_that_had_a_transform(loads, tasks):
    """Whether the transform was added or removed since."""
    write(loads, "a.jsonl", "a", "b")
    loads.load()
    write(loads, "b.jsonl", "a", "b", "b")
    load_by_spark(loads, tasks, transform=GROUPED)
    write(loads, "c.jsonl", "a", "b")
    assert verified(loads, transform=GROUPED).differences == ()
    loads.load()

    for deep in (False, True):
        verification = verified(loads, deep=deep)
        assert (verification.differences, verification.rows) == ((), 6)
    change(loads, "INSERT INTO target (id) VALUES (8)")
    assert verified(loads).counts == {Kind.ROW_FROM_NOWHERE: 1}


def test_a_pipeline_without_a_transform_expects_no_row_of_no_record(loads):
    write(loads, "a.jsonl", "a", "b")
    loads.load()
    change(loads, "UPDATE target SET _producer_id = NULL WHERE id = 1")

    assert verified(loads).counts == {Kind.ROW_MISSING: 1, Kind.ROW_FROM_NOWHERE: 1}


def test_several_rows_of_one_record_are_not_duplicates_once_their_transform_is_removed(loads, tasks):
    write(loads, "a.jsonl", "a", "b")
    load_by_spark(loads, tasks, transform=TWO_ROWS_EACH)
    write(loads, "b.jsonl", "a", "b")
    loads.load()

    assert verified(loads).differences == ()
    change(loads, "INSERT INTO target SELECT DISTINCT * FROM target")
    # The surplus rows of the transform look like those that it made.
    assert verified(loads).counts == {Kind.ROW_FROM_NOWHERE: 2, Kind.ROW_DUPLICATED: 2}


def test_a_duplicated_row_is_found_although_a_transform_was_added_since(loads, tasks):
    write(loads, "a.jsonl", "a", "b")
    loads.load()
    write(loads, "b.jsonl", "a", "b")
    load_by_spark(loads, tasks, transform=TWO_ROWS_EACH)
    change(loads, "INSERT INTO target SELECT DISTINCT * FROM target WHERE _sequence = 0 AND _producer_id = 1")

    found = [(each.kind, each.sequence_id) for each in verified(loads, transform=TWO_ROWS_EACH).differences]

    assert found == [(Kind.ROW_DUPLICATED, 0)]


def test_rows_of_no_record_of_pipelines_that_share_a_table_are_counted_together(loads, tasks):
    others = another(loads)
    write(loads, "a.jsonl", "a", "b")
    loads.load(source=replace(loads.declared.source, path=str(loads.folder / "*.jsonl")))
    write(loads, "others/a.jsonl", "a", "b", "c")
    load_by_spark(loads, tasks, transform=GROUPED, **others)
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, path=str(loads.folder / "*.jsonl")))

    mine, theirs = verified(loads), verified(loads, transform=GROUPED, **others)

    assert (mine.differences, mine.rows) == ((), 2)
    assert (theirs.differences, theirs.rows) == ((), 3)
    change(loads, "DELETE FROM target WHERE note = 'c'")
    assert verified(loads, transform=GROUPED, **others).counts == {Kind.ROW_MISSING: 1}
    # It is unknown whether the rows of the other pipeline should still be there.
    mine = verified(loads)
    assert (mine.counts, mine.not_compared[0].reason) == (
        {},
        "its rows without _producer_id are not counted exactly: it should have 0 to 3 of them, because another "
        "pipeline may have removed some",
    )
    change(loads, "INSERT INTO target (id) VALUES (7), (8)")
    (surplus,) = verified(loads).differences
    assert (surplus.kind, surplus.expected) == (Kind.ROW_FROM_NOWHERE, "at most 3 rows, which the ledger counts")


def test_rows_of_no_record_of_the_pipeline_itself_are_expected_beside_those_of_another(loads, tasks):
    only_mine = replace(loads.declared.source, path=str(loads.folder / "*.jsonl"))
    write(loads, "others/a.jsonl", "a", "b")
    load_by_spark(loads, tasks, transform=GROUPED, **another(loads))
    write(loads, "a.jsonl", "a", "b", "c")
    load_by_spark(loads, tasks, transform=GROUPED, source=only_mine)
    assert verified(loads, transform=GROUPED, source=only_mine).differences == ()

    change(loads, "DELETE FROM target WHERE ctid NOT IN (SELECT ctid FROM target LIMIT 2)")

    (missing,) = verified(loads, transform=GROUPED, source=only_mine).differences
    assert (missing.kind, missing.expected) == (Kind.ROW_MISSING, "at least 3 rows, which the ledger counts")


def test_rows_that_others_loaded_under_an_earlier_name_of_the_table_are_not_from_nowhere(loads, tasks):
    write(loads, "others/a.jsonl", "a", "b", "c")
    load_by_spark(loads, tasks, transform=GROUPED, **another(loads))
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, path=str(loads.folder / "*.jsonl")))
    write(loads, "a.jsonl", "a", "b")
    loads.load()
    change(loads, "ALTER TABLE target RENAME TO renamed")
    renamed: dict[str, Any] = {"target": Target(schema="public", table="renamed")}
    write(loads, "b.jsonl", "a", "b")
    loads.load(**renamed)

    verification = verified(loads, **renamed)

    assert (verification.differences, verification.rows) == ((), 4)
    change(loads, "INSERT INTO renamed (id) VALUES (8)")
    assert verified(loads, **renamed).counts == {Kind.ROW_FROM_NOWHERE: 1}


def test_rows_of_no_record_in_another_table_are_not_expected(loads, tasks):
    others = another(loads)
    write(loads, "others/a.jsonl", "a", "b", "c")
    elsewhere = Target(schema="public", table="elsewhere")
    load_by_spark(loads, tasks, transform=GROUPED, target=elsewhere, **others)
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, path=str(loads.folder / "*.jsonl")))
    write(loads, "a.jsonl", "a")
    loads.load()
    change(loads, "INSERT INTO target (id) VALUES (8)")

    assert verified(loads).counts == {Kind.ROW_FROM_NOWHERE: 1}


def test_rows_of_no_record_are_still_expected_after_a_rewind_of_later_commits(loads, tasks):
    write(loads, "a.jsonl", "a", "b")
    load_by_spark(loads, tasks, transform=GROUPED)
    kept = "SELECT * FROM records"
    write(loads, "b.jsonl", "a", "b", "b")
    load_by_spark(loads, tasks, transform=kept)
    rewind(replace(loads.declared, transform=kept), loads.engine, to=Position(1), dry_run=False)

    verification = verified(loads, transform=kept)

    assert (verification.differences, verification.rows) == ((), 2)
    load_by_spark(loads, tasks, transform=kept)
    assert (verified(loads, transform=kept).differences, verified(loads, transform=kept).rows) == ((), 5)


def test_rewound_rows_of_no_record_are_no_longer_expected(loads, tasks):
    """A rewind refuses rows of no record, so another pipeline's rewind is noted by hand."""
    write(loads, "a.jsonl", "a", "b")
    load_by_spark(loads, tasks, transform=GROUPED)
    change(
        loads,
        "INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, rewound_to)"
        " SELECT pipeline_id, 2, 'rewind', 'by hand', 0 FROM onceload.pipeline",
    )

    assert verified(loads, transform=GROUPED).counts == {Kind.ROW_FROM_NOWHERE: 2}


def test_rows_that_were_loaded_without_lineage_are_expected_after_it_was_declared(loads):
    write(loads, "a.jsonl", "a", "b")
    loads.load(target=WITHOUT_LINEAGE)
    write(loads, "b.jsonl", "a", "b")
    loads.load()

    for deep in (False, True):
        verification = verified(loads, deep=deep)
        assert (verification.differences, verification.rows) == ((), 4)
    change(loads, "DELETE FROM target WHERE _producer_id IS NULL AND id = 0")
    assert verified(loads).counts == {Kind.ROW_MISSING: 1}
    assert "have no lineage" in verified(loads, target=WITHOUT_LINEAGE).not_compared[0].reason


@pytest.mark.parametrize("lineage", [True, False])
def test_merged_rows_of_a_removed_transform_are_not_from_nowhere(loads, tasks, lineage):
    change(loads, "CREATE UNIQUE INDEX ON target (id)")
    merged = Target(schema="public", table="target", write=Write.MERGE, key=("id",), lineage=lineage)
    loads.declared = replace(loads.declared, target=merged)
    write(loads, "a.jsonl", "a", "a", "b")
    load_by_spark(loads, tasks, transform=GROUPED.replace("max(id)", "max(id) + 100"))
    write(loads, "b.jsonl", "a", "b")
    loads.load()

    verification = verified(loads, deep=True)

    assert (loads.rows(), verification.differences) == ([0, 1, 101, 102], ())


def test_a_merge_into_a_shared_table_may_replace_rows_of_no_record(loads, tasks):
    change(loads, "CREATE UNIQUE INDEX ON target (id)")
    write(loads, "a.jsonl", "a", "b")
    mine = replace(loads.declared.source, path=str(loads.folder / "*.jsonl"))
    load_by_spark(loads, tasks, transform=GROUPED, source=mine)
    merged = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    write(loads, "others/a.jsonl", "a")
    loads.load(target=merged, **another(loads))

    verification = verified(loads, transform=GROUPED, source=mine)

    assert (loads.rows(), verification.differences) == ([0, 1], ())
    assert "0 to 2 of them, because a merge may" in verification.not_compared[1].reason
    change(loads, "INSERT INTO target (id) VALUES (7), (8)")
    assert verified(loads, transform=GROUPED, source=mine).counts == {Kind.ROW_FROM_NOWHERE: 1}


@pytest.mark.parametrize("transform", [None, GROUPED])
def test_a_merge_reports_more_rows_of_no_record_than_were_loaded(loads, tasks, transform):
    """Whether rows are still made of several records or not."""
    change(loads, "CREATE UNIQUE INDEX ON target (id)")
    merged: dict[str, Any] = {"target": MERGED, "transform": transform}
    write(loads, "a.jsonl", "a", "b")
    load_by_spark(loads, tasks, **merged | {"transform": GROUPED})
    write(loads, "b.jsonl", "a")
    loads.load(target=MERGED)
    assert verified(loads, deep=True, **merged).differences == ()

    change(loads, "INSERT INTO target (id) VALUES (7), (8)")

    for deep in (False, True):
        assert verified(loads, deep=deep, **merged).counts == {Kind.ROW_FROM_NOWHERE: 1}


@pytest.mark.parametrize("first", [MERGED, None])
def test_rows_that_a_merge_may_have_replaced_are_not_expected(loads, first):
    """Whether they were merged or appended; all others are."""
    change(loads, "CREATE UNIQUE INDEX ON target (id)")
    write(loads, "a.jsonl", "a", "b")
    loads.load(**{"target": first} if first else {})
    write(loads, "b.jsonl", "new")
    loads.load(target=MERGED)
    loads.write("c.jsonl", line(7) + line(8))
    loads.load()

    for deep in (False, True):
        verification = verified(loads, deep=deep)
        assert (verification.differences, verification.rows) == ((), None)
        assert "rows that a merge may have replaced are not expected" in [
            each.reason for each in verification.not_compared
        ]
    change(loads, "DROP INDEX target_id_idx")
    change(loads, "DELETE FROM target WHERE id = 8")
    change(loads, "INSERT INTO target SELECT * FROM target WHERE id < 1 OR id = 7")
    change(loads, "INSERT INTO target (id, _producer_id, _sequence) VALUES (9, NULL, NULL), (9, 999, 0)")
    assert verified(loads).counts == {Kind.ROW_MISSING: 1, Kind.ROW_DUPLICATED: 2, Kind.ROW_FROM_NOWHERE: 2}


def test_rows_that_a_merge_of_another_pipeline_may_have_replaced_are_not_expected(loads):
    change(loads, "CREATE UNIQUE INDEX ON target (id)")
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, path=str(loads.folder / "*.jsonl")))
    # Positions of two pipelines cannot be compared.
    loads.write("z.jsonl", line(5))
    loads.load()
    write(loads, "a.jsonl", "a", "b")
    loads.load()
    write(loads, "others/a.jsonl", "new")
    loads.load(target=MERGED, **another(loads))

    for deep in (False, True):
        assert verified(loads, deep=deep).differences == ()
    change(loads, "UPDATE target SET note = 'changed' WHERE id = 1")
    assert verified(loads, deep=True).counts == {Kind.VALUE_CHANGED: 1}
    change(loads, "DROP INDEX target_id_idx")
    change(loads, "INSERT INTO target SELECT * FROM target WHERE id = 1")
    assert verified(loads).counts == {Kind.ROW_DUPLICATED: 1}


def test_a_replacement_makes_no_row_of_its_own_uncertain(loads, tasks):
    """Nor those of other files in the same commit."""
    write(loads, "a.jsonl", "a", "b")
    loads.load()
    write(loads, "a.jsonl", "x", "b", "c")
    write(loads, "b.jsonl", "d")
    load_by_spark(loads, tasks, transform=MIXED, on_rewrite=OnRewrite.REPLACE)

    assert (verified(loads).differences, verified(loads).not_compared) == ((), ())
    change(loads, "DELETE FROM target WHERE _producer_id IS NULL")
    assert verified(loads).counts == {Kind.ROW_MISSING: 4}


def test_a_table_that_another_pipeline_named_by_mistake_is_compared_as_before(loads):
    """It loads into a table of its own now, whatever it does there."""
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, path=str(loads.folder / "*.jsonl")))
    write(loads, "a.jsonl", "a", "b")
    loads.load(target=WITHOUT_LINEAGE)
    others = another(loads)
    loads.write("others/none.jsonl", "")
    loads.load(**others)
    write(loads, "others/a.jsonl", "a", "b", "c")
    elsewhere = Target(schema="public", table="elsewhere", write=Write.MERGE, key=("id",), lineage=False)
    loads.load(target=elsewhere, **others)

    assert (verified(loads).differences, verified(loads).rows) == ((), 2)
    change(loads, "DELETE FROM target WHERE id = 0")
    assert verified(loads).counts == {Kind.ROW_MISSING: 1}
    change(loads, "INSERT INTO target (id) VALUES (0), (8)")
    assert verified(loads).counts == {Kind.ROW_FROM_NOWHERE: 1}


def test_rows_without_lineage_are_still_expected_after_their_table_was_renamed(loads):
    write(loads, "a.jsonl", "a", "b")
    loads.load(target=WITHOUT_LINEAGE)
    change(loads, "ALTER TABLE target RENAME TO renamed")
    renamed: dict[str, Any] = {"target": Target(schema="public", table="renamed")}
    write(loads, "b.jsonl", "a")
    loads.load(**renamed)

    assert (verified(loads, **renamed).differences, verified(loads, **renamed).rows) == ((), 3)
    change(loads, "DELETE FROM renamed WHERE _producer_id IS NULL")
    assert verified(loads, **renamed).counts == {Kind.ROW_MISSING: 2}


def replace_by(loads: Loads, *notes: str) -> None:
    """Replace the rows of the first file that are found."""
    write(loads, "a.jsonl", *notes)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), differences_accepted=True)
    declared = replace(loads.declared, on_rewrite=OnRewrite.REPLACE)
    load(declared, settings, batch=Batch(new_batch()), executor=InThisProcess())


def test_rows_without_lineage_that_a_replacement_left_behind_are_from_nowhere(loads):
    write(loads, "a.jsonl", "a", "b")
    loads.load(target=WITHOUT_LINEAGE)
    write(loads, "b.jsonl", "a", "b", "c")
    loads.load(target=WITHOUT_LINEAGE)
    replace_by(loads, "z", "y")

    (surplus,) = verified(loads).differences

    assert (surplus.kind, surplus.expected, surplus.found) == (
        Kind.ROW_FROM_NOWHERE,
        "3 rows, which the ledger counts",
        "5 rows",
    )
    change(loads, "DELETE FROM target WHERE _producer_id IS NULL AND ctid IN (SELECT ctid FROM target LIMIT 2)")
    verification = verified(loads)
    assert (verification.differences, verification.rows) == ((), 5)


def test_rows_of_no_record_that_a_replacement_left_behind_may_be_deleted(loads, tasks):
    write(loads, "a.jsonl", "a", "b")
    load_by_spark(loads, tasks, transform=GROUPED)
    replace_by(loads, "z", "y")

    assert verified(loads).differences == ()
    change(loads, "DELETE FROM target WHERE _producer_id IS NULL")
    assert verified(loads).differences == ()
    change(loads, "INSERT INTO target (id) VALUES (6), (7), (8)")
    assert verified(loads).counts == {Kind.ROW_FROM_NOWHERE: 1}
