"""Compare every value of every row: parse the sources again, and compare on the server.

Only the server knows when two values of a type are equal. The parsed rows are in temporary tables of a transaction that
is rolled back; they take about as much space as the source, up to a limit, after which the next files follow.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, Engine, TextClause

from onceload_core.names import Position, ProducerId
from onceload_core.postgres.audit import AuditView, FileReceipts, audit_view
from onceload_core.postgres.connection import Record, array, statements
from onceload_core.spans import SpanSet
from onceload_jobs.files.compression import Damaged, Incomplete
from onceload_jobs.files.listing import url_of
from onceload_jobs.files.notes import Note
from onceload_jobs.files.reading import look_at
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.formats.csv.header import read_header
from onceload_jobs.pipeline.columns import LINEAGE, SEQUENCE, Column, ColumnType
from onceload_jobs.pipeline.columns import Kind as ColumnKind
from onceload_jobs.pipeline.declared import Declared, Format, RecordProducer, Source, Target, Write
from onceload_jobs.plan.declaration_texts import of_rows, pipeline_with_declaration
from onceload_jobs.read.checked_parts import ReadPart, read_parts
from onceload_jobs.read.parts import is_stream, parts_of
from onceload_jobs.read.rows import read_records
from onceload_jobs.verify.findings import Difference, Findings, Kind
from onceload_jobs.verify.questions import NamedQuestions, Questions
from onceload_jobs.write.binary_copy import copy_in
from onceload_jobs.write.sql import filled, quoted, table_name
from onceload_jobs.write.target import columns_in, differing_columns
from onceload_jobs.write.writer import copy_columns

SQL = statements("values.sql", package=__package__)
#: How much of the sources is compared at once, if rows of different files are independent.
_COMPARED_BYTES = 8 * 2**30
_SHOWN_CHARACTERS = 60
_POSITION = "_position"


def compare_values(
    declared: Declared,
    engine: Engine,
    findings: Findings,
    *,
    unproven: AbstractSet[ProducerId],
    differing: AbstractSet[ProducerId | None],
    rows: int | None,
) -> int:
    """Compare the rows of all unchanged files, and return how many were compared, of how many there should be."""
    reason = _incomparable(declared)
    if reason:
        findings.notes.append(Note(name=table_name(declared.target), reason=f"its values are not compared: {reason}"))
        return 0
    with audit_view(engine, declared.name, only_read=False) as view:
        if not view.columns_of(table_name(declared.target)) or _has_other_columns(declared, view, findings):
            return 0
        comparison, has_files = _Comparison(declared, view, findings, differing=differing), False
        others = _of_other_versions(declared, view)
        for file in view.files():
            has_files = True
            if file.is_replaced or not file.is_latest or file.producer_id in unproven:
                comparison.leave_out(file)
            elif not others.isdisjoint(position for position, _ in file.spans):
                reason = (
                    "its values were not compared, because a part of this file was loaded under an earlier version of "
                    "the pipeline file"
                )
                findings.notes.append(Note(name=file.name, reason=reason))
                comparison.leave_out(file)
            else:
                comparison.take(file)
        comparison.settle()
        if rows and not has_files:
            reason = f"the values of {rows:,} rows were not compared, because a program gave them, and no file has them"
            findings.notes.append(Note(name=table_name(declared.target), reason=reason))
        return comparison.rows


def _has_other_columns(declared: Declared, view: AuditView, findings: Findings) -> bool:
    """Whether columns of the table have other types than the declared ones, whose values cannot be compared."""
    differing = differing_columns(view.connection, declared)
    for each in differing:
        findings.add(
            Difference(
                producer=table_name(declared.target),
                kind=Kind.COLUMN_DIFFERS,
                column=each.name,
                expected=each.of_type,
                found=each.found or "no such column",
            )
        )
    return bool(differing)


def _of_other_versions(declared: Declared, view: AuditView) -> frozenset[Position]:
    """The commits with rows made by other rules than those of the current pipeline file."""
    now = pipeline_with_declaration(declared).declaration
    rules = of_rows(now.terms, now.rest)
    same = [version for version, each in view.declarations().items() if of_rows(each.terms, each.rest) == rules]
    return view.positions_of_others(same)


def _incomparable(declared: Declared) -> str | None:
    if declared.transform is not None:
        return "a transform made the rows, and verify does not run it again"
    if (declared.target.write is Write.APPEND or declared.producer is not None) and not declared.target.lineage:
        return "the rows have no lineage (target.lineage)"
    return None


def reread_ids(declared: Declared, name: str, producer_id: ProducerId, spans: SpanSet) -> Iterator[int]:
    """The sequence ids, in order, of all records in some spans of a file that would be rows."""
    for rows in _reread(declared, declared.columns_as_read, name, producer_id, spans):
        yield from sorted(rows.column(SEQUENCE).to_pylist())


def _reread(
    declared: Declared, columns: tuple[Column, ...], name: str, producer_id: ProducerId, spans: SpanSet
) -> Iterator[pa.Table]:
    chunk = _chunk(declared, name, producer_id, spans)
    for part in _parts(chunk, declared.source):
        if part.part.first >= spans.end:
            return
        records = read_records(declared, columns, [part])
        if records.unknown:
            # A load gave these fields columns, which the table no longer has.
            records = read_records(declared, columns + records.unknown, [part])
        rows = records.rows
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


def _chunk(declared: Declared, name: str, producer_id: ProducerId, spans: SpanSet) -> Chunk:
    """Read from the start, because compressed files cannot be seeked, and a span may begin inside a record."""
    source = declared.source
    url = url_of(source.path, name, root=source.root)
    return Chunk(
        producer_id=producer_id,
        name=name,
        url=url,
        first=0,
        end=None if is_stream(source, name) else spans.end,
        size=look_at(url).size if source.format.is_whole else 0,
        # The consumed part ends with its last record, with or without a newline.
        sealed=True,
        header=_header(declared, url),
    )


def _header(declared: Declared, url: str) -> tuple[str, ...]:
    if declared.source.format is not Format.CSV:
        return ()
    if not declared.source.csv.header:
        return declared.column_names
    return read_header(url, declared.source.csv, sealed=True) or ()


@dataclass
class _Comparison:
    """Takes file after file, and compares when there is enough, or at the end."""

    declared: Declared
    view: AuditView
    findings: Findings
    #: Producers with rows known to be missing; only their values are compared.
    differing: AbstractSet[ProducerId | None]
    rows: int = 0
    _held_bytes: int = 0
    _names: dict[ProducerId, str] = field(default_factory=dict)
    _left_out: set[ProducerId] = field(default_factory=set)
    #: A merge may have replaced rows of these, although rows are only appended now. Only their values are compared.
    _lacking: set[ProducerId] = field(default_factory=set)
    #: Columns with values of the files that the table no longer has.
    _dropped: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        self._columns = columns_in(self._connection, self.declared)
        self._of_no_record = self.view.rows_of_no_record(table_name(self._target))
        self._connection.execute(filled(SQL["create_reread"], columns=copy_columns(self._columns, lineage=True)))

    @property
    def _connection(self) -> Connection:
        return self.view.connection

    @property
    def _target(self) -> Target:
        return self.declared.target

    @property
    def _is_merge(self) -> bool:
        return self._target.write is Write.MERGE

    def leave_out(self, file: FileReceipts) -> None:
        self._left_out.add(file.producer_id)

    def take(self, file: FileReceipts) -> None:
        self._names[file.producer_id] = file.name
        if not self._is_merge and any(position <= self._of_no_record.merged for position, _ in file.spans):
            self._lacking.add(file.producer_id)
        # If the records name their producers, the receipts of these count the rows.
        spans_of_rows = file.spans if self.declared.producer else file.spans_of_rows
        brought = SpanSet(span for _, spans in spans_of_rows for span in spans)
        commits = _CommitsOfFile.of(spans_of_rows)
        for rows in _reread(self.declared, self._columns, file.name, file.producer_id, brought) if brought else ():
            if rows.num_rows:
                self._copy(rows, commits)
                self._held_bytes += rows.nbytes
        # The last record of a key, or of a named producer and id, may be in any file: such rows are compared at once.
        if self._held_bytes > _COMPARED_BYTES and not self._is_merge and self.declared.producer is None:
            self.settle()

    def _copy(self, rows: pa.Table, commits: "_CommitsOfFile") -> None:
        names = [*(column.name for column in self._columns), *(each.name for each in LINEAGE)]
        positions = pa.array(commits.positions(rows.column(SEQUENCE).to_numpy()), pa.int64())
        held = rows.select(names).append_column(_POSITION, positions)
        for name in set(rows.column_names).difference(names):
            self._add_dropped(name)
            held = held.append_column(name, _texts(rows.column(name)))
        copy_in(self._connection, held, table="reread", names=held.column_names, columns=self._columns + self._dropped)
        self.rows += rows.num_rows

    def _add_dropped(self, name: str) -> None:
        if any(column.name == name for column in self._dropped):
            return
        self._connection.execute(filled(SQL["add_dropped"], name=quoted(name)))
        self._dropped += (Column(name=name, type=ColumnType(kind=ColumnKind.TEXT)),)

    def settle(self) -> None:
        """Compare the collected rows, and free their space."""
        self._connection.execute(SQL["analyze"])
        if self.declared.producer is None:
            self._compare_by_lineage()
        else:
            self._compare_named(self.declared.producer)
        self._connection.execute(SQL["empty"])
        self._held_bytes = 0
        self._names = {}

    def _compare_named(self, producer: RecordProducer) -> None:
        questions = NamedQuestions(self._target, producer, self._columns, self._dropped)
        kinds = {True: Kind.VALUE_CHANGED, False: Kind.ROW_FROM_NOWHERE}
        at_most = max(1, *map(self.findings.room, kinds.values()))
        binds = {"pipeline_id": self.view.pipeline_id, "left_out": array(()), "shown": _SHOWN_CHARACTERS}
        wrong = self._connection.execute(questions.wrong, {**binds, "at_most": at_most}).all()
        counted = {row.is_known: row.counted for row in wrong}
        self.rows = self._connection.execute(questions.count, {"pipeline_id": self.view.pipeline_id}).scalar_one()
        if self._left_out and wrong:
            self.rows -= sum(counted.values())
            reason = (
                f"the values of {sum(counted.values()):,} rows were not compared: they equal no record of the files "
                f"that were compared, and {len(self._left_out):,} other files may have brought them"
            )
            self.findings.notes.append(Note(name=table_name(self._target), reason=reason))
            return
        for row in wrong:
            self._add(row, kind=kinds[row.is_known])
        for is_known, count in counted.items():
            named = {(row.producer_id, row.sequence_id) for row in wrong if row.is_known is is_known}
            self.findings.counts[kinds[is_known]] += count - len(named)

    def _compare_by_lineage(self) -> None:
        is_of_records = not self._of_no_record.at_most
        questions = Questions(self.declared, self._columns, self._dropped, is_of_records=is_of_records)
        self._find(questions.changed, kind=Kind.VALUE_CHANGED)
        # A missing row may be a duplicate by business id, or overwritten by a file that has changed.
        if self.declared.message_id is None and not (self._is_merge and self._left_out):
            self._find(questions.missing, kind=Kind.ROW_MISSING)
        if self._target.lineage or not self._left_out:
            self._find(questions.surplus, kind=Kind.ROW_FROM_NOWHERE)
        else:
            reason = (
                "rows without a record are not searched for: without lineage, any row may be of a file whose "
                "values were not compared"
            )
            self.findings.notes.append(Note(name=table_name(self._target), reason=reason))

    def _find(self, question: TextClause, *, kind: Kind) -> None:
        binds = {
            "pipeline_id": self.view.pipeline_id,
            "taken": array(self._names),
            "left_out": array(self._left_out),
            "differing": array(each for each in self.differing | self._lacking if each is not None),
            "shown": _SHOWN_CHARACTERS,
            # The first row also contains the total count.
            "at_most": max(1, self.findings.room(kind)),
        }
        rows = self._connection.execute(question, binds).all()
        for row in rows:
            self._add(row, kind=kind)
        if rows:
            self.findings.counts[kind] += rows[0].counted - len(rows)

    def _add(self, row: Record, *, kind: Kind) -> None:
        difference = Difference(
            producer=self._names.get(row.producer_id) or self._name(row.producer_id),
            kind=kind,
            sequence_id=row.sequence_id,
            column=row.column_name,
            expected=row.expected,
            found=row.found,
        )
        self.findings.add(difference)

    def _name(self, producer_id: ProducerId | None) -> str:
        name = None if producer_id is None else self.view.find_name(producer_id)
        return name or "(a row without a producer)"


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
