"""The rows of one commit as pieces of a batch, so that they take the same roads as those of files.

A program gives its rows once. They wait in the folder of the commit, so that a piece can be read again if its commit
was refused or got no answer.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    #: Where they are.
    kept: Piece


class GivenPieces(RowsInMemory):
    """The rows that are not loaded yet, in pieces of bounded size."""

    def __init__(self, call: Call, folder: StageFolder) -> None:
        super().__init__(Writer.into_target(call.job.declared.target, call.job.written))
        self._call, self._folder = call, folder
        self._waiting: list[_Waiting] = []
        #: The ids to load.
        self.new = SpanSet()
        self._ignored: dict[int, Ignored] = {}

    def put(self, offer: OfferedRows) -> None:
        """Let the rows wait that are not loaded yet."""
        new = judge(offer.spans, consumed=self._call.consumed).new
        kept = Piece(number=len(self._waiting))
        if new:
            kept = self._written(offer.among(new))
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
        if not new:
            return Piece(number=number, duplicates=waiting.count)
        records, added = self._records(waiting, new)
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

    def _records(self, waiting: _Waiting, new: SpanSet) -> tuple[Records, tuple[Column, ...]]:
        """With columns for undeclared fields, if any are added."""
        call, kept = self._call, self._kept(waiting)
        with self._refusing_types():
            records, added = read_adding(
                call.job.declared,
                call.job.columns,
                (),
                self._differing,
                read=lambda declared, columns, _: kept.read(call.producer_id, columns, declared.unknown_fields),
            )
        if new != waiting.new:
            records = among(records, new)
        return without_refused(records, self._refused, ()), added

    def _written(self, offer: OfferedRows) -> Piece:
        call = self._call
        with self._refusing_types():
            rows = offer.kept(call.producer_id, call.job.columns, call.job.declared.unknown_fields)

        def write(into: BlockWriter) -> Piece:
            into.write((pickle.dumps(rows),), rows=len(rows.ids))
            return Piece(number=len(self._waiting), file=into.file, blocks=tuple(into.blocks))

        return written(self._folder, write)

    def _kept(self, waiting: _Waiting) -> KeptRows:
        (block,) = waiting.kept.blocks
        try:
            content = b"".join(content_of(self._folder, waiting.kept, block))
        except BlockLost as lost:
            raise RowsLost(self._folder.path) from lost
        rows: KeptRows = pickle.loads(content)  # noqa: S301 - of this process.
        return rows

    @contextmanager
    def _refusing_types(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException as error:
            found = f"their columns cannot be read ({first_line(error)})"
            raise self._call.refusal(found, "columns of types that Parquet has") from error
