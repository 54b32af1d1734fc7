"""Values that Python or Arrow would show as other ones: what is loaded or kept is what the file stores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from onceload_jobs.pipeline.columns import Column, parse_column, parse_type
from onceload_jobs.pipeline.declared import Format, UnknownFields
from tests.loads.conftest import Loads
from tests.loads.test_retry import retry_all
from tests.loads.verified import named, verified
from tests.servers import execute
from tests.typed_files import avro_of, content_of

pytestmark = pytest.mark.usually_staged

#: Microseconds after midnight; only the first and the last of them are in the day.
STORED = (0, -1, 86_400_000_000, 86_400_000_005, 86_399_999_999)
OUTSIDE = STORED[1:4]
PLACES = {"t": "time", "l": "jsonb", "a": "time[]", "s": "jsonb", "m": "jsonb"}


def declare(loads: Loads, of_format: Format, pattern: str, **columns: str) -> None:
    source = replace(loads.declared.source, path=str(loads.folder / pattern), format=of_format)
    loads.declared = replace(
        loads.declared, source=source, columns=tuple(parse_column(*each) for each in columns.items())
    )


def counts(loads: Loads) -> tuple[int, int]:
    report = loads.load()
    return report.loaded, report.quarantined


def kept(loads: Loads) -> list[tuple[str | None, str, str]]:
    """The column, the reason and the text of each quarantined record."""
    return loads.ask(
        "SELECT column_name, reason, convert_from(raw, 'UTF8') FROM onceload.quarantine ORDER BY sequence_id"
    )


def times(values: list[int]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.time64("us"))


def in_each_place(at: str, value: int) -> dict[str, int]:
    return {place: value if place == at else 5 for place in PLACES}


def as_arrow(rows: Sequence[Mapping[str, int]]) -> pa.Table:
    columns = {place: times([row[place] for row in rows]) for place in PLACES}
    offsets = pa.array(range(len(rows) + 1), pa.int32())
    keys = pa.array(["k"] * len(rows))
    return pa.table(
        {
            "id": pa.array(range(len(rows)), pa.int64()),
            "t": columns["t"],
            "l": pa.ListArray.from_arrays(offsets, columns["l"]),
            "a": pa.ListArray.from_arrays(offsets, columns["a"]),
            "s": pa.StructArray.from_arrays([columns["s"]], ["x"]),
            "m": pa.MapArray.from_arrays(offsets, keys, columns["m"]),
        }
    )


def as_avro(rows: Sequence[Mapping[str, int]]) -> bytes:
    clock = {"type": "long", "logicalType": "time-micros"}
    inner = {"type": "record", "name": "inner", "fields": [{"name": "x", "type": clock}]}
    types = {
        "id": "long",
        "t": clock,
        "l": {"type": "array", "items": clock},
        "a": {"type": "array", "items": clock},
        "s": ["null", inner],
        "m": {"type": "map", "values": clock},
    }
    schema = {"type": "record", "name": "row", "fields": [{"name": each, "type": types[each]} for each in types]}
    return avro_of(
        schema,
        [
            {
                "id": number,
                "t": row["t"],
                "l": [row["l"]],
                "a": [row["a"]],
                "s": {"x": row["s"]},
                "m": {"k": row["m"]},
            }
            for number, row in enumerate(rows)
        ],
    )


@pytest.mark.parametrize("of_format", [Format.PARQUET, Format.AVRO])
def test_a_time_outside_of_a_day_is_kept_as_it_is_stored_and_never_loaded_as_another(loads, of_format):
    declare(loads, of_format, "*.data", id="bigint", **PLACES)
    rows = [in_each_place(place, stored) for place in PLACES for stored in STORED]
    content = as_avro(rows) if of_format is Format.AVRO else content_of(as_arrow(rows), of_format)
    loads.write("a.data", content)

    assert counts(loads) == (2 * len(PLACES), 3 * len(PLACES))

    outside = [(place, stored) for place in PLACES for stored in OUTSIDE]
    for (column, reason, raw), (place, stored) in zip(kept(loads), outside, strict=True):
        assert (column, reason) == (place, f"{stored} microseconds after midnight cannot be read as a value")
        assert f'"stored":"{stored} microseconds after midnight"' in raw
    assert [number for number in range(len(rows)) if number % len(STORED) in (0, 4)] == loads.rows()
    assert {each for (each,) in loads.ask("SELECT DISTINCT t::text FROM target")} == {
        "00:00:00", "00:00:00.000005", "23:59:59.999999",
    }  # fmt: skip
    retried = retry_all(loads)
    assert (retried.retried, len(retried.still_bad)) == (0, len(outside))
    assert named(verified(loads, deep=True)) == []


@pytest.mark.parametrize(
    ("stored", "unit"),
    [
        (pa.array([-1, 0, 86_400_000], pa.int32()).cast(pa.time32("ms")), "milliseconds"),
        (pa.array([-1, 0, 86_399_999_999_500], pa.int64()).cast(pa.time64("ns")), "nanoseconds"),
    ],
    ids=["ms", "ns"],
)
def test_a_time_that_is_rounded_to_the_end_of_the_day_is_kept_in_its_own_unit(loads, stored, unit):
    declare(loads, Format.PARQUET, "*.data", id="bigint", t="time", j="jsonb")
    midnight = stored.take(pa.array([1] * len(stored)))
    inside = pa.StructArray.from_arrays([pa.concat_arrays([midnight, stored])], ["x"])
    columns = {"id": range(2 * len(stored)), "t": pa.concat_arrays([stored, midnight]), "j": inside}
    loads.write("a.data", content_of(pa.table(columns), Format.PARQUET))

    assert counts(loads) == (2, 4)

    numbers = stored.cast(pa.int64() if unit == "nanoseconds" else pa.int32()).to_pylist()
    assert [(column, reason) for column, reason, _ in kept(loads)] == [
        (column, f"{numbers[at]} {unit} after midnight cannot be read as a value") for column in "tj" for at in (0, 2)
    ]


def test_an_undeclared_time_outside_of_a_day_is_not_loaded_once_its_column_is_declared(loads):
    declare(loads, Format.PARQUET, "*.data", id="bigint")
    loads.declared = replace(loads.declared, unknown_fields=UnknownFields.FAIL)
    loads.write("a.data", content_of(pa.table({"id": [1], "t": times([-1])}), Format.PARQUET))
    assert counts(loads) == (0, 1)
    execute(loads.admin_dsn, "ALTER TABLE target ADD COLUMN t text")
    declare(loads, Format.PARQUET, "*.data", id="bigint", t="text")

    (refusal,) = retry_all(loads).still_bad.values()

    assert (refusal.column, refusal.reason) == ("t", "-1 microseconds after midnight cannot be read as a value")


UNION: list[Any] = ["null", "string", "long", {"type": "array", "items": ["null", "int", "string"]}]
VALUES = (None, "a", 5, [1, "b", None])


def record_of(name: str, of_type: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "x", "type": of_type}]}


def test_unions_inside_records_are_loaded_with_the_values_that_they_have(loads):
    declare(loads, Format.AVRO, "*.avro", id="bigint", r="jsonb", n="jsonb", a="jsonb", m="jsonb", d="jsonb")
    types = {
        "id": "long",
        "r": record_of("r1", UNION),
        "n": ["null", record_of("r2", ["string", "long"])],
        "a": {"type": "array", "items": record_of("r3", UNION)},
        "m": {"type": "map", "values": record_of("r4", UNION)},
        "d": ["null", record_of("r5", ["null", record_of("r6", UNION)])],
    }
    schema = {"type": "record", "name": "row", "fields": [{"name": each, "type": types[each]} for each in types]}
    records = [
        {
            "id": number,
            "r": {"x": value},
            "n": {"x": value} if isinstance(value, str | int) else None,
            "a": [{"x": each} for each in VALUES[:number]],
            "m": {"k": {"x": value}},
            "d": [None, {"x": None}, {"x": {"x": value}}, {"x": {"x": value}}][number],
        }
        for number, value in enumerate(VALUES)
    ]
    path = loads.write("a.avro", avro_of(schema, records, rows=2))

    assert counts(loads) == (len(VALUES), 0)

    with path.open("rb") as stream:
        expected = [
            # A map is an array of its pairs.
            tuple([*each.items()] if name == "m" else each for name, each in row.items())
            for row in fastavro.reader(stream)
            if isinstance(row, dict)
        ]
    found = loads.ask("SELECT id, r, n, a, m, d FROM target ORDER BY id")
    assert [json.dumps(row) for row in found] == [json.dumps(row) for row in expected]
    assert named(verified(loads, deep=True)) == []


TWICE = '{"a":{"b":1,"b":2}}'


@pytest.mark.parametrize("of_format", [Format.JSONL, Format.JSON, Format.CSV, Format.PARQUET])
def test_a_name_that_an_object_has_twice_is_bad_at_any_depth_in_every_format(loads, of_format):
    declare(loads, of_format, "*.data", id="bigint", j="jsonb")
    texts = [TWICE if number % 2 else str(number) for number in range(4)]
    lines = [f'{{"id":{number},"j":{text}}}' for number, text in enumerate(texts)]
    quoted = [text.replace('"', '""') for text in texts]
    contents: Mapping[Format, str | bytes] = {
        Format.JSONL: "".join(f"{line}\n" for line in lines),
        Format.JSON: f"[{','.join(lines)}]",
        Format.CSV: "id,j\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(quoted)),
        Format.PARQUET: content_of(pa.table({"id": range(4), "j": texts}), Format.PARQUET),
    }
    loads.write("a.data", contents[of_format])

    assert counts(loads) == (2, 2)

    assert loads.ask("SELECT id, j::text FROM target ORDER BY id") == [(0, "0"), (2, "2")]
    assert {(column, reason) for column, reason, _ in kept(loads)} == {("j", "an object has the name 'b' twice")}
    retried = retry_all(loads)
    assert (retried.retried, len(retried.still_bad)) == (0, 2)


def periods(**columns: list[int]) -> bytes:
    """As pandas writes them: months since 1970, with a note of what they are."""
    note = {"ARROW:extension:name": "pandas.period", "ARROW:extension:metadata": '{"freq": "M"}'}
    fields = [pa.field(name, pa.int64(), metadata=note if name == "p" else None) for name in columns]
    return content_of(pa.table(columns, schema=pa.schema(fields)), Format.PARQUET)


def test_a_file_with_an_extension_type_that_is_not_known_is_refused_and_the_others_load(loads):
    declare(loads, Format.PARQUET, "*.parquet", id="bigint", p="text")
    loads.write("a.parquet", periods(id=[1], p=[648]))
    loads.write("b.parquet", content_of(pa.table({"id": [2], "p": ["2024-01"]}), Format.PARQUET))

    report = loads.load()

    assert (report.loaded, report.quarantined, loads.rows("id, p")) == (1, 0, [(2, "2024-01")])
    (note,) = report.notes
    assert (note.name, note.needs_a_person) == ("a.parquet", True)
    assert "the column 'p' has the extension type 'pandas.period'" in note.reason


def test_a_column_of_an_extension_type_that_is_not_declared_is_ignored(loads):
    declare(loads, Format.PARQUET, "*.parquet", id="bigint")
    loads.write("a.parquet", periods(id=[1], p=[648]))

    assert (counts(loads), loads.rows()) == ((1, 0), [1])


def test_a_record_of_a_json_array_that_the_server_refused_is_retried_as_the_file_has_it(loads):
    declare(loads, Format.JSON, "*.json", id="bigint", j="jsonb")
    deep = Column(name="v", type=parse_type("v", "text"), path=("x", "v"))
    loads.declared = replace(loads.declared, columns=(*loads.declared.columns, deep))
    execute(
        loads.admin_dsn,
        "CREATE TABLE target (id bigint CHECK (id > 1), j jsonb, v text, _producer_id bigint, _sequence bigint)",
    )
    execute(loads.admin_dsn, "GRANT ALL ON target TO onceload_loader")
    records = [{"id": number, "j": {"a": [number]}, "x": {"v": f"deep {number}"}} for number in (1, 2)]
    loads.write("a.json", json.dumps(records, indent=1))
    assert counts(loads) == (1, 1)
    execute(loads.admin_dsn, "ALTER TABLE target DROP CONSTRAINT target_id_check")

    assert retry_all(loads).retried == 1

    assert loads.ask("SELECT id, j::text, v FROM target ORDER BY id") == [
        (number, f'{{"a": [{number}]}}', f"deep {number}") for number in (1, 2)
    ]
