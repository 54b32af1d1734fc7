"""The rows of one commit as pieces of a batch, so that they take the same roads as those of files.

A program gives its rows once. They wait until they are committed, so that a piece can be read again if its commit was
refused or got no answer: those of a batch in a folder, and a single piece in memory.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from onceload_core.ports import Advance
from onceload_core.postgres.connection import first_line
from onceload_core.spans import SpanSet
from onceload_core.verdicts import judge
from onceload_jobs.batch.piece import BlockLost, Piece
from onceload_jobs.batch.rows_in_memory import RowsInMemory
from onceload_jobs.batch.stage_folder import BlockWriter, RowsLost, StageFolder, content_of, written
from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.records import Records
from onceload_jobs.load.given.call import Call
from onceload_jobs.load.given.offered_rows import KeptRows, OfferedRows, among
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.read.added_columns import read_adding
from onceload_jobs.read.bad_rows import without_refused
from onceload_jobs.read.limits import check_limit
from onceload_jobs.read.new_content import quarantined
from onceload_jobs.write.writer import Writer


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Some rows of a call, which wait to be committed."""

    #: How many were offered, and their ids.
    count: int
    spans: SpanSet
    #: Those that were not loaded before the call.
    new: SpanSet
    #: Returns these.
    kept: Callable[[], KeptRows] | None


class GivenPieces(RowsInMemory):
    """The rows that are not loaded yet, in pieces of bounded size."""

    def __init__(self, call: Call, folder: StageFolder | None) -> None:
        super().__init__(Writer.into_target(call.job.declared.target, call.job.written))
        self._call, self._folder = call, folder
        self._waiting: list[_Waiting] = []
        #: The ids to load.
        self.new = SpanSet()
        self._ignored: dict[int, Ignored] = {}

    def put(self, offer: OfferedRows) -> None:
        """Let the rows wait that are not loaded yet."""
        new = judge(offer.spans, consumed=self._call.consumed).new
        kept = self._kept(offer.among(new)) if new else None
        self._waiting.append(_Waiting(count=len(offer.ids), spans=offer.spans, new=new, kept=kept))

    @property
    def count(self) -> int:
        """How many rows were offered."""
        return sum(each.count for each in self._waiting)

    @property
    def offered(self) -> SpanSet:
        return SpanSet(span for each in self._waiting for span in each.spans)

    @property
    def ignored(self) -> Ignored:
        """The fields without a column in what was read."""
        return sum(self._ignored.values(), Ignored())

    def each(self) -> Iterator[Piece]:
        return map(self._read, range(len(self._waiting)))

    def _read(self, number: int) -> Piece:
        waiting = self._waiting[number]
        new = waiting.new & self.new
        if waiting.kept is None or not new:
            return Piece(number=number, duplicates=waiting.count)
        records, added = self._records(waiting.kept())
        if new != waiting.new:
            records = among(records, new)
        records = without_refused(records, self._refused, ())
        check_limit(self._call.job.declared, records)
        self._ignored[number] = records.ignored
        rows = records.rows.num_rows
        producer_id = self._call.producer_id
        return Piece(
            number=number,
            advances=(Advance(producer_id=producer_id, spans=new, rows=rows, records=records.count),),
            rows=rows,
            records=rows,
            quarantined=quarantined(records.bad),
            duplicates=waiting.count - records.count,
            blocks=self._holding(records.rows, added),
        )

    def _records(self, kept: KeptRows) -> tuple[Records, tuple[Column, ...]]:
        """With columns for undeclared fields, if any are added."""
        call = self._call
        with self._refusing_types():
            return read_adding(
                call.job.declared,
                call.job.columns,
                (),
                self._differing,
                read=lambda declared, columns, _: kept.read(call.producer_id, columns, declared.unknown_fields),
            )

    def _kept(self, offer: OfferedRows) -> Callable[[], KeptRows]:
        call = self._call
        with self._refusing_types():
            rows = offer.kept(call.producer_id, call.job.columns, call.job.declared.unknown_fields)
        if self._folder is None:
            return lambda: rows
        return partial(_from_folder, self._folder, _into_folder(self._folder, rows))

    @contextmanager
    def _refusing_types(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException as error:
            found = f"their columns cannot be read ({first_line(error)})"
            raise self._call.refusal(found, "columns of types that Parquet has") from error


def _into_folder(folder: StageFolder, rows: KeptRows) -> Piece:
    def write(into: BlockWriter) -> Piece:
        into.write((pickle.dumps(rows),), rows=len(rows.ids))
        return Piece(number=0, file=into.file, blocks=tuple(into.blocks))

    return written(folder, write)


def _from_folder(folder: StageFolder, kept: Piece) -> KeptRows:
    (block,) = kept.blocks
    try:
        content = b"".join(content_of(folder, kept, block))
    except BlockLost as lost:
        raise RowsLost(folder.path) from lost
    rows: KeptRows = pickle.loads(content)  # noqa: S301 - of this process.
    return rows
