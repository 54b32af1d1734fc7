"""An edit between quarantine and retry: a stored record keeps its values under the names of then, or stays."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onceload
from onceload.settings import Settings
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, FixedOptions, Format, Place, Publish, UnknownFields
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads
from tests.loads.held_records import held, is_sound
from tests.loads.test_retry import retry_all
from tests.servers import execute

pytestmark = pytest.mark.parametrize("publish", [Publish.DIRECT])

NARROW = {"id": "bigint", "debit": "text", "credit": "smallint"}
WIDE = NARROW | {"credit": "bigint"}


def columns_of(types):
    return tuple(parse_column(*each) for each in types.items())


def fixed(**places):
    of_columns = (Place(column=name, first=first, end=end) for name, (first, end) in places.items())
    return {"format": Format.FIXED, "fixed": FixedOptions(places=tuple(of_columns))}


def csv(**options):
    return {"format": Format.CSV, "csv": CsvOptions(**options)}


def with_null(source, null):
    return source | {"fixed": replace(source["fixed"], null=null)}


PLACES = fixed(id=(0, 4), debit=(4, 10), credit=(10, 16))
FIXED = "   1    aa     2\n   2    bb 40000\n"
PLAIN, NO_HEADER = "id,debit,credit\n1,aa,2\n2,bb,40000\n", "1,aa,2\n2,bb,40000\n"
QUOTED = "id,debit,credit\n1,'aa',2\n2,'bb',40000\n"
SWAPPED = dict(reversed(WIDE.items()))

EDITS = {
    "positions swapped": (FIXED, PLACES, fixed(id=(0, 4), credit=(4, 10), debit=(10, 16)), WIDE),
    "positions shorter": (FIXED, PLACES, fixed(id=(0, 4), debit=(4, 10), credit=(10, 14)), WIDE),
    "null of fixed": (FIXED, PLACES, with_null(PLACES, "bb"), WIDE),
    "columns in another order": (NO_HEADER, csv(header=False), csv(header=False), SWAPPED),
    "a header": (NO_HEADER, csv(header=False), csv(header=True), WIDE),
    "a header, for the record at byte 0": (NO_HEADER[7:], csv(header=False), csv(header=True), WIDE),
    "a header, and another order": (NO_HEADER, csv(header=False), csv(header=True), SWAPPED),
    "no header": (PLAIN, csv(), csv(header=False), SWAPPED),
    "another order below a header": (PLAIN, csv(), csv(), SWAPPED),
    "another delimiter": (PLAIN, csv(), csv(delimiter=";"), WIDE),
    "another delimiter without a header": (NO_HEADER, csv(header=False), csv(header=False, delimiter=";"), WIDE),
    "the delimiter that is declared now is in a value": (
        PLAIN.replace(",", ";").replace("bb", "b,b"),
        csv(delimiter=";"),
        csv(),
        WIDE,
    ),
    "no quote": (QUOTED, csv(quote="'"), csv(quote=""), WIDE),
    "another quote": (QUOTED, csv(quote="'"), csv(), WIDE),
    "an escape": (PLAIN.replace("bb", "b\\b"), csv(escape="\\"), csv(), WIDE),
    "null of CSV": (PLAIN, csv(), csv(null="bb"), WIDE),
}


def load_narrow(loads: Loads, content, source):
    name = "a.csv" if source["format"] is Format.CSV else "a.txt"
    source = replace(loads.declared.source, path=str(loads.folder / name), **source)
    loads.write(name, content)
    loads.load(source=source, columns=columns_of(NARROW))
    execute(loads.admin_dsn, "ALTER TABLE target ALTER credit TYPE bigint")
    (held_id,) = held(loads)
    return source, held_id


@pytest.mark.parametrize(("content", "then", "now", "types"), EDITS.values(), ids=EDITS)
def test_a_retry_after_an_edit_finds_the_values_of_then_under_their_names(loads, content, then, now, types):
    source, _ = load_narrow(loads, content, then)
    edited = {"source": replace(source, **now), "columns": columns_of(types)}

    report = retry_all(loads, **edited)

    assert (report.retried, report.still_bad, report.laid_out_otherwise) == (1, {}, ())
    assert loads.rows("id, debit, credit")[-1] == (2, "b,b" if "b,b" in content else "bb", 40_000)
    assert verify(replace(loads.declared, **edited), loads.engine, deep=True).differences == ()
    assert is_sound(loads)


@pytest.mark.parametrize(
    ("content", "then", "now"),
    [(FIXED, PLACES, fixed(id=(0, 4), debit=(4, 10), other=(10, 16))), (NO_HEADER, csv(header=False), {})],
    ids=["fixed", "csv"],
)
def test_a_record_without_a_field_for_a_renamed_column_stays_with_its_reason(loads, content, then, now):
    source, held_id = load_narrow(loads, content, then)
    execute(loads.admin_dsn, "ALTER TABLE target RENAME credit TO other")
    types = {"id": "bigint", "debit": "text", "other": "bigint"}

    report = retry_all(loads, source=replace(source, **now), columns=columns_of(types))

    assert "stored without a value for 'other', declared as columns since" in report.still_bad[held_id].reason
    assert report.laid_out_otherwise == (source.path.rpartition("/")[2],)
    assert loads.rows() == [1]


@pytest.mark.parametrize(("content", "then"), [(FIXED, PLACES), (NO_HEADER, csv(header=False))], ids=["fixed", "csv"])
def test_a_field_that_is_no_longer_declared_is_treated_as_any_other_unknown_one(loads, content, then):
    source, _ = load_narrow(loads, content, then)
    fewer = {"id": "bigint", "credit": "bigint"}
    now = {"source": source, "columns": columns_of(fewer)}

    (refusal,) = retry_all(loads, **now, unknown_fields=UnknownFields.FAIL).still_bad.values()
    report = retry_all(loads, **now)

    assert (refusal.column, refusal.reason) == ("debit", "the field 'debit' is not declared")
    assert (held(loads), report.retried) == ([], 1)
    assert loads.rows("id, debit, credit") == [(1, "aa", 2), (2, None, 40_000)]


def test_the_reason_of_a_value_that_is_bad_in_the_layout_of_then_names_what_was_edited(loads):
    source, held_id = load_narrow(loads, PLAIN.replace("40000", "none"), csv())

    report = retry_all(loads, source=replace(source, **csv(null="none")), columns=columns_of(WIDE))

    assert report.still_bad[held_id].reason == (
        "'none' is not a valid bigint (read with the null declared when it was quarantined)"
    )
    assert report.laid_out_otherwise == ("a.csv",)


def test_a_fixed_record_has_the_layout_of_the_one_that_it_is_for(loads):
    source, held_id = load_narrow(loads, NO_HEADER, csv(header=False))
    edited = {"source": replace(source, **csv(header=False, delimiter=";")), "columns": columns_of(SWAPPED)}

    assert retry_all(loads, **edited, fixed={held_id: b"30000;cc;3"}).retried == 0
    assert retry_all(loads, **edited, fixed={held_id: b"3,cc,30000"}).retried == 1
    assert loads.rows("id, debit, credit") == [(1, "aa", 2), (3, "cc", 30_000)]


def test_records_of_two_layouts_are_retried_together(loads):
    source, _ = load_narrow(loads, FIXED, PLACES)
    execute(loads.admin_dsn, "ALTER TABLE target ALTER credit TYPE smallint USING 2")
    loads.write("b.txt", "40001cc         3\n    2dd         4\n")
    later = replace(source, path=str(loads.folder / "*.txt"), **fixed(credit=(0, 5), debit=(5, 7), id=(7, 17)))
    loads.load(source=later, columns=columns_of(NARROW))
    execute(loads.admin_dsn, "ALTER TABLE target ALTER credit TYPE bigint")

    report = retry_all(loads, source=later, columns=columns_of(WIDE))

    assert report.retried == 2
    assert loads.rows("id, debit, credit") == [(1, "aa", 2), (2, "bb", 40_000), (3, "cc", 40_001), (4, "dd", 2)]


def forget_layouts(loads):
    """As the release before has left them."""
    execute(loads.admin_dsn, "UPDATE onceload.declaration SET layout = NULL")


@pytest.mark.parametrize(("content", "then"), [(FIXED, PLACES), (NO_HEADER, csv(header=False)), (PLAIN, csv())])
def test_a_record_of_the_release_before_is_retried_after_an_edit_of_types(loads, content, then):
    source, _ = load_narrow(loads, content, then)
    forget_layouts(loads)

    assert retry_all(loads, source=source, columns=columns_of(SWAPPED)).retried == 1
    assert loads.rows("id, debit, credit")[1:] == [(2, "bb", 40_000)]


def test_a_record_of_the_release_before_stays_after_an_edit_of_its_layout(loads):
    source, held_id = load_narrow(loads, FIXED, PLACES)
    forget_layouts(loads)
    now = fixed(id=(0, 4), credit=(4, 10), debit=(10, 16))

    report = retry_all(loads, source=replace(source, **now), columns=columns_of(WIDE))

    assert "an earlier release of Onceload quarantined it" in report.still_bad[held_id].reason
    assert loads.rows() == [1]


def test_the_next_load_keeps_the_layout_of_a_version_of_the_release_before_and_takes_no_new_one(loads):
    source, _ = load_narrow(loads, FIXED, PLACES)
    execute(loads.admin_dsn, "ALTER TABLE target ALTER credit TYPE smallint USING 2")
    layouts = "SELECT version, layout FROM onceload.declaration ORDER BY version"
    before = loads.ask(layouts)
    forget_layouts(loads)
    session = loads.ask("SELECT version FROM onceload.pipeline")

    loads.load(source=source, columns=columns_of(NARROW))
    execute(loads.admin_dsn, "ALTER TABLE target ALTER credit TYPE bigint")
    now = fixed(id=(0, 4), credit=(4, 10), debit=(10, 16))
    report = retry_all(loads, source=replace(source, **now), columns=columns_of(WIDE))

    assert (loads.ask(layouts)[:1], session) == (before, [(1,)])
    assert report.retried == 1
    assert loads.rows("id, debit, credit")[1:] == [(2, "bb", 40_000)]


def test_a_row_of_typed_values_that_was_stored_as_bytes_is_not_loaded_as_their_text(loads):
    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    pq.write_table(pa.table({"id": [1, 40_000], "note": [b"aa", b"bb"]}), loads.folder / "a.parquet")
    loads.load(source=parquet, columns=columns_of({"id": "smallint", "note": "bytea"}))
    (held_id,) = held(loads)
    execute(
        loads.admin_dsn,
        "ALTER TABLE target ALTER id TYPE bigint, ALTER note TYPE text USING convert_from(note, 'UTF8')",
    )
    edited = {"source": parquet, "columns": columns_of({"id": "bigint", "note": "text"})}

    (refusal,) = retry_all(loads, **edited).still_bad.values()

    assert (refusal.column, loads.rows()) == ("note", [1])
    assert "its column was stored as bytea and is text now" in refusal.reason
    assert retry_all(loads, **edited, fixed={held_id: b'{"id": 40000, "note": "bb"}'}).retried == 1
    assert loads.rows("id, note") == [(1, "aa"), (40_000, "bb")]


def test_an_element_of_a_json_array_that_only_the_server_refused_is_stored_as_it_is_in_its_file(loads):
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE target (id bigint CHECK (id <> 2), y bigint, doc jsonb, _producer_id bigint,"
            " _sequence bigint)"
        )
    inside = replace(parse_column("y", "bigint"), path=("x", "y"))
    columns = (parse_column("id", "bigint"), inside, parse_column("doc", "jsonb"))
    source = replace(loads.declared.source, path=str(loads.folder / "*.json"), format=Format.JSON)
    element = '{"id": 2,\n "x": {"y": 6}, "doc": {"k": 2}}'
    loads.write("a.json", f'[{{"id": 1, "x": {{"y": 5}}, "doc": null}} , {element} ]')
    loads.load(source=source, columns=columns)

    execute(loads.admin_dsn, "ALTER TABLE target DROP CONSTRAINT target_id_check")

    assert loads.ask("SELECT convert_from(raw, 'UTF8') FROM onceload.quarantine") == [(element,)]
    assert retry_all(loads, source=source, columns=columns).retried == 1
    assert loads.ask("SELECT id, y, doc FROM target ORDER BY id") == [(1, 5, None), (2, 6, {"k": 2})]


def test_a_row_of_a_program_without_a_value_for_a_column_is_retried_as_it_was_given(loads):
    description = {
        "pipeline": "given",
        "columns": {"id": "bigint", "note": "varchar(2)"},
        "target": {"table": "public.given"},
        "publish": "direct",
    }
    settings = Settings(dsn=loads.dsn)
    pipeline = onceload.Pipeline(onceload.Pipeline.of(description).declared, settings)
    pipeline.load_rows([{"id": 1}, {"id": "x"}, {"note": "ab"}], producer="p", first_id=0)
    execute(loads.admin_dsn, "ALTER TABLE given ALTER id TYPE text")
    widened = onceload.Pipeline.of(description | {"columns": {"id": "text", "note": "varchar(2)"}}).declared

    report = retry_all(replace(loads, declared=widened))

    assert report.retried == 1
    assert loads.ask("SELECT id, note FROM given ORDER BY _sequence") == [("1", None), ("x", None), (None, "ab")]
