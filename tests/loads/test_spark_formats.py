"""Files of each format, read by Spark's tasks: in many chunks, with a bad record, and for a transform."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_jobs.pipeline.declared import FixedOptions, Format, Place
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads
from tests.loads.test_spark import STAGED, load_by_spark

pytestmark = pytest.mark.usually_staged

_COUNT, _BAD = 700, 7
_NOTE = "x" * 1000
_PLACES = tuple(
    Place(column=column, first=first, end=end)
    for column, first, end in (("id", 0, 8), ("amount", 8, 16), ("note", 16, 1016))
)


def _records() -> list[dict[str, str]]:
    """The amount of one of them does not fit its column."""
    return [
        {"id": str(number), "amount": "a lot" if number == _BAD else "1.50", "note": _NOTE} for number in range(_COUNT)
    ]


def _csv() -> bytes:
    written = io.StringIO()
    rows = csv.DictWriter(written, ["id", "amount", "note"], lineterminator="\n")
    rows.writeheader()
    rows.writerows(_records())
    return written.getvalue().encode()


def _fixed() -> bytes:
    return "".join(f"{each['id']:<8}{each['amount']:>8}{each['note']}\n" for each in _records()).encode()


def _json() -> bytes:
    return json.dumps([each | {"id": int(each["id"])} for each in _records()], indent=1).encode()


def _parquet() -> bytes:
    written = io.BytesIO()
    table = pa.Table.from_pylist([each | {"id": int(each["id"])} for each in _records()])
    pq.write_table(table, written, row_group_size=_COUNT // 5)
    return written.getvalue()


_CONTENT: dict[Format, Callable[[], bytes]] = {
    Format.CSV: _csv,
    Format.FIXED: _fixed,
    Format.JSON: _json,
    Format.PARQUET: _parquet,
}
FORMATS = pytest.mark.parametrize("of_format", _CONTENT)


def write(loads: Loads, of_format: Format) -> None:
    """Two files, one of them packed, in chunks that are much smaller than a file."""
    source = replace(
        loads.declared.source,
        path=str(loads.folder / "*"),
        format=of_format,
        fixed=FixedOptions(places=_PLACES),
        chunk_bytes=100_000,
    )
    loads.declared = replace(loads.declared, source=source)
    content = _CONTENT[of_format]()
    loads.write("a", content)
    if of_format is Format.PARQUET:
        loads.write("b", content)
    else:
        loads.write("b.gz", gzip.compress(content))


@FORMATS
def test_spark_s_tasks_load_each_record_of_a_format_once(loads, tasks, of_format):
    write(loads, of_format)

    report, again = load_by_spark(loads, tasks), load_by_spark(loads, tasks)

    assert (report.loaded, report.quarantined, again.loaded) == (2 * (_COUNT - 1), 2, 0)
    assert loads.rows() == sorted([*range(_BAD), *range(_BAD + 1, _COUNT)] * 2)
    found = verify(loads.declared, loads.engine, deep=True)
    assert (found.differences, found.rows_compared) == ((), 2 * (_COUNT - 1))


@pytest.mark.long
@STAGED
@FORMATS
def test_a_transform_in_spark_reads_each_record_of_a_format_once(loads, tasks, of_format):
    write(loads, of_format)
    transform = f"SELECT *, amount * 2 AS twice FROM records WHERE id >= {_BAD}"

    report = load_by_spark(loads, tasks, transform=transform)

    kept = 2 * (_COUNT - _BAD - 1)
    assert (report.loaded, report.quarantined, report.filtered) == (kept, 2, 2 * _BAD)
    assert loads.ask("SELECT count(*), count(DISTINCT id), sum(twice), count(_sequence) FROM target") == [
        (kept, kept // 2, 3 * kept, kept)
    ]
