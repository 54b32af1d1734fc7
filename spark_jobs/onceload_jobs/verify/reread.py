"""Read the records of loaded files again, as a load would read them now."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from onceload_core.names import Position, ProducerId
from onceload_core.spans import SpanSet
from onceload_jobs.files.compression import Damaged, Incomplete
from onceload_jobs.files.reading import look_at
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.columns import LINEAGE, SEQUENCE, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import Declared, Source
from onceload_jobs.read.checked_parts import ReadPart, read_parts
from onceload_jobs.read.parts import is_stream, parts_of
from onceload_jobs.read.rows import header_of, read_records

#: The position of the commit that loaded a record.
POSITION = "_position"


@dataclass(frozen=True, kw_only=True)
class Records:
    """The loaded records of a file, or of a part of it."""

    producer_id: ProducerId
    name: str
    url: str
    #: Where a record begins that is not after the first of these.
    first: int = 0
    #: The positions of commits, and what each loaded of them.
    commits: tuple[tuple[Position, SpanSet], ...]

    @property
    def spans(self) -> SpanSet:
        return SpanSet(span for _, spans in self.commits for span in spans)


def reread_ids(declared: Declared, records: Records) -> Iterator[int]:
    """The sequence ids, in order, of all records that would be rows."""
    for rows in _rows_of(declared, declared.columns_as_read, records):
        yield from sorted(rows.column(SEQUENCE).to_pylist())


def reread(
    declared: Declared, columns: tuple[Column, ...], records: Records
) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
    """The rows with the position of their commit, and the columns for values that the table has no column for."""
    commits = _CommitsOfFile.of(records.commits)
    names = [*(column.name for column in columns), *(each.name for each in LINEAGE)]
    for rows in _rows_of(declared, columns, records) if records.spans else ():
        if not rows.num_rows:
            continue
        positions = pa.array(commits.positions(rows.column(SEQUENCE).to_numpy()), pa.int64())
        held, dropped = rows.select(names).append_column(POSITION, positions), list[Column]()
        for name in sorted(set(rows.column_names).difference(names)):
            held = held.append_column(name, _texts(rows.column(name)))
            dropped.append(Column(name=name, type=ColumnType(kind=Kind.TEXT)))
        yield held, tuple(dropped)


def _rows_of(declared: Declared, columns: tuple[Column, ...], records: Records) -> Iterator[pa.Table]:
    spans = records.spans
    for part in _parts(_chunk(declared, records, end=spans.end), declared.source):
        if part.part.first >= spans.end:
            return
        read = read_records(declared, columns, [part])
        if read.unknown:
            # A load gave these fields columns, which the table no longer has.
            read = read_records(declared, columns + read.unknown, [part])
        rows = read.rows
        yield rows.filter(pa.array(_is_inside(rows.column(SEQUENCE).to_numpy(), spans)))


def _parts(chunk: Chunk, source: Source) -> Iterator[ReadPart]:
    if source.format.is_whole:
        yield from read_parts(chunk, source)
        return
    try:
        for part in parts_of(chunk, source):
            yield ReadPart(chunk=chunk, part=part, fingerprint=b"")
    except (Incomplete, Damaged):
        # An incomplete or damaged file was loaded up to that place.
        return


def _is_inside(ids: "np.ndarray[Any, np.dtype[np.int64]]", spans: SpanSet) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    edges = np.array([edge for span in spans for edge in (span.first, span.end)], np.int64)
    inside: np.ndarray[Any, np.dtype[np.bool_]] = np.searchsorted(edges, ids, side="right") % 2 == 1
    return inside


def _chunk(declared: Declared, records: Records, *, end: int) -> Chunk:
    """Read from where a record begins, because a span may begin inside of one."""
    source = declared.source
    return Chunk(
        producer_id=records.producer_id,
        name=records.name,
        url=records.url,
        first=records.first,
        end=None if is_stream(source, records.name) else end,
        size=look_at(records.url).size if source.format.is_whole else 0,
        # The consumed part ends with its last record, with or without a newline.
        sealed=True,
        header=header_of(declared, records.url),
    )


def _texts(values: pa.ChunkedArray) -> pa.Array:
    """Values of any type, as a message shows them."""
    return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())


_Ids: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True)
class _CommitsOfFile:
    """The first sequence ids of its loaded spans, in order, and the commit of each span."""

    firsts: _Ids
    of_each: _Ids

    @classmethod
    def of(cls, commits: Sequence[tuple[Position, SpanSet]]) -> "_CommitsOfFile":
        starts = sorted((span.first, position) for position, spans in commits for span in spans)
        in_columns = np.array(starts, np.int64).reshape(-1, 2)
        return cls(in_columns[:, 0], in_columns[:, 1])

    def positions(self, ids: _Ids) -> _Ids:
        """The position of the commit that loaded each record."""
        return self.of_each[np.searchsorted(self.firsts, ids, side="right") - 1]
