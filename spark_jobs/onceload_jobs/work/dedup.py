"""Leave out the records that repeat others, where records name themselves: a task for each bucket of all pieces.

A task consumes nothing, and the commit checks again. If another load was faster, all buckets are taken again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import NoReturn, TypeVar

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection

from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.batch.piece import FILE, PLACE, Block, BlockLost, Piece, PieceGone, Refused, places_of
from onceload_jobs.batch.stage_folder import BlockWriter, StageFolder, content_of
from onceload_jobs.executor.executor import Executor, Failed, Failure, map_all
from onceload_jobs.formats.records import Indices, Mask
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.work.failures import TasksFailed, ends_all, why_failed
from onceload_jobs.work.parts import BatchPieces
from onceload_jobs.work.read_chunk import RowForm
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.writer import ColumnsDiffer

Found = TypeVar("Found")
_TRIES_MAX = 3


@dataclass(frozen=True, kw_only=True)
class Bucket:
    number: int
    #: With the blocks of this bucket only.
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Deduplicating:
    """Everything that a task needs; it is pickled and sent to it."""

    job: Job
    folder: StageFolder
    form: RowForm
    #: Another task leaves out more of the rows.
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

    def ask(self, question: Callable[[Connection], Found]) -> Found:
        """Ask the server, in a transaction, which records are new."""

        def asked() -> Found:
            doing = translated(pipeline=self.job.declared.name, doing="looking for new records")
            with doing, engine_of(self.job).begin() as connection:
                return question(connection)

        return until_answered(asked)

    def write(self, into: BlockWriter, kept: Iterable[tuple[pa.Table, tuple[Column, ...]]]) -> None:
        """Hand on rows; only another task of this kind needs their places."""
        for rows, added in kept:
            self.form.write(into, rows if self.is_followed else without_places(rows), added)


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of a bucket, in several tables, each with its columns for undeclared fields."""

    parts: Sequence[tuple[pa.Table, tuple[Column, ...]]]

    @classmethod
    def of(cls, folder: StageFolder, bucket: Bucket) -> "Records":
        return cls(parts=[part for piece in bucket.pieces for part in _parts_of(folder, piece)])

    def column(self, name: str) -> pa.ChunkedArray:
        return _one([rows.column(name) for rows, _ in self.parts])

    def integers(self, name: str) -> Indices:
        return _integers(self.column(name))

    @property
    def places(self) -> tuple[Indices, Indices]:
        """The file of each record, and its place there."""
        files, places = zip(*(places_of(rows) for rows, _ in self.parts), strict=True)
        return _integers(_one(files)), _integers(_one(places))

    def kept(self, is_new: Mask, columns: Mapping[str, Indices]) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
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


def _parts_of(folder: StageFolder, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
    """Blocks of rows in Arrow's format."""
    for block in piece.blocks:
        yield pa.ipc.open_stream(b"".join(content_of(folder, piece, block))).read_all(), block.added


def _one(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks])


def _integers(column: pa.ChunkedArray) -> Indices:
    integers: Indices = column.to_numpy().astype(np.int64, copy=False)
    return integers


def with_columns(rows: pa.Table, columns: Mapping[str, Indices]) -> pa.Table:
    """The rows with other values in some columns, or with more columns."""
    for name, values in columns.items():
        at, column = rows.schema.get_field_index(name), pa.array(values)
        rows = rows.append_column(name, column) if at < 0 else rows.set_column(at, name, column)
    return rows


def without_places(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in (FILE, PLACE) if name in rows.column_names])


@dataclass(frozen=True, kw_only=True)
class NewPieces:
    """The new rows of the pieces that were read. Each time that they are asked for, they are found again."""

    executor: Executor
    look: Callable[[Deduplicating, Bucket], Piece]
    task: Deduplicating
    read: "BatchPieces | NewPieces"
    _buckets: dict[int, Bucket] = field(default_factory=dict)

    def each(self) -> Iterator[Piece]:
        read = list(self.read.each())
        yield from (piece.proof for piece in read)
        self._buckets.clear()
        self._buckets.update(_buckets_of(read))
        dedup, buckets = partial(self.look, self.task), self._buckets.values()
        with self._reading_lost_rows_again():
            for _, result in map_all(self.executor, dedup, buckets, next_try=_next_try, ends_all=_ends_all):
                if isinstance(result, Failed):
                    why = why_failed(result.failures[-1], doing="looked for new records")
                    raise TasksFailed(self.task.job.declared.name, why)
                yield result

    def read_again(self, differing: ColumnsDiffer | None = None) -> None:
        self.read.read_again(differing)

    def set_aside(self, refused: Refused) -> None:
        self.read.set_aside(refused)

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        return content_of(self.task.folder, piece, block)

    def again(self, piece: Piece) -> NoReturn:
        del piece
        self.read_again()
        raise PieceGone

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> NoReturn:
        del piece
        self.read_again(differing)
        raise PieceGone

    def without(self, piece: Piece, refused: Refused) -> NoReturn:
        """The bytes of its records are in the pieces that were read, so these are read again without them."""
        del piece
        self.set_aside(refused)
        raise PieceGone

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        bucket = self._buckets[-1 - piece.number]
        with self._reading_lost_rows_again():
            yield from _parts_of(self.task.folder, self.look(self.task.of_rows, bucket))

    @contextmanager
    def _reading_lost_rows_again(self) -> Iterator[None]:
        try:
            yield
        except BlockLost:
            self.read_again()
            raise PieceGone from None


def _buckets_of(pieces: Sequence[Piece]) -> dict[int, Bucket]:
    """The blocks of each bucket, in the order of the pieces."""
    found: dict[int, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.number):
        for number in {block.bucket for block in piece.blocks}:
            blocks = tuple(block for block in piece.blocks if block.bucket == number)
            found.setdefault(number, []).append(Piece(number=piece.number, file=piece.file, blocks=blocks))
    return {number: Bucket(number=number, pieces=tuple(found[number])) for number in sorted(found)}


def _next_try(bucket: Bucket, failures: Sequence[Failure]) -> Sequence[Bucket]:
    return (bucket,) if len(failures) < _TRIES_MAX else ()


def _ends_all(error: Exception) -> bool:
    # Lost rows stay lost.
    return isinstance(error, BlockLost) or ends_all(error)
