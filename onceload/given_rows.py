"""Rows that a program gives, of any form that has an Arrow or a mapping view, as offers of rows with ids."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from onceload_core.spans import SEQUENCE_END
from onceload_jobs.formats.records import Indices
from onceload_jobs.formats.typed_files import find_extension
from onceload_jobs.load.given_pieces import OfferedRows, OfferRefused
from onceload_jobs.pipeline.declared import Declared, UnknownFields

_Piece: TypeAlias = pa.Table | list[Mapping[str, object]]
#: How many rows of a table, or how many mappings, are taken at once.
_TABLE_ROWS = 65_536
_MAPPINGS = 10_000
_SHOWN = 5


def offers_of(
    rows: object, declared: Declared, *, producer: str, first_id: int | None, id_column: str | None
) -> Iterator[OfferedRows]:
    """The rows in offers of about chunk_bytes."""
    given = _Given(declared=declared, producer=producer, first_id=first_id, id_column=id_column)
    ids = _Ids(given)
    for piece in given.pieces(rows):
        yield OfferedRows(given.without_id_column(piece), ids.of(piece))


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The arguments of a call."""

    declared: Declared
    producer: str
    first_id: int | None
    id_column: str | None

    def refusal(self, found: str, expected: str, *, before: int = 0) -> OfferRefused:
        # With publish: staged, all rows of a call are one commit.
        before = before if self.declared.is_direct else 0
        return OfferRefused(self.declared.name, self.producer, found, expected, before)

    def pieces(self, rows: object) -> Iterator[_Piece]:
        """The rows, as many at a time as are read together."""
        try:
            reader = _find_reader(rows)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            # The first sentence may have a value.
            found = f"Arrow does not take the frame: {error.args[-1] if error.args else type(error).__name__}"
            raise self.refusal(found, "values of one type in each column, or a list of mappings") from error
        if reader is not None:
            self._check_names(reader.schema.names)
            self._check_types(reader.schema)
            yield from self._tables(reader)
        else:
            yield from self._mappings(rows)

    def without_id_column(self, piece: _Piece) -> _Piece:
        """The values to load: a declared column of ids is one of them."""
        name = self.id_column
        if name is None or name in self.declared.column_names:
            return piece
        if isinstance(piece, pa.Table):
            return piece.drop_columns([name])
        return [{key: value for key, value in row.items() if key != name} for row in piece]

    def _tables(self, reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in reader:
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= self.declared.source.chunk_bytes:
                yield pa.Table.from_batches(held)
                held, held_bytes = [], 0
        if any(batch.num_rows for batch in held):
            yield pa.Table.from_batches(held)

    def _mappings(self, rows: object) -> Iterator[list[Mapping[str, object]]]:
        if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
            raise self.refusal(f"the rows are of type {type(rows).__name__}", _FORMS)
        if self.declared.unknown_fields is UnknownFields.ADD:
            found = "the rows are mappings, and the pipeline adds columns for undeclared fields"
            raise self.refusal(found, "an Arrow table or a frame, whose columns have types, or another unknown_fields")
        checked = map(self._check_mapping, rows)
        while piece := list(islice(checked, _MAPPINGS)):
            yield piece

    def _check_mapping(self, row: object) -> Mapping[str, object]:
        if not isinstance(row, Mapping):
            raise self.refusal(f"one of the rows is of type {type(row).__name__}", "a mapping for each row")
        return row

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse a table or frame of other columns: all of its rows would lack the same value."""
        declared = self.declared.column_names
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise self.refusal(f"several columns are called {_some(twice)}", "a different name for each column")
        if self.id_column is not None and self.id_column not in names:
            raise self.refusal(f"no column is called {self.id_column!r}", "a column of ids")
        if lacking := [name for name in declared if name not in names]:
            raise self.refusal(f"the columns {_some(lacking)} are missing", "all declared columns, null where unknown")
        undeclared = [name for name in names if name not in declared and name != self.id_column]
        if undeclared and self.declared.unknown_fields is UnknownFields.FAIL:
            expected = "the declared columns only, or another unknown_fields"
            raise self.refusal(f"the columns {_some(undeclared)} are not declared", expected)

    def _check_types(self, schema: pa.Schema) -> None:
        """Refuse columns that Arrow stores as values of another meaning, such as the periods of pandas as integers."""
        is_added = self.declared.unknown_fields is UnknownFields.ADD
        for field in schema:
            if (field.name in self.declared.column_names or is_added) and (extension := find_extension(field)):
                found = f"the column {field.name!r} has the extension type {extension!r}"
                raise self.refusal(found, "columns of plain types (in pandas, make text of it with .astype(str))")


_FORMS = (
    "an Arrow table or reader, a frame with __arrow_c_stream__ or to_arrow (pandas, polars), or an iterable of mappings"
)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")


def _find_reader(rows: Any) -> pa.RecordBatchReader | None:  # noqa: ANN401 - whatever a program has.
    """The rows as Arrow batches, if they have that form."""
    if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        # Its own stream would include the index as a column.
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    elif isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif not hasattr(rows, "__arrow_c_stream__") and hasattr(rows, "to_arrow"):
        rows = rows.to_arrow()
    if isinstance(rows, pa.Table):
        return rows.to_reader(max_chunksize=_TABLE_ROWS)
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    return pa.RecordBatchReader.from_stream(rows) if hasattr(rows, "__arrow_c_stream__") else None


class _Ids:
    """The ids of one piece after the other."""

    def __init__(self, given: _Given) -> None:
        self._given = given
        self._rows = 0
        self._last = -1

    def of(self, piece: _Piece) -> Indices:
        ids = self._counted(len(piece)) if self._given.first_id is not None else self._named(piece)
        self._check(ids)
        self._rows, self._last = self._rows + len(ids), int(ids[-1])
        return ids

    def _counted(self, count: int) -> Indices:
        first = int(self._given.first_id or 0) + self._rows
        if not 0 <= first <= SEQUENCE_END - count:
            raise self._refusal(f"{count:,} ids from {first:,} on", _RANGE)
        return np.arange(first, first + count, dtype=np.int64)

    def _named(self, piece: _Piece) -> Indices:
        name = self._given.id_column or ""
        if not isinstance(piece, pa.Table):
            return np.array([self._id(row.get(name)) for row in piece], np.int64)
        column = piece.column(name)
        if not pa.types.is_integer(column.type) or column.null_count:
            nulls = f" with {column.null_count:,} nulls" if column.null_count else ""
            raise self._refusal(f"the ids in column {name!r} are of type {column.type}{nulls}", _INTEGERS)
        try:
            ids: Indices = column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            raise self._refusal(f"an id in column {name!r} is too large", _RANGE) from None
        return ids

    def _id(self, value: object) -> int:
        if isinstance(value, np.integer):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            found = f"an id in {self._given.id_column!r} is of type {type(value).__name__}"
            raise self._refusal(found, _INTEGERS)
        if not 0 <= value < SEQUENCE_END:
            raise self._refusal(f"the id {value} in {self._given.id_column!r}", _RANGE)
        return value

    def _check(self, ids: Indices) -> None:
        """Refuse ids that repeat or go back: it would be unknown which row was meant."""
        if ids[0] < 0 or ids.max() >= SEQUENCE_END:
            raise self._refusal(f"the ids include {ids.min():,} and {ids.max():,}", _RANGE)
        all_ids = np.concatenate([[self._last], ids])
        if len(wrong := np.flatnonzero(np.diff(all_ids) <= 0)):
            number = int(wrong[0])
            found = f"row {self._rows + number + 1:,} has id {ids[number]}, after id {all_ids[number]}"
            raise self._refusal(found, "ids that increase from row to row")

    def _refusal(self, found: str, expected: str) -> OfferRefused:
        return self._given.refusal(found, expected, before=self._rows)


_INTEGERS = "integers, and one in each row"
_RANGE = f"ids from 0 to {SEQUENCE_END - 1}"
