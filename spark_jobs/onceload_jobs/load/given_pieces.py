"""The rows of one commit as pieces of a batch, so that they take the same roads as those of files.

A program gives its rows once. They wait until they are committed, so that a piece can be read again if its commit was
refused or got no answer: those of a batch in a folder, and a single piece in memory.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from sqlalchemy import Engine

from onceload_core.errors import WrongUse
from onceload_core.names import ProducerId
from onceload_core.ports import Advance
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import first_line
from onceload_core.postgres.rewound import Owed
from onceload_core.spans import SpanSet
from onceload_core.verdicts import judge
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import BlockLost, Piece, RowsInMemory
from onceload_jobs.batch.stage_folder import BlockWriter, RowsLost, StageFolder, content_of, written
from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.mappings import read_mappings
from onceload_jobs.formats.parquet.tables import as_parquet, read_given
from onceload_jobs.formats.records import Indices, Mask, Records
from onceload_jobs.pipeline.columns import SEQUENCE, Column
from onceload_jobs.pipeline.declared import Declared, UnknownFields
from onceload_jobs.read.bad_records import check_limit, without_refused
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.rows import read_adding
from onceload_jobs.write.writer import Writer


@dataclass(eq=False)
class OfferRefused(WrongUse):
    """Rows that are refused as a whole, because of their ids or their form."""

    pipeline: str
    producer: str
    found: str
    expected: str
    #: How many rows before them were read; with publish: direct, they are loaded.
    before: int = 0

    def __str__(self) -> str:
        kept = f"The {self.before:,} rows before them stay loaded." if self.before else "Nothing was loaded."
        return (
            f"pipeline {self.pipeline}, producer {self.producer!r}: {self.found}. {kept} Expected {self.expected}. "
            "Correct the rows, and call again: ids that are loaded are skipped."
        )


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call with rows of a program."""

    job: Job
    engine: Engine
    ledger: PostgresLedger
    producer: str
    producer_id: ProducerId
    #: The ids that were loaded before.
    consumed: SpanSet
    #: What rewinds rolled back of it. A later rewind fences the session.
    owed: Owed | None
    #: Whether ids count up by one, so that a gap means lost rows.
    is_without_gaps: bool
    #: How many rows of this call were offered before.
    offered: int = 0

    def refusal(self, found: str, expected: str) -> OfferRefused:
        return OfferRefused(self.job.declared.name, self.producer, found, expected, self.offered)


@dataclass(frozen=True, eq=False)
class OfferedRows:
    """Some rows of a call. Their ids ascend strictly."""

    rows: pa.Table | Sequence[Mapping[str, object]]
    ids: Indices

    @cached_property
    def spans(self) -> SpanSet:
        if not len(self.ids):
            return SpanSet()
        is_first = np.diff(self.ids, prepend=self.ids[0] - 2) != 1
        # The first one follows the last one here.
        is_last = np.roll(is_first, -1)
        return SpanSet.of(*zip(self.ids[is_first].tolist(), (self.ids[is_last] + 1).tolist(), strict=True))

    def among(self, wanted: SpanSet) -> "OfferedRows":
        """The rows whose ids are wanted."""
        if wanted == self.spans:
            return self
        mask = _is_inside(self.ids, wanted)
        rows = self.rows
        if isinstance(rows, pa.Table):
            return OfferedRows(rows.filter(pa.array(mask)), self.ids[mask])
        return OfferedRows([rows[number] for number in np.flatnonzero(mask).tolist()], self.ids[mask])

    def kept(self, call: Call) -> "_KeptRows":
        if isinstance(self.rows, pa.Table):
            return _KeptRows(self.ids, as_parquet(self.rows))
        job = call.job
        unknown_fields = job.declared.unknown_fields
        read = read_mappings(
            self.rows, producer_id=call.producer_id, columns=job.columns, unknown_fields=unknown_fields
        )
        return _KeptRows(self.ids, _under(self.ids, read))


@dataclass(frozen=True, eq=False)
class _KeptRows:
    """Rows that can be read again: a table as the Parquet file that holds it, or what was read of mappings."""

    ids: Indices
    content: bytes | Records

    def read(self, producer_id: ProducerId, columns: tuple[Column, ...], unknown_fields: UnknownFields) -> Records:
        """Read them as these columns; mappings were read when they were kept."""
        if isinstance(self.content, Records):
            return self.content
        rows = len(self.ids)
        found = read_given(
            self.content, rows=rows, producer_id=producer_id, columns=columns, unknown_fields=unknown_fields
        )
        return _under(self.ids, found)


def _under(ids: Indices, records: Records) -> Records:
    """Records that are numbered from 0, under their ids."""
    sequence = pa.array(ids[records.rows.column(SEQUENCE).to_numpy()], pa.int64())
    rows = records.rows.set_column(records.rows.schema.get_field_index(SEQUENCE), SEQUENCE, sequence)
    bad = tuple(replace(each, sequence_id=int(ids[each.sequence_id])) for each in records.bad)
    return replace(records, rows=rows, bad=bad)


def _is_inside(ids: Indices, spans: SpanSet) -> Mask:
    """Whether each id is in one of the spans, of which there is at least one."""
    firsts, ends = np.array([(span.first, span.end) for span in spans], np.int64).T
    places = np.searchsorted(firsts, ids, side="right") - 1
    inside: Mask = (places >= 0) & (ids < ends[places])
    return inside


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Some rows of a call, which wait to be committed."""

    #: How many were offered, and their ids.
    count: int
    spans: SpanSet
    #: Those that were not loaded before the call.
    new: SpanSet
    #: Returns these.
    kept: Callable[[], _KeptRows] | None


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
        waiting, call = self._waiting[number], self._call
        new = waiting.new & self.new
        if waiting.kept is None or not new:
            return Piece(number=number, duplicates=waiting.count)
        kept = waiting.kept()

        def read(declared: Declared, columns: tuple[Column, ...], _: Sequence[ReadPart]) -> Records:
            return kept.read(call.producer_id, columns, declared.unknown_fields)

        with self._refusing_types():
            records, added = read_adding(call.job.declared, call.job.columns, (), self._differing, read=read)
        if new != waiting.new:
            is_new = _is_inside(records.rows.column(SEQUENCE).to_numpy(), new)
            bad = tuple(each for each in records.bad if each.sequence_id in new)
            records = replace(records, rows=records.rows.filter(pa.array(is_new)), bad=bad)
        records = without_refused(records, self._refused, ())
        check_limit(call.job.declared, records)
        self._ignored[number] = records.ignored
        rows = records.rows.num_rows
        advance = Advance(producer_id=call.producer_id, spans=new, rows=rows, records=records.count)
        return Piece(
            number=number,
            advances=(advance,),
            rows=rows,
            records=rows,
            quarantined=records.bad,
            duplicates=waiting.count - records.count,
            blocks=self._holding(records.rows, added),
        )

    def _kept(self, offer: OfferedRows) -> Callable[[], _KeptRows]:
        with self._refusing_types():
            rows = offer.kept(self._call)
        if self._folder is None:
            return lambda: rows
        return partial(_from_folder, self._folder, written(self._folder, partial(_pickled, rows)))

    @contextmanager
    def _refusing_types(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException as error:
            found = f"their columns cannot be read ({first_line(error)})"
            raise self._call.refusal(found, "columns of types that Parquet has") from error


def _pickled(rows: _KeptRows, into: BlockWriter) -> Piece:
    into.write((pickle.dumps(rows),), rows=len(rows.ids))
    return Piece(number=0, file=into.file, blocks=tuple(into.blocks))


def _from_folder(folder: StageFolder, kept: Piece) -> _KeptRows:
    (block,) = kept.blocks
    try:
        content = b"".join(content_of(folder, kept, block))
    except BlockLost as lost:
        raise RowsLost(folder.path) from lost
    rows: _KeptRows = pickle.loads(content)  # noqa: S301 - of this process.
    return rows
