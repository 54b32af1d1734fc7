"""Made-up events, the same ones at every run: as JSON lines, as CSV, and the sum by which loaded rows are checked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import Engine, text

from bench.measured import check_equal
from onceload_jobs.pipeline.columns import arrow_schema, parse_column

#: Six columns, by the types that a pipeline declares and that a plain table has.
COLUMNS = {
    "device": "text",
    "happened_at": "timestamptz",
    "sequence": "bigint",
    "kind": "text",
    "amount": "numeric(12,2)",
    "note": "text",
}
DDL = ", ".join(f"{name} {of_type}" for name, of_type in COLUMNS.items())

_SEED = 20260101
_BLOCK_ROWS = 500_000
_CENTS_MAX = 1_000_000
_FIRST_US = 1_767_225_600_000_000  # 2026-01-01, in microseconds.
_ARROW = arrow_schema(tuple(parse_column(*each) for each in COLUMNS.items()))
_KINDS = pa.array(["created", "opened", "viewed", "changed", "paid", "shipped", "returned", "closed"])


@dataclass(frozen=True, kw_only=True)
class Events:
    """Rows number `0` to `rows - 1`; device after device has its turn, and counts its own events."""

    rows: int
    devices: int

    def write_jsonl(self, path: Path) -> Decimal:
        return self._write([path], _json_lines)

    def write_csv(self, paths: list[Path]) -> Decimal:
        """In as many files of the same size as there are paths."""
        return self._write(paths, _csv_lines)

    def write_parquet(self, path: Path, *, groups: int) -> Decimal:
        """In one file with a number of row groups of the same size."""
        cents = 0
        with pq.ParquetWriter(path, _ARROW) as writer:
            for numbers, devices in self._blocks(rows_max=-(-self.rows // groups)):
                *values, block_cents = _values(numbers, devices)
                columns = [each.cast(field.type) for each, field in zip(values, _ARROW, strict=True)]
                writer.write_table(pa.table(columns, schema=_ARROW), row_group_size=len(numbers))
                cents += block_cents
        return _amount(cents)

    def write_small(self, folder: Path, *, rows_each: int) -> Decimal:
        """JSON lines, in files of so many rows."""
        cents, number = 0, 0
        for block in self._blocks(rows_max=_BLOCK_ROWS // rows_each * rows_each):
            lines, block_cents = _json_lines(*block)
            cents += block_cents
            starts = [*range(0, len(lines), rows_each), len(lines)]
            for first, end in pairwise(starts):
                (folder / f"{number:06}.jsonl").write_bytes(_bytes_of(lines.slice(first, end - first)))
                number += 1
        return _amount(cents)

    def _write(self, paths: list[Path], lines_of: "_LinesOf") -> Decimal:
        cents = 0
        edges = np.linspace(0, self.rows, len(paths) + 1).astype(int).tolist()
        for path, (first, end) in zip(paths, pairwise(edges), strict=True):
            with path.open("wb") as file:
                for numbers, devices in self._blocks(first=first, end=end):
                    lines, block_cents = lines_of(numbers, devices)
                    cents += block_cents
                    file.write(_bytes_of(lines))
        return _amount(cents)

    def _blocks(
        self, *, first: int = 0, end: int | None = None, rows_max: int = _BLOCK_ROWS
    ) -> Iterator[tuple["_Numbers", int]]:
        end = self.rows if end is None else end
        for start in range(first, end, rows_max):
            yield np.arange(start, min(end, start + rows_max)), self.devices


def check_rows(engine: Engine, table: str, *, rows: int, amount: Decimal) -> None:
    """Without this, no number: as many rows as there were, and the sum of their amounts."""
    with engine.connect() as connection:
        # A peer that chose the type itself may hold amounts as floating point.
        found = connection.execute(text(f"SELECT count(*), sum(CAST(amount AS numeric(12,2))) FROM {table}")).one()
    check_equal(f"rows and sum of amounts in {table}", found=tuple(found), expected=(rows, amount))


_Numbers = npt.NDArray[np.int64]
#: Lines of some rows, each with its newline, and the sum of their amounts in cents.
_LinesOf = Callable[[_Numbers, int], tuple[pa.StringArray, int]]


def _json_lines(numbers: _Numbers, devices: int) -> tuple[pa.StringArray, int]:
    device, happened_at, sequence, kind, amount, note, cents = _values(numbers, devices)
    lines = _joined(
        '{"device":"', device, '","happened_at":"', happened_at, '","sequence":', sequence, ',"kind":"', kind,
        '","amount":', amount, ',"note":"', note, '"}\n',
    )  # fmt: skip
    return lines, cents


def _csv_lines(numbers: _Numbers, devices: int) -> tuple[pa.StringArray, int]:
    *values, cents = _values(numbers, devices)
    separated = [part for value in values for part in (value, ",")]
    return _joined(*separated[:-1], "\n"), cents


def _values(numbers: _Numbers, devices: int) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array, pa.Array, pa.Array, int]:
    """Each column as text; a row's values depend on its number alone, however the rows are cut into files."""
    chosen = _scattered(numbers)
    cents = chosen % _CENTS_MAX
    times = pa.array(_FIRST_US + numbers * 1000 + chosen % 1000).cast(pa.timestamp("us")).cast(pa.string())
    amounts = _joined(_text(cents // 100), ".", pc.utf8_lpad(_text(cents % 100), 2, "0"))
    return (
        _joined("device-", pc.utf8_lpad(_text(numbers % devices), 7, "0")),
        _joined(pc.replace_substring(times, " ", "T", max_replacements=1), "Z"),
        _text(numbers // devices),
        _KINDS.take(pa.array(chosen // _CENTS_MAX % len(_KINDS))),
        amounts,
        _joined("note ", pc.utf8_lpad(_text(chosen // 8), 19, "0")),
        int(cents.sum()),
    )


def _scattered(numbers: _Numbers) -> _Numbers:
    """Numbers without a pattern, but the same for the same rows (the finalizer of splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(_SEED)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def _text(numbers: _Numbers) -> pa.StringArray:
    return pa.array(numbers).cast(pa.string())


def _joined(*parts: "pa.Array | str") -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _bytes_of(lines: pa.StringArray) -> memoryview:
    """The lines are adjacent in memory already."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(lines.buffers()[2])[offsets[0] : offsets[-1]]


def _amount(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)
