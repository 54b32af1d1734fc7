"""The positions of fixed-width columns, and the options of other formats."""

import pytest

from onceload_jobs.pipeline.declared import FixedOptions, Format, Place, ShortLines
from tests.unit.pipeline_file.files import problems_of, read

FIXED = """\
pipeline: events
source:
  path: in/*.txt
  format: fixed
  options:
    positions: {id: 1-8, kind: 9, amount: 10 - 20}
    null: "-"
    short_lines: pad
columns:
  id: bigint not null
  kind: text
  amount: numeric(12,2)
target:
  table: public.events
"""


def test_positions_are_of_characters_counted_from_one(tmp_path):
    source = read(tmp_path, FIXED).source

    places = (("id", 0, 8), ("kind", 8, 9), ("amount", 9, 20))
    assert source.format is Format.FIXED
    assert source.fixed == FixedOptions(
        places=tuple(Place(column=column, first=first, end=end) for column, first, end in places),
        null="-",
        short_lines=ShortLines.PAD,
    )


@pytest.mark.parametrize(
    ("correct", "wrong", "problem"),
    [
        ("kind: 9", "kind: 8-9", "id (1-8) and kind (8-9) overlap"),
        ("kind: 9", "kind: 0", "the first and last character, counted from 1"),
        ("kind: 9", "kind: 9-8", "the first and last character, counted from 1"),
        ("kind: 9", "kind: left", "the first and last character, counted from 1"),
        ("kind: 9, ", "", "the column kind has no position; add its first and last character, such as kind: 1-8"),
        ("kind: 9", "kind: 9, other: 30-31", "no column is called 'other'"),
        ("short_lines: pad", "delimiter: ;", "this option is for csv only, found delimiter with format: fixed"),
        ("format: fixed", "format: jsonl", "this option is for fixed only, found positions with format: jsonl"),
        ("columns:\n", "unknown_fields: add\ncolumns:\n", "no column can be added"),
    ],
)
def test_wrong_positions_are_named(tmp_path, correct, wrong, problem):
    (found,) = problems_of(tmp_path, FIXED.replace(correct, wrong))

    assert problem in found
