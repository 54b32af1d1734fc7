"""Fixed width: both tiers cut the same values out of a line, by characters."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.fixed import rows as fixed
from onceload_jobs.formats.fixed.rows import read_fixed
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import SEQUENCE, parse_column
from onceload_jobs.pipeline.declared import FixedOptions, Place, ShortLines, UnknownFields

PLACES = (
    Place(column="id", first=0, end=4),
    Place(column="amount", first=6, end=12),
    Place(column="note", first=12, end=16),
)
COLUMNS = tuple(
    parse_column(name, of_type) for name, of_type in {"note": "text", "amount": "numeric(6,2)", "id": "integer"}.items()
)


def read(*lines: bytes, unknown_fields: UnknownFields = UnknownFields.IGNORE, **options) -> Records:
    raw = b"".join(line + b"\n" for line in lines)
    return read_fixed(
        [Part(producer_id=ProducerId(1), first=0, end=len(raw), raw=raw)],
        COLUMNS,
        options=FixedOptions(places=PLACES, **options),
        unknown_fields=unknown_fields,
        record_bytes_max=2**20,
    )


def values(records: Records) -> list[tuple[object, ...]]:
    return [(row["id"], str(row["amount"]), row["note"]) for row in records.rows.to_pylist()]


def outcome(records: Records) -> dict[int, object]:
    return {row[SEQUENCE]: repr(row) for row in records.rows.to_pylist()} | {
        bad.sequence_id: bad for bad in records.bad
    }


def test_values_are_cut_by_characters_and_lose_their_blanks():
    records = read("0001ä 001.50abcd".encode(), "  -2xx    3 äé".encode() + b"  \r", b"                ")

    assert values(records) == [(1, "1.50", "abcd"), (-2, "3.00", "äé"), (None, "None", None)]
    assert records.rows.column(SEQUENCE).to_pylist() == [0, 18, 38]


def test_a_line_that_ends_before_its_last_column_is_bad_or_padded():
    short, whole = b"1       12.5", b"1       12.5   x"

    refused, padded = read(short, whole), read(short, whole, short_lines=ShortLines.PAD)

    assert [bad.reason for bad in refused.bad] == [
        "the line has 12 characters, but its last column ends at character 16"
    ]
    assert values(refused) == [(1, "12.50", "x")]
    assert values(padded) == [(1, "12.50", None), (1, "12.50", "x")]


@pytest.mark.parametrize(("line", "where"), [(b"1   x  12.5   y ", "5 to 6"), (b"1     12.5  y   z", "17 to 17")])
def test_characters_of_no_column_are_ignored_or_make_their_line_bad(line, where):
    failing = read(line, b"1     12.5  y     ", unknown_fields=UnknownFields.FAIL)

    assert (len(read(line).bad), len(failing.bad), failing.rows.num_rows) == (0, 1, 1)
    assert failing.bad[0].reason == f"characters {where} belong to no column and are not blank"


def test_another_text_can_mean_null():
    assert values(read(b"0000  0000  0000", null="0000")) == [(None, "None", None)]


def test_bytes_of_another_encoding_make_their_line_bad():
    records = read(b"1     1.00  \xe4   ", b"2     1.00  a   ")

    assert ([bad.sequence_id for bad in records.bad], values(records)) == ([0], [(2, "1.00", "a")])


_LINES = st.lists(st.text(alphabet="019.-+ eNa\tä\0€𝄞\r", max_size=20).map(str.encode), min_size=1, max_size=8)


@given(
    lines=_LINES, short=st.sampled_from(ShortLines), unknown=st.sampled_from((UnknownFields.IGNORE, UnknownFields.FAIL))
)
def test_both_tiers_read_a_line_alike(lines, short, unknown):
    options = {"short_lines": short, "unknown_fields": unknown, "null": "0"}

    with patch.object(fixed._Reader, "read_many", lambda self, group: None):
        slowly = read(*lines, **options)

    assert outcome(read(*lines, **options)) == outcome(slowly)
