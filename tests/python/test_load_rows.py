"""Rows that a program gives, loaded exactly once by the same commit."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd  # type: ignore[import-untyped] # It ships no types.
import psycopg2
import pyarrow as pa
import pytest
import yaml
from sqlalchemy.exc import OperationalError

import onceload
from onceload import cli
from tests.python.conftest import Place
from tests.servers import execute


class Rows:
    """A pipeline without source, and its table."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def pipeline(self, **changes: Any) -> onceload.Pipeline:
        described = self._place.describe(pipeline="crm", **changes)
        return onceload.Pipeline.of({k: v for k, v in described.items() if k != "source"}, dsn=self._place.dsn)

    def load(self, rows: Any, *, first_id: int | None = None, id_column: str | None = None, **changes: Any) -> Any:
        pipeline = self.pipeline(**changes)
        report = pipeline.load_rows(rows, producer="crm", first_id=first_id, id_column=id_column)
        return report.loaded, report.duplicates, report.quarantined

    def there(self, columns: str = "_sequence, id") -> list[tuple[Any, ...]]:
        return self._place.rows(columns)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return execute(self._place.dsn, statement)

    @property
    def is_untouched(self) -> bool:
        return self.ask("SELECT count(*) FROM onceload.ledger") == [(0,)]


@pytest.fixture
def rows(place: Place) -> Rows:
    return Rows(place)


def mappings(*ids: int) -> list[dict[str, object]]:
    return [{"id": number, "amount": Decimal("1.50"), "note": "x"} for number in ids]


def table(*ids: int, **columns: Any) -> pa.Table:
    return pa.table({"id": ids, "amount": [1.5] * len(ids), "note": ["x"] * len(ids)} | columns)


class Stream:
    """A frame of another library."""

    def __init__(self, of: pa.Table) -> None:
        self._table = of

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class OldFrame:
    """A frame that only makes an Arrow table of itself."""

    def __init__(self, of: pa.Table) -> None:
        self._table = of

    def to_arrow(self) -> pa.Table:
        return self._table


@pytest.mark.parametrize("publish", ["staged", "direct"])
@pytest.mark.parametrize(
    "form",
    [
        lambda of: of,
        lambda of: of.to_reader(max_chunksize=1),
        lambda of: of.combine_chunks().to_batches()[0],
        lambda of: of.to_pandas().set_index("note", drop=False),
        Stream,
        OldFrame,
        lambda of: of.to_pylist(),
        lambda of: iter(of.to_pylist()),
    ],
    ids=["table", "reader", "batch", "pandas", "stream", "to_arrow", "mappings", "iterator"],
)
def test_rows_of_every_form_are_loaded_once(rows: Rows, form: Any, publish: str) -> None:
    given = table(10, 11, 12)

    loaded = [rows.load(form(given), first_id=5, publish=publish) for _ in range(2)]

    assert loaded == [(3, 0, 0), (0, 3, 0)]
    assert rows.there("_sequence, id, amount, note") == [
        (number - 5, number, Decimal("1.50"), "x") for number in (10, 11, 12)
    ]


def test_an_overlap_loads_the_new_ids_only(rows: Rows) -> None:
    assert rows.load(mappings(1, 2), first_id=0) == (2, 0, 0)
    assert rows.load(table(2, 3, 4), first_id=1) == (2, 1, 0)
    assert rows.there() == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_ids_of_a_column_may_have_gaps_and_fill_them_later(rows: Rows) -> None:
    assert rows.load(table(1, 2, key=[7, 9]), id_column="key") == (2, 0, 0)
    assert rows.load(table(3, 2, 4, key=[8, 9, 20]), id_column="key") == (2, 1, 0)
    assert rows.load([{"id": 5, "key": 21}], id_column="key") == (1, 0, 0)
    assert rows.there() == [(7, 1), (8, 3), (9, 2), (20, 4), (21, 5)]
    assert rows.ask("SELECT consumed::text FROM onceload.producer") == [("{[7,10),[20,22)}",)]


def test_a_declared_column_of_ids_is_loaded_too(rows: Rows) -> None:
    assert rows.load(table(7, 9), id_column="id") == (2, 0, 0)
    assert rows.there() == [(7, 7), (9, 9)]


def test_a_gap_in_counted_ids_is_refused(rows: Rows) -> None:
    rows.load(mappings(1, 2), first_id=10)

    with pytest.raises(onceload.OfferRefused) as refused:
        rows.load(mappings(3), first_id=13)

    assert str(refused.value) == (
        "pipeline crm, producer 'crm': the rows have ids {[13,14)}, which do not continue the loaded ids {[10,12)}. "
        "Nothing was loaded. Expected ids that continue or repeat what is loaded (for ids with gaps, give them in a "
        "column: id_column). Correct the rows, and call again: ids that are loaded are skipped."
    )
    assert rows.load(mappings(0, 1), first_id=9) == (1, 1, 0)


WRONG = {
    "an id that goes back": (table(1, 2, 3, key=[1, 5, 4]), {"id_column": "key"}, "row 3 has id 4, after id 5"),
    "an id twice": (table(1, 2, key=[5, 5]), {"id_column": "key"}, "row 2 has id 5, after id 5"),
    "an id that goes back in mappings": ([{"id": 2}, {"id": 1}], {"id_column": "id"}, "row 2 has id 1, after id 2"),
    "a negative id": (table(1, key=[-1]), {"id_column": "key"}, "the ids include -1 and -1"),
    "an id beyond int8": (table(1, key=pa.array([2**64 - 1], pa.uint64())), {"id_column": "key"}, "is too large"),
    "the last int8": (table(1, key=[2**63 - 1]), {"id_column": "key"}, "the ids include"),
    "a huge id in a mapping": ([{"id": 1, "key": 2**63}], {"id_column": "key"}, "the id 9223372036854775808"),
    "ids with nulls": (table(1, 2, key=[1, None]), {"id_column": "key"}, "of type int64 with 1 nulls"),
    "ids with a fraction": (table(1, key=[1.0]), {"id_column": "key"}, "of type double"),
    "an id that is a text": ([{"id": 1, "key": "1"}], {"id_column": "key"}, "of type str"),
    "an id that is missing": ([{"id": 1}], {"id_column": "key"}, "of type NoneType"),
    "a column of ids that is missing": (table(1), {"id_column": "key"}, "no column is called 'key'"),
    "counted ids beyond int8": (table(1, 2), {"first_id": 2**63 - 2}, "2 ids from"),
    "negative counted ids": (table(1), {"first_id": -1}, "1 ids from -1 on"),
    "a lacking column": (pa.table({"id": [1]}), {"first_id": 0}, "the columns 'amount', 'note' are missing"),
    "a column twice": (
        pa.Table.from_arrays([pa.array([1])] * 2, names=["id", "id"]),
        {"first_id": 0},
        "several columns are called 'id'",
    ),
    "one mapping": ({"id": 1}, {"first_id": 0}, "the rows are of type dict"),
    "a column alone": (pa.chunked_array([[1, 2]]), {"first_id": 0}, "Arrow does not take the frame"),
    "a text": ("rows", {"first_id": 0}, "the rows are of type str"),
    "nothing": (None, {"first_id": 0}, "the rows are of type NoneType"),
    "tuples": ([(1, 2)], {"first_id": 0}, "one of the rows is of type tuple"),
    "a type that Parquet lacks": (
        table(1, note=pa.array([pa.MonthDayNano([1, 1, 1])])),
        {"first_id": 0},
        "their columns cannot be read",
    ),
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_rows_that_are_wrong_as_a_whole_are_refused(rows: Rows, given: Any) -> None:
    offered, ids, found = given

    with pytest.raises(onceload.OfferRefused, match=r"Nothing was loaded") as refused:
        rows.load(offered, **ids)

    assert found in str(refused.value)
    assert rows.is_untouched


@pytest.mark.parametrize("ids", [{}, {"first_id": 0, "id_column": "id"}, {"first_id": 1.0}, {"first_id": True}])
def test_ids_are_either_counted_or_in_a_column(rows: Rows, ids: Any) -> None:
    with pytest.raises(onceload.SettingRefused, match="first_id"):
        rows.load(table(1), **ids)


@pytest.mark.parametrize("producer", [None, 7, b"crm"])
def test_a_producer_that_is_not_text_is_refused(rows: Rows, producer: Any) -> None:
    with pytest.raises(onceload.SettingRefused, match="producer: found"):
        rows.pipeline().load_rows(table(1), producer=producer, first_id=0)


def test_bad_rows_go_to_quarantine_and_can_be_seen(rows: Rows) -> None:
    given: list[dict[str, object]] = [
        {"id": 1, "amount": "1.5", "note": "good"},
        {"id": None, "amount": 1, "note": "null in a not-null column"},
        {"amount": 1},
        {"id": 4, "amount": object()},
        {"id": 5, "amount": Decimal("1.555")},
        {"id": 6, "note": "\ud800"},
        {"id": 2**70},
    ]

    assert rows.load(given, first_id=0) == (1, 0, 6)
    assert rows.load(given, first_id=0) == (0, 7, 0)
    assert rows.there() == [(0, 1)]
    found = rows.ask("SELECT sequence_id, column_name, reason FROM onceload.quarantine ORDER BY 1")
    assert [(number, column) for number, column, _ in found] == [
        (1, "id"), (2, "id"), (3, "amount"), (4, "amount"), (5, "note"), (6, "id"),
    ]  # fmt: skip
    assert found[0][2] == "null, but declared not null"
    assert found[2][2] == "a value of type object cannot be loaded"


def test_a_number_of_more_digits_than_python_writes_is_a_value_like_others(rows: Rows) -> None:
    large = 10**5000
    columns = {"id": "bigint", "text": "text", "object": "jsonb"}
    loaded = [
        {"id": 1, "text": large, "object": {"in": [large]}},
        {"id": 2, "text": -large, "object": -large},
        {"id": large, "text": "x", "object": 1},
        {"id": 4, "text": {large}, "object": 1},
    ]

    assert rows.load(loaded, first_id=0, columns=columns) == (2, 0, 2)
    found = rows.ask("SELECT text, object::text FROM target ORDER BY id")
    digits = "1" + "0" * 5000
    assert found == [(digits, f'{{"in": [{digits}]}}'), (f"-{digits}", f"-{digits}")]


def test_decimals_whose_last_digits_are_left_out_are_loaded_with_them(rows: Rows) -> None:
    hundreds = pa.array([Decimal(12300), None], pa.decimal128(5, -2))
    columns = {"id": "bigint", "amount": "numeric(12,2)", "object": "jsonb"}

    offered = pa.table({"id": [1, 2], "amount": hundreds, "object": hundreds})
    assert rows.load(offered, first_id=0, columns=columns) == (2, 0, 0)
    assert rows.there("id, amount, object") == [(1, Decimal("12300.00"), 12300), (2, None, None)]
    in_lists = pa.table({"id": [3], "amount": [1], "object": pa.array([[Decimal(100)]], pa.list_(hundreds.type))})
    assert rows.load(in_lists, first_id=2, columns=columns) == (1, 0, 0)
    assert ([100],) in rows.there("object")


def test_bad_rows_of_a_frame_go_to_quarantine(rows: Rows) -> None:
    given = pd.DataFrame({"id": ["1", "two", None], "amount": [1.5, 2.5, 3.5], "note": ["x", "y", "z"]})

    assert rows.load(given, first_id=0) == (1, 0, 2)
    assert rows.there() == [(0, 1)]


def test_rows_that_the_server_refuses_go_to_quarantine(rows: Rows) -> None:
    rows.ask(
        "CREATE TABLE target (id bigint NOT NULL UNIQUE, amount numeric(12,2), note text, _producer_id bigint, "
        "_sequence bigint)"
    )

    assert rows.load(mappings(1, 2, 1, 3), first_id=0) == (3, 0, 1)
    assert rows.there() == [(0, 1), (1, 2), (3, 3)]
    assert rows.pipeline().verify(deep=True).differing == 0


def test_rows_that_are_all_bad_are_refused(rows: Rows) -> None:
    with pytest.raises(onceload.NoGoodRow, match="all 10 rows are bad, the first one because of this: id: 'x'"):
        rows.load([{"id": "x"}] * 10, first_id=0)

    assert rows.is_untouched
    assert rows.load([{"id": "x"}] * 10, first_id=0, quality={"quarantined_max": "100%"}) == (0, 0, 10)


def test_too_many_bad_rows_are_refused(rows: Rows) -> None:
    with pytest.raises(onceload.TooManyQuarantined):
        rows.load([{"id": 1}, {"id": "x"}], first_id=0, quality={"quarantined_max": 0})

    assert rows.is_untouched


@pytest.mark.parametrize("form", [table, lambda *ids: [*table(*ids).to_pylist()]], ids=["table", "mappings"])
def test_undeclared_columns_are_ignored_or_refused(rows: Rows, form: Any) -> None:
    given = form(1)
    given = given.append_column("more", pa.array([1])) if isinstance(given, pa.Table) else [{**given[0], "more": 1}]

    assert rows.load(given, first_id=0) == (1, 0, 0)
    if isinstance(given, pa.Table):
        with pytest.raises(onceload.OfferRefused, match="the columns 'more' are not declared"):
            rows.load(given, first_id=1, unknown_fields="fail")
    else:
        assert rows.load(given, first_id=1, unknown_fields="fail") == (0, 0, 1)


@pytest.mark.parametrize("form", ["table", "mappings"])
def test_undeclared_columns_are_counted_and_named(rows: Rows, form: str) -> None:
    given = table(1, 2, 3, zip=["y", "y", None])
    offered = given if form == "table" else given.to_pylist()

    reports = [rows.pipeline().load_rows(offered, producer="crm", first_id=0) for _ in range(2)]

    assert [(each.loaded, each.ignored_fields, each.ignored_of) for each in reports] == [(3, {"zip": 3}, 3), (0, {}, 0)]


def test_undeclared_columns_of_all_commits_of_a_call_are_added_up(rows: Rows) -> None:
    pieces = [{**row, "even" if row["id"] % 2 == 0 else "odd": 1} for row in table(*range(10_001)).to_pylist()]

    report = rows.pipeline(publish="direct").load_rows(pieces, producer="crm", first_id=0)

    assert rows.ask("SELECT count(*) FROM onceload.ledger") == [(2,)]
    assert (report.ignored_fields, report.ignored_of) == ({"even": 5001, "odd": 5000}, 10_001)


def test_an_id_column_that_is_not_declared_is_not_an_undeclared_column(rows: Rows) -> None:
    given = table(1, 2, number=[5, 6])

    for offered in (given, given.to_pylist()):
        report = rows.pipeline().load_rows(offered, producer="crm", id_column="number")
        assert report.ignored_fields == {}


def test_undeclared_columns_of_a_table_are_added(rows: Rows) -> None:
    assert rows.load(table(1), first_id=0, unknown_fields="add") == (1, 0, 0)
    assert rows.load(table(2, more=["y"]), first_id=1, unknown_fields="add") == (1, 0, 0)
    assert rows.there("id, more") == [(1, None), (2, "y")]
    with pytest.raises(onceload.OfferRefused, match="adds columns for undeclared fields"):
        rows.load(mappings(1), first_id=2, unknown_fields="add")


COLUMNS = {
    "text": "text", "flag": "boolean", "whole": "integer", "real": "double precision", "number": "numeric(12,3)",
    "day": "date", "clock": "time", "moment": "timestamptz", "key": "uuid", "document": "jsonb", "octets": "bytea",
    "list": "integer[]",
}  # fmt: skip
VALUES = {
    "text": "ä", "flag": True, "whole": -7, "real": 0.1, "number": Decimal("12.345"), "day": dt.date(2026, 11, 20),
    "clock": dt.time(12, 30), "moment": dt.datetime(2026, 11, 20, 12, 30, tzinfo=dt.UTC), "key": str(UUID(int=7)),
    "document": {"a": [1, None]}, "octets": b"\x00\xff", "list": [1, None, 3],
}  # fmt: skip


def test_values_of_mappings_and_of_tables_are_the_same(rows: Rows) -> None:
    names = ", ".join(COLUMNS)

    assert rows.load([VALUES, {}], first_id=0, columns=COLUMNS) == (2, 0, 0)
    assert rows.load(pa.Table.from_pylist([VALUES, dict.fromkeys(VALUES)]), first_id=2, columns=COLUMNS) == (2, 0, 0)

    found = [row[1:] for row in rows.there(f"_sequence, {names}")]
    assert found[0] == found[2]
    assert found[1] == found[3] == (None,) * len(COLUMNS)
    expected = {**VALUES, "octets": found[0][10]}
    assert found[0] == tuple(expected.values())
    assert bytes(found[0][10]) == b"\x00\xff"


def test_values_of_numpy_are_those_that_arrow_takes(rows: Rows) -> None:
    columns = {"whole": "integer", "number": "numeric(4,1)", "text": "text", "moment": "timestamptz", "flag": "boolean"}
    given = {
        "whole": np.int8(7),
        "number": np.float32(0.1),
        "text": np.str_("x"),
        "moment": np.datetime64("2026-11-20T12:30:00.123456789", "ns"),
        "flag": np.bool_(True),  # noqa: FBT003 - it has no name.
    }

    assert rows.load([given, {"text": np.timedelta64(1, "s")}], first_id=0, columns=columns) == (1, 0, 1)
    moment = dt.datetime(2026, 11, 20, 12, 30, 0, 123457, tzinfo=dt.UTC)
    assert rows.there("whole, number, text, moment, flag") == [(7, Decimal("0.1"), "x", moment, True)]


@pytest.mark.parametrize("of_values", [pa.string(), pa.string_view(), pa.large_string()], ids=str)
def test_categories_are_read_as_their_values(rows: Rows, of_values: pa.DataType) -> None:
    note = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), pa.array(["x", "y"], of_values))

    assert rows.load(table(1, 2, 3, note=note), first_id=0) == (3, 0, 0)
    assert rows.there("id, note") == [(1, "y"), (2, None), (3, "x")]


def test_no_rows_load_nothing(rows: Rows) -> None:
    assert rows.load([], first_id=0) == rows.load(table(), first_id=0) == (0, 0, 0)
    assert rows.is_untouched


@pytest.mark.parametrize("error", [ZeroDivisionError(), OperationalError("SELECT", None, psycopg2.OperationalError())])
@pytest.mark.parametrize("before", [0, 10_001], ids=["at once", "after a commit"])
def test_an_error_of_an_iterator_is_its_own_and_what_is_committed_stays(
    rows: Rows, error: Exception, before: int
) -> None:
    def failing() -> Iterator[dict[str, object]]:
        yield from mappings(*range(before))
        raise error

    with pytest.raises(type(error)) as raised:
        rows.load(failing(), first_id=0, publish="direct")

    assert raised.value is error
    assert rows.is_untouched or rows.ask("SELECT sum(loaded) FROM onceload.ledger") == [(10_000,)]


def test_with_publish_direct_earlier_rows_stay_and_the_message_counts_them(rows: Rows) -> None:
    batches = [batch for each in (table(1, 2), table(3, 2)) for batch in each.to_batches()]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    changes = {"publish": "direct"}
    pipeline = rows.pipeline(**changes)
    source = onceload.Pipeline(_with_small_chunks(pipeline), pipeline.settings)

    with pytest.raises(onceload.OfferRefused, match=r"row 4 has id 2, after id 3\. The 2 rows before them stay loaded"):
        source.load_rows(reader, producer="crm", id_column="id")

    assert rows.there() == [(1, 1), (2, 2)]


def _with_small_chunks(pipeline: onceload.Pipeline) -> Any:
    from dataclasses import replace

    return replace(pipeline.declared, source=replace(pipeline.declared.source, chunk_bytes=1))


def test_a_pipeline_has_either_files_or_rows(place: Place, rows: Rows) -> None:
    with pytest.raises(onceload.SettingRefused, match="load_rows: found pipeline events, which reads files"):
        place.pipeline().load_rows(table(1), producer="crm", first_id=0)
    for call in ("plan", "load", "stage"):
        with pytest.raises(onceload.SettingRefused, match="source: found pipeline crm, which declares none"):
            getattr(rows.pipeline(), call)()
    with pytest.raises(onceload.PipelineFileRefused, match=r"target.write: it applies to files.*set write: append"):
        rows.pipeline(target={"table": "target", "write": "merge", "key": ["id"]})


def test_two_pipelines_of_rows_share_a_table(rows: Rows, place: Place) -> None:
    rows.load(table(1), first_id=0)

    other = rows.pipeline()
    described = {k: v for k, v in place.describe(pipeline="erp").items() if k != "source"}
    other = onceload.Pipeline.of(described, dsn=place.dsn)

    assert other.load_rows(table(2), producer="crm", first_id=0).loaded == 1
    assert [each.verify(deep=True).differing for each in (other, rows.pipeline())] == [0, 0]


def test_rows_are_verified_and_rewound_like_those_of_files(rows: Rows) -> None:
    rows.load(mappings(1, 2, 3), first_id=0)
    pipeline = rows.pipeline()
    assert (pipeline.verify(deep=True).differing, pipeline.verify().rows) == (0, 3)
    (note,) = pipeline.verify(deep=True).not_compared
    assert note.reason == "the values of 3 rows were not compared, because a program gave them, and no file has them"

    rows.ask("DELETE FROM target WHERE id = 2")

    found = pipeline.verify(deep=True).differences
    assert [(each.kind, each.producer, each.sequence_id) for each in found] == [("row missing", "crm", 1)]
    assert pipeline.recover_rewind(position=0, accepts_differences=True).applied
    assert (rows.load(mappings(1, 2, 3), first_id=0), rows.there()) == ((3, 0, 0), [(0, 1), (1, 2), (2, 3)])


def test_a_file_without_source_is_for_the_commands_that_look_back(
    rows: Rows, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    described = {k: v for k, v in place.describe(pipeline="crm").items() if k != "source"}
    file = place.folder / "crm.yaml"
    file.write_text(yaml.safe_dump(described, sort_keys=False), encoding="utf-8")
    loaded = onceload.Pipeline.read(file, dsn=place.dsn).load_rows(
        [{"id": 1}, {"id": 2, "note": "a" * 5, "amount": "1.555"}], producer="crm", first_id=0
    )
    environment = {"ONCELOAD_DSN": place.dsn}

    assert (loaded.loaded, loaded.quarantined) == (1, 1)
    assert cli.main(["verify", str(file), "--deep"], environment) == 0
    assert cli.main(["quarantine", "list"], environment) == 0
    file.write_text(file.read_text(encoding="utf-8").replace("(12,2)", "(12,3)"), encoding="utf-8")
    rows.ask("ALTER TABLE target ALTER COLUMN amount TYPE numeric(12,3)")
    assert cli.main(["quarantine", "retry", str(file)], environment) == 0
    assert rows.there("_sequence, id, amount, note") == [(0, 1, None, None), (1, 2, Decimal("1.555"), "aaaaa")]
    assert cli.main(["verify", str(file), "--deep"], environment) == 0
    assert cli.main(["recover", "rewind", str(file), "--position", "0"], environment) == 0
    assert rows.there() == []
    assert cli.main(["load", str(file)], environment) == 2
    assert "source.path: is missing" in capsys.readouterr().err


def test_an_edit_of_the_declaration_takes_a_version(rows: Rows) -> None:
    assert rows.pipeline().load_rows(table(1), producer="crm", first_id=0).version == 1
    wider = {"id": "bigint not null", "amount": "numeric(12,2)", "note": "text", "more": "text"}
    rows.ask("ALTER TABLE target ADD COLUMN more text")

    report = rows.pipeline(columns=wider).load_rows(mappings(2), producer="crm", first_id=1)

    assert report.version == 2


def test_rows_for_a_paused_pipeline_are_refused_and_loaded_after_the_resume(rows: Rows) -> None:
    rows.load(mappings(1), first_id=0)
    pipeline = rows.pipeline()
    pipeline.pause(why="a repair", by="ann")

    with pytest.raises(onceload.PipelinePaused, match="paused by ann"):
        rows.load(mappings(1, 2), first_id=0)

    assert rows.there() == [(0, 1)]
    pipeline.resume()
    assert rows.load(mappings(1, 2), first_id=0) == (1, 1, 0)


def test_a_pause_between_two_commits_of_a_call_refuses_the_second(rows: Rows) -> None:
    pipeline = rows.pipeline(publish="direct")

    def given() -> Iterator[dict[str, object]]:
        # As many as one commit takes.
        yield from mappings(*range(10_000))
        pipeline.pause(why="a repair")
        yield from mappings(10_000)

    with pytest.raises(onceload.PipelinePaused):
        pipeline.load_rows(given(), producer="crm", first_id=0)

    assert rows.ask("SELECT count(*) FROM target") == [(10_000,)]
    pipeline.resume()
    report = pipeline.load_rows(mappings(*range(10_001)), producer="crm", first_id=0)
    assert (report.loaded, report.duplicates) == (1, 10_000)


def test_a_pause_from_python_has_the_user_of_the_process_and_is_returned_by_the_resume(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    rows.load(mappings(1), first_id=0)

    paused = rows.pipeline().pause(why="a repair")

    assert (paused.pause.by, paused.pause.why, paused.is_earlier) == ("ann", "a repair", False)
    assert rows.pipeline().pause(why="another", by="ben") == onceload.Paused(pause=paused.pause, is_earlier=True)
    assert rows.pipeline().resume() == paused.pause
    assert rows.pipeline().resume() is None


@pytest.mark.parametrize("ids", [[1, "x"], [10**30, 2], [1 + 2j, 2]], ids=["two types", "too large", "no number"])
def test_a_frame_that_arrow_does_not_take_is_refused_whole(rows: Rows, ids: list[object]) -> None:
    frame = pd.DataFrame({"id": pd.Series(ids, dtype=object), "note": ["a", "b"]})

    with pytest.raises(onceload.OnceloadError, match=r"Arrow does not take the frame"):
        rows.load(frame, first_id=0)

    assert rows.ask("SELECT count(*) FROM onceload.ledger") == [(0,)]


@pytest.mark.parametrize("form", [lambda frame: frame, pa.Table.from_pandas], ids=["pandas", "table"])
def test_a_column_of_periods_is_refused_with_what_to_do(rows: Rows, form: Any) -> None:
    frame = pd.DataFrame({"id": [1], "amount": [1.5], "note": pd.period_range("2024-01", periods=1, freq="M")})

    with pytest.raises(onceload.OnceloadError) as refused:
        rows.load(form(frame), first_id=0)

    assert "the column 'note' has the extension type 'pandas.period'" in str(refused.value)
    assert "astype(str)" in str(refused.value)
    assert rows.load(frame.assign(note=frame["note"].astype(str)), first_id=0) == (1, 0, 0)
    assert rows.ask("SELECT note FROM target") == [("2024-01",)]


def of_days(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int64()).view(pa.date64())


@pytest.mark.parametrize("number", [1, 2**62], ids=["a time", "no day"])
@pytest.mark.parametrize(
    "form", [lambda days: days, lambda days: pa.StructArray.from_arrays([days], ["x"])], ids=["alone", "inside"]
)
def test_days_with_a_time_are_not_cut(rows: Rows, number: int, form: Any) -> None:
    columns = {"day": "jsonb"}
    assert rows.load(pa.table({"day": form(of_days(86_400_000))}), first_id=0, columns=columns) == (1, 0, 0)

    with pytest.raises(onceload.OnceloadError, match="would lose data"):
        rows.load(pa.table({"day": form(of_days(number))}), first_id=1, columns=columns)


def test_times_that_parquet_would_wrap_are_kept_as_they_are_given(rows: Rows) -> None:
    # In milliseconds, the second of them has more than 32 bits.
    given = pa.array([5, 4_294_968], pa.int32()).cast(pa.time32("s"))

    assert rows.load(pa.table({"at": given}), first_id=0, columns={"at": "time"}) == (1, 0, 1)
    assert rows.ask("SELECT CAST(at AS text) FROM target") == [("00:00:05",)]
    assert rows.ask("SELECT reason FROM onceload.quarantine") == [
        ("4294968000000 microseconds after midnight cannot be read as a value",)
    ]


def test_decimals_with_zeros_left_out_are_loaded_whole(rows: Rows) -> None:
    given = pa.array([Decimal("12300"), Decimal("-100")], pa.decimal128(5, 0)).cast(pa.decimal128(5, -2))

    assert rows.load(pa.table({"amount": given}), first_id=0, columns={"amount": "numeric(12,2)"}) == (2, 0, 0)
    assert rows.ask("SELECT CAST(amount AS text) FROM target ORDER BY 1") == [("-100.00",), ("12300.00",)]
