"""What workers that leave out repeats have in common: each takes one bucket of all pieces, and consumes nothing.

The commit checks again. If another load was faster, all buckets are taken again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import FILE, PLACE, Piece, places_of
from onceload_jobs.batch.stage_folder import StageFolder, content_of
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.work.new_ids import Integers, Mask
from onceload_jobs.work.row_form import RowForm


@dataclass(frozen=True, kw_only=True)
class Deduplicating:
    """Everything that a worker needs; it is pickled and sent to it."""

    job: Job
    folder: StageFolder
    form: RowForm
    #: Another worker leaves out more of the rows.
    is_followed: bool
    #: The files of the batch that are called like a producer.
    files: tuple[str, ...]

    @property
    def counts_rows(self) -> bool:
        """Whether the rows that it hands on are those that are committed."""
        return not self.is_followed and self.job.declared.transform is None

    @property
    def of_rows(self) -> "Deduplicating":
        """The same for the rows themselves, with the file and place of each."""
        return replace(self, form=replace(self.form, as_arrow=True, buckets=None), is_followed=True)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    number: int
    #: With the blocks of this bucket only.
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of a bucket, in several tables, each with its columns for undeclared fields."""

    parts: Sequence[tuple[pa.Table, tuple[Column, ...]]]

    @classmethod
    def of(cls, folder: StageFolder, bucket: Bucket) -> "Records":
        return cls(parts=[part for piece in bucket.pieces for part in parts_of(folder, piece)])

    def column(self, name: str) -> pa.ChunkedArray:
        return _one([rows.column(name) for rows, _ in self.parts])

    def integers(self, name: str) -> Integers:
        return _integers(self.column(name))

    @property
    def places(self) -> tuple[Integers, Integers]:
        """The file of each record, and its place there."""
        files, places = zip(*(places_of(rows) for rows, _ in self.parts), strict=True)
        return _integers(_one(files)), _integers(_one(places))

    def kept(self, is_new: Mask, columns: Mapping[str, Integers]) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        """The new records with other values in some columns; those with the same columns are together."""
        first = 0
        for added, some in groupby(self.parts, key=lambda part: part[1]):
            rows = pa.concat_tables([rows for rows, _ in some])
            mine = slice(first, first + rows.num_rows)
            first = mine.stop
            rows = with_columns(rows, {name: values[mine] for name, values in columns.items()})
            if not is_new[mine].all():
                rows = rows.filter(pa.array(is_new[mine]))
            if rows.num_rows:
                yield rows, added


def without_places(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in (FILE, PLACE) if name in rows.column_names])


def _one(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks])


def _integers(column: pa.ChunkedArray) -> Integers:
    integers: Integers = column.to_numpy().astype(np.int64, copy=False)
    return integers


def parts_of(folder: StageFolder, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
    """Blocks of rows in Arrow's format."""
    for block in piece.blocks:
        yield pa.ipc.open_stream(b"".join(content_of(folder, piece, block))).read_all(), block.added


def with_columns(rows: pa.Table, columns: Mapping[str, Integers]) -> pa.Table:
    """The rows with other values in some columns, or with more columns."""
    for name, values in columns.items():
        at, column = rows.schema.get_field_index(name), pa.array(values)
        rows = rows.append_column(name, column) if at < 0 else rows.set_column(at, name, column)
    return rows
