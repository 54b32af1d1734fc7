"""Values against Postgres' own casts: the examples of docs/values.md, and texts that are made up."""

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from random import Random
from unittest.mock import patch
from uuid import UUID

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv import rows as csv
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.json.rows import read_json
from onceload_jobs.formats.jsonl import rows as jsonl
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.parquet import rows as parquet
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Records, ValueRefused
from onceload_jobs.formats.values import from_text
from onceload_jobs.pipeline.columns import INTEGERS, SEQUENCE, Kind, arrow_type, parse_column, parse_type
from onceload_jobs.pipeline.declared import CsvOptions, UnknownFields
from tests.unit.sources.row_groups import URL, row_groups_of

pytestmark = pytest.mark.every_postgres

PAGE = Path(__file__).resolve().parents[2] / "docs" / "values.md"
#: Enough for the fast tier to be cut into groups.
MANY = 100


@pytest.fixture(scope="module")
def server(server_dsn: str) -> Iterator["Server"]:
    with closing(psycopg2.connect(server_dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SET timezone = 'UTC'")
            yield Server(cursor)


class Server:
    """Casts texts."""

    def __init__(self, cursor) -> None:
        self._cursor = cursor

    def cast(self, text: str, declared: str) -> str | None:
        """The text of what the server makes of this one; none where it refuses it."""
        return self.cast_all([text], declared)[0]

    def cast_all(self, texts: Sequence[str], declared: str, *, by_way_of: str | None = None) -> list[str | None]:
        way = by_way_of or declared
        self._cursor.execute(
            f"SELECT CASE WHEN pg_input_is_valid(text, %s) THEN CAST(CAST(CAST(text AS {way}) AS {declared}) AS text)"
            " END FROM unnest(CAST(%s AS text[])) WITH ORDINALITY AS each (text, at) ORDER BY at",
            (way, texts),
        )
        return [row[0] for row in self._cursor.fetchall()]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row of a table of the page."""

    declared: str
    form: str
    written: str
    becomes: str | None
    why: str
    server_reads: str


_ROW = re.compile(
    r"\| `([^`]+)` \| (JSON|text|CSV|Parquet) \| `(.+)` \| (`.*`|refused(?:: .*)?) \| (`.*`|[a-z ]+|-) \|"
)


def example_of(line: str) -> Example:
    row = _ROW.fullmatch(line)
    assert row is not None, line
    declared, form, written, becomes, server_reads = row.groups()
    is_refused = becomes.startswith("refused")
    return Example(
        declared=declared,
        form=form,
        written=written,
        becomes=None if is_refused else becomes[1:-1],
        why=becomes.removeprefix("refused").removeprefix(": ") if is_refused else "",
        server_reads=server_reads,
    )


EXAMPLES = [example_of(line) for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]


def said(value: object, declared: str) -> str:
    """The value as Postgres reads it without any doubt."""
    match value:
        case bytes() if declared == "uuid":
            return str(UUID(bytes=value))
        case bytes():
            return f"\\x{value.hex()}"
        case list():
            of_element = declared.removesuffix("[]")
            return f"{{{','.join('NULL' if each is None else quoted(said(each, of_element)) for each in value)}}}"
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)


def quoted(element: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", element)
    return f'"{escaped}"'


# The ways to read one value, any number of times.


def part(lines: Sequence[str]) -> Part:
    raw = "".join(f"{line}\n" for line in lines).encode()
    return Part(producer_id=ProducerId(1), first=0, end=len(raw), raw=raw)


def of_json(values: Sequence[str], declared: str) -> Records:
    return read_jsonl(
        [part([f'{{"a":{value}}}' for value in values])],
        (parse_column("a", declared),),
        declared=["a"],
        unknown_fields=UnknownFields.IGNORE,
        record_bytes_max=2**20,
    )


def of_array(values: Sequence[str], declared: str) -> Records:
    raw = ",\n".join(f'{{"a":\n{value}}}' for value in values).encode()
    return read_json(
        [(URL, Part(producer_id=ProducerId(1), first=0, end=len(raw), raw=raw))],
        (parse_column("a", declared),),
        declared=["a"],
        unknown_fields=UnknownFields.IGNORE,
        record_bytes_max=2**20,
    )


def of_strings(texts: Sequence[str], declared: str) -> Records:
    return of_json([json.dumps(text) for text in texts], declared)


def of_csv(texts: Sequence[str], declared: str) -> Records:
    quoted = [text.replace('"', '""') for text in texts]
    return read_csv(
        [part([f'"{text}"' for text in quoted])],
        (parse_column("a", declared),),
        header=("a",),
        options=CsvOptions(header=False),
        unknown_fields=UnknownFields.IGNORE,
        record_bytes_max=2**20,
    )


def of_parquet(stored: pa.Array, declared: str) -> Records:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": stored}), sink)
    (group,) = row_groups_of(sink.getvalue())
    return read_parquet(
        group,
        url=URL,
        columns=(parse_column("a", declared),),
        unknown_fields=UnknownFields.IGNORE,
    )


def of_stored(written: Sequence[str], declared: str) -> Records:
    """Values of one stored type, such as `timestamp[ns]: 2024-01-01`."""
    (name,) = {each.partition(": ")[0] for each in written}
    texts = pa.array([each.partition(": ")[2] for each in written])
    if decimal := re.fullmatch(r"decimal128\((\d+),(\d+)\)", name):
        return of_parquet(texts.cast(pa.decimal128(int(decimal[1]), int(decimal[2]))), declared)
    if name == "time64[ns]":
        moments = pa.array([f"1970-01-01 {text}" for text in texts.to_pylist()]).cast(pa.timestamp("ns"))
        return of_parquet(moments.cast(pa.int64()).cast(pa.time64("ns")), declared)
    return of_parquet(texts.cast(pa.type_for_alias(name)), declared)


def of_string_array(texts: Sequence[str], declared: str) -> Records:
    return of_parquet(pa.array(texts), declared)


OF_CSV = (of_csv, of_string_array)
WAYS = {"JSON": (of_json, of_array), "text": (of_strings, *OF_CSV), "CSV": OF_CSV, "Parquet": (of_stored,)}


@contextmanager
def slow_tier_alone() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (jsonl, csv, parquet):
            stack.enter_context(patch.object(module._Reader, "read_many", lambda self, group: None))
        stack.enter_context(patch.object(jsonl._Reader, "read_sliced", lambda self, group: None))
        yield


def outcomes(records: Records) -> list[tuple[object, str]]:
    """Each record's value, or why it has none."""
    rows = {row[SEQUENCE]: (row["a"], "") for row in records.rows.to_pylist()}
    found = rows | {bad.sequence_id: (None, bad.reason) for bad in records.bad}
    return [found[at] for at in sorted(found)]


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize("example", [pytest.param(each, id=f"{each.declared} {each.written}") for each in EXAMPLES])
def test_each_example_of_the_page_is_read_as_it_says(server, example, count):
    for read in WAYS[example.form]:
        with slow_tier_alone():
            slow = outcomes(read([example.written], example.declared))
        fast = outcomes(read([example.written] * count, example.declared))

        assert repr(fast) == repr(slow * count)
        (value, reason), *_ = slow
        if example.becomes is None:
            assert reason
            assert example.why in reason
        else:
            assert (reason, server.cast(said(value, example.declared), example.declared)) == ("", example.becomes)


@pytest.mark.parametrize("example", [pytest.param(each, id=f"{each.declared} {each.written}") for each in EXAMPLES])
def test_postgres_makes_of_each_example_what_the_page_says(server, example):
    server_reads = {"the same": example.becomes, "refused": None, "-": None}.get(
        example.server_reads, example.server_reads[1:-1]
    )

    assert (example.server_reads == "-") == (example.form == "Parquet")
    assert example.form == "Parquet" or server.cast(example.written, example.declared) == server_reads


@pytest.mark.parametrize(("declared", "form"), sorted({(each.declared, each.form) for each in EXAMPLES}))
def test_no_example_changes_its_neighbours(declared, form):
    written = [each.written for each in EXAMPLES if (each.declared, each.form) == (declared, form)]
    if form == "Parquet":
        # A column is stored in one type.
        written = [each for each in written if each.partition(":")[0] == written[0].partition(":")[0]]
    for read in WAYS[form]:
        alone = [outcome for each in written for outcome in outcomes(read([each], declared))]

        assert repr(outcomes(read(written * MANY, declared))) == repr(alone * MANY)


def test_the_page_has_examples_for_each_type():
    shown = {parse_type("a", each.declared).kind for each in EXAMPLES if each.becomes}
    refused = {parse_type("a", each.declared).kind for each in EXAMPLES if not each.becomes}

    assert shown == refused == set(Kind)


# Texts that are made up of pieces, most of them nearly right.

BLANKS = ("", "", "", "", "", "", " ", "\t", "\v", "\f ")
DIGITS = ["", "0", "1", "5", "12", "105", "9" * 19, "9" * 25, "0" * 30, "0" * 330, "4.9", "7.1", "1_0", "0x1F"]
DIGITS += ["32767", "32768", "9223372036854775807", "9223372036854775808", "nan", "Inf", "-infinity", "1.00000000"]
FRACTIONS = ("", "", "", ".", ".0", ".5", ".10", ".105", f".{'0' * 50}1", f".{'0' * 330}1")
EXPONENTS = ["", "", "", "e", "e0", "e1", "E3", "e-1", "e-2", "e-45", "e-46", "e-50", "e-323", "e-324", "e-400"]
EXPONENTS += ["e38", "e39", "e308", "e309", "e-9999", "e99999"]
NUMBERS = (BLANKS, ("", "", "", "-", "+", "--"), DIGITS, FRACTIONS, EXPONENTS, BLANKS)
DATES = ["2024-02-29", "2023-02-29", "0001-01-01", "9999-12-31", "0000-01-01", "2024-1-1", "20240101", "infinity"]
DATES += ["1969-12-31", "2024-01-01", "2024-12-32"]
TWO = ("", ":00", ":00", ":09", ":30", ":59", ":60", ":5", "00")
HOURS = ("00", "00", "09", "10", "23", "24", "1", "")
SECONDS = (
    "",
    "",
    ".",
    ".5",
    ",5",
    ".9999995",
    ".99999949999999999",
    ".0000005",
    ".0000015",
    ".123456789012",
    ".1234567",
)
ZONES = ["", "", "", "Z", "z", " Z", "+", " UTC", "+5", "+00", "-15", "+16", "-16:00", "+23", "-24", "+1559", "+15:59"]
ZONES += [" -15:59", "+1600", "-15:60", "+05:30", " -0530", "  +02", "+15:59:59", "-23:59"]
CLOCK = (HOURS, TWO, TWO, SECONDS, ZONES)
HEX = ("", "de", "AD", "0", "00ff", "f ", " ", "\v", "g")
GROUPS = ("a0ee", "BC99", "-9c0b", "-4ef8", "bb6d", "-6bb9", "bd38")
LITERAL = ("", "1", "a", " ", ",", ",", '"', "\\", "NULL", "{", "}", "\v", '"1"')
PIECES: dict[str, tuple[Sequence[str], ...]] = {
    "boolean": (BLANKS, ("t", "TRUE", "yes", "on", "1", "0", "off", "n", "no", "2", "o", "nein"), BLANKS),
    "smallint": NUMBERS,
    "bigint": NUMBERS,
    "real": NUMBERS,
    "double precision": NUMBERS,
    "numeric(12,2)": NUMBERS,
    "numeric(38,20)": NUMBERS,
    "date": (BLANKS, DATES, ("", "", "", "T", " "), ("", "", "", "10:00"), BLANKS),
    "time": (BLANKS, *CLOCK, BLANKS),
    "timestamp": (BLANKS, DATES, ("T", "T", " ", "t", "", "  "), *CLOCK, BLANKS),
    "timestamptz": (BLANKS, DATES, ("T", "T", " ", "t", "", "  "), *CLOCK, BLANKS),
    "uuid": (("", "", " "), ("", "", "{"), ("a0ee",), *[GROUPS] * 6, ("0a11", "-0a11", "0a1"), ("", "", "}")),
    "bytea": (("\\x", "\\x", "\\X"), *[HEX] * 4),
    "text[]": (("{", "{", ""), *[LITERAL] * 5, ("}", "}", "")),
    "smallint[]": (("{", "{", ""), *[LITERAL] * 5, ("}", "}", "")),
}


def texts_of(pieces: tuple[Sequence[str], ...], count: int) -> list[str]:
    random = Random(1)
    return ["".join(map(random.choice, pieces)) for _ in range(count)]


def taken(text: str, declared: str) -> str | None:
    """What the slow tier makes of a text, as Postgres reads it; none where it refuses it."""
    column_type = parse_type("a", declared)
    with suppress(ValueRefused):
        return said(pa.array([from_text(text, column_type)], arrow_type(column_type))[0].as_py(), declared)
    return None


@pytest.mark.parametrize("declared", PIECES)
def test_each_accepted_value_is_what_postgres_reads(server, declared):
    texts = texts_of(PIECES[declared], 5000)
    ours = {text: value for text in texts if (value := taken(text, declared)) is not None}
    # Postgres takes an integer with a point or an exponent by way of a numeric.
    by_way_of = "numeric" if declared in {"smallint", "bigint"} else None

    theirs = server.cast_all(list(ours), declared, by_way_of=by_way_of)

    said_of_ours = server.cast_all(list(ours.values()), declared)
    assert [each for each in zip(ours, theirs, said_of_ours, strict=True) if each[1] != each[2]] == []
    assert len(ours) > 20


@pytest.mark.parametrize("declared", PIECES)
def test_all_readers_take_the_same_texts(declared):
    texts = [text for text in texts_of(PIECES[declared], 500) if text]
    expected = [taken(text, declared) for text in texts]
    for read in WAYS["CSV" if declared.endswith("[]") else "text"]:
        # Those that are taken go together, so that the fast tier has its turn.
        order = sorted(range(len(texts)), key=lambda at: expected[at] is None)
        found = outcomes(read([texts[at] for at in order], declared))

        assert [None if reason else said(value, declared) for value, reason in found] == [expected[at] for at in order]


# All that either side accepts, and the rules of the page for what the other one does not.

JSON = ['{"a":1}', "[1,2]", '"x"', "{", "}", "[", "]", ",", ":", "null", "true", " ", "1e5", "-0", "01", "1.", ".5"]
JSON += ['"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"a', "NaN", '{"a":1,"a":2}', "\f", "1e400", "1e131072", "+1"]
JSON += ["0e131073", "-0.0e131073", "0.001e131074", "0.001e131075", "0e-16383", "0e-16384", "0e1073741824", "1e131071"]
EVERY: dict[str, tuple[Sequence[str], ...]] = PIECES | {
    "boolean": (BLANKS, ("t", "tr", "TRUE", "ye", "on", "of", "1", "0", "fals", "n", "2", "nein"), BLANKS),
    "integer": NUMBERS,
    "numeric(12,2)": (*NUMBERS[:-2], (*EXPONENTS, "e1073741822", "e1073741824", "e999999999999"), BLANKS),
    "text": (("", "a", "ä", " ", "\t"),) * 4,
    "varchar(3)": (("", "a", "ä", " ", "\t"),) * 5,
    "jsonb": (JSON, ("", "", "", " ", ",", "]"), ("", "", "", *JSON)),
    "bytea": (("\\x", "", "ab", "\\001", "\\\\", "3q0="), *[HEX] * 3),
    "bigint[]": (("{", "{", "", "[", "[1:1]={", "{{"), *[LITERAL] * 4, ("}", "}", "", "]", "}}")),
}
_CLOCK = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?: ?(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?))?"
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
#: The forms of days and times that the page describes.
_MOMENT = rf"{_DAY}(?:[Tt ]{_CLOCK})?"
FORMS_OF_TIMES = {Kind.DATE: _DAY, Kind.TIME: _CLOCK, Kind.TIMESTAMP: _MOMENT, Kind.TIMESTAMPTZ: _MOMENT}
_BLANK = " \t\n\r\v\f"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A text, and what each side makes of it, as Postgres shows it; none where it is refused."""

    declared: str
    text: str
    ours: str | None
    theirs: str | None

    @property
    def kind(self) -> Kind:
        return parse_type("a", self.declared).kind

    @property
    def is_array(self) -> bool:
        return self.declared.endswith("[]")

    @property
    def is_number(self) -> bool:
        return self.kind in {*INTEGERS, Kind.REAL, Kind.DOUBLE, Kind.NUMERIC} and not self.is_array

    @property
    def is_moment(self) -> bool:
        return self.kind in FORMS_OF_TIMES


def is_rounded(each: Judged) -> bool:
    try:
        return Decimal(each.text.strip(_BLANK)) != Decimal(each.theirs or "0")
    except ArithmeticError:
        return False


#: What only we accept, or read in another way; the sentences are those of the page.
ACCEPTED: dict[str, Callable[[Judged], bool]] = {
    "An integer may have a decimal point or an exponent, if it has no fraction: `1.0`, `1e3`.": (
        lambda each: each.kind in INTEGERS and re.search("[.eE]", each.text) is not None
    ),
    "`bytea` may be base64.": lambda each: each.kind is Kind.BYTEA and not each.text.startswith("\\x"),
    "An array may be a JSON array.": lambda each: each.is_array and each.text.strip(_BLANK).startswith("["),
    "A `timestamptz` without a zone is in UTC. In Postgres it is in the time zone of the session.": lambda _: False,
}
#: What only Postgres accepts.
REFUSED: dict[str, Callable[[Judged], bool]] = {
    "Numbers that would be rounded to the digits of a `numeric`, and `NaN` for a `numeric`.": (
        lambda each: each.kind is Kind.NUMERIC and ("nan" in each.text.lower() or is_rounded(each))
    ),
    "`infinity` in dates and times, and years outside of 1 to 9999.": (
        lambda each: each.is_moment and re.search("inf|^[0-9]{5,}-|BC$", each.theirs or "") is not None
    ),
    "Dates and times in other forms than those below.": (
        lambda each: each.is_moment and not re.fullmatch(FORMS_OF_TIMES[each.kind], each.text.strip(_BLANK))
    ),
    (
        "Numbers in hexadecimal, octal or binary digits or with underscores, and prefixes of booleans such as `tr`."
    ): lambda each: (
        (each.is_number and re.search("_|0[xXoObB]", each.text) is not None)
        or (each.kind is Kind.BOOLEAN and len(each.text.strip(_BLANK)) > 1)
    ),
    "The time `24:00:00`, and second 60.": (
        lambda each: each.is_moment and (each.theirs == "24:00:00" or re.search("24:00|:60", each.text) is not None)
    ),
    "Arrays of more than one dimension.": lambda each: (
        each.is_array and ("{{" in (each.theirs or "") or re.search(r"\{.*\{|=", each.text, re.DOTALL) is not None)
    ),
    "`bytea` in escape form, or with blanks between hexadecimal digits.": (
        lambda each: each.kind is Kind.BYTEA and (not each.text.startswith("\\x") or " " in each.text)
    ),
    "A `varchar` that is too long, even if only by blanks at its end.": (
        lambda each: each.kind is Kind.VARCHAR and each.text.endswith(" ")
    ),
    "A `jsonb` in which an object has a name twice, at any depth. Postgres would keep the last value.": (
        lambda each: each.kind is Kind.JSONB and each.text.count('"a"') > 1
    ),
}


def judged(server: Server, declared: str) -> list[Judged]:
    texts = list(dict.fromkeys(texts_of(EVERY[declared], 5000)))
    theirs, said_by_us = server.cast_all(texts, declared), [taken(text, declared) for text in texts]
    shown = iter(server.cast_all([each for each in said_by_us if each is not None], declared))
    return [
        Judged(declared=declared, text=text, ours=None if ours is None else next(shown), theirs=other)
        for text, ours, other in zip(texts, said_by_us, theirs, strict=True)
    ]


@pytest.mark.parametrize("declared", EVERY)
def test_what_one_side_alone_accepts_is_named_on_the_page(server, declared):
    differing = [each for each in judged(server, declared) if each.ours != each.theirs]

    unnamed = [
        each
        for each in differing
        if not any(is_named(each) for is_named in (REFUSED if each.ours is None else ACCEPTED).values())
    ]

    assert unnamed == []


def test_each_form_and_each_refusal_of_the_page_is_compared_with_the_server():
    section = PAGE.read_text(encoding="utf-8").partition("## How this differs from Postgres")[2].partition("\n## ")[0]

    assert [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")] == [*ACCEPTED, *REFUSED]
    assert {parse_type("a", each).kind for each in EVERY} == set(Kind)
