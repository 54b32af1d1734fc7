"""Reads of the ledger for comparison: receipts with files, and receipts with rows.

Nothing is changed here. To compare rows and receipts of the same moment, read both in one view.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from onceload_core.declaration import Declaration
from onceload_core.names import Position, ProducerId
from onceload_core.postgres.connection import Record, array, on_table, statements, transaction, translated
from onceload_core.postgres.ledger import one_view
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.rewound import Owed, owed
from onceload_core.spans import SpanSet

SQL = statements("audit.sql")
_FILES_PER_READ = 1_000
_IDS_PER_READ = 100_000
#: The target of a version that writes rows without lineage, as its declaration describes it.
_WITHOUT_LINEAGE = ", lineage False(, newer_file [a-z_]+)?$"


@dataclass(frozen=True, kw_only=True)
class FileReceipts:
    """All that was read of one generation of a file, with the digests of its bytes."""

    producer_id: ProducerId
    name: str
    generation: int
    #: As last recorded, if the file was read to its end.
    size: int | None
    digests: bytes
    #: The position of each commit, and what it consumed.
    spans: tuple[tuple[Position, SpanSet], ...]
    #: Those of them that brought rows. Records that are loaded under another name brought none.
    spans_of_rows: tuple[tuple[Position, SpanSet], ...]
    #: There is no later generation of the file.
    is_latest: bool
    #: A later generation replaced it, and its rows were deleted.
    is_replaced: bool
    #: Other names with the same content.
    copies: tuple["CopyOfFile", ...] = ()

    @property
    def consumed(self) -> SpanSet:
        return SpanSet(span for _, spans in self.spans for span in spans)

    @property
    def end(self) -> int:
        """The end of what was consumed."""
        return max((spans.end for _, spans in self.spans if spans), default=0)


@dataclass(frozen=True, kw_only=True)
class OpenSpans:
    """Spans of a delivery or a claim, and the producer that has them."""

    producer_id: ProducerId
    name: str
    spans: SpanSet
    delivery: int
    state: str


@dataclass(frozen=True, kw_only=True)
class CopyOfFile:
    """A file with the same content as another one, up to its fingerprint."""

    producer_id: ProducerId
    name: str
    generation: int
    fingerprint: bytes
    size: int | None


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """The rows of one receipt, expected and found. Without a position: rows that no receipt covers."""

    producer_id: ProducerId | None
    position: Position | None
    expected: int
    rows: int
    sequences: int
    #: None of its records may be several rows; a transform may make several of one.
    is_one_row_each: bool


@dataclass(frozen=True, kw_only=True)
class RowsFound:
    """The number of rows by the receipts, and where the target differs."""

    expected: int
    differing: tuple[RowCounts, ...]
    #: Producers that were loaded more than once, as `at_least_once` allows.
    repeated: int

    @property
    def without_producer(self) -> int:
        """The rows in the target that name no producer."""
        return sum(counts.rows for counts in self.differing if counts.producer_id is None)


@dataclass(frozen=True, kw_only=True)
class RowsOfNoRecord:
    """The number of rows without a producer that should be in a table, by the ledger.

    A transform made them of several records, or a version without lineage loaded them.
    """

    at_least: int
    at_most: int
    #: Those that the pipeline itself loaded; the others are of pipelines that share the table.
    ours: int
    #: Some of the pipeline's own are of a file that was replaced since.
    is_replaced: bool
    #: A merge may have replaced rows of all commits up to this one; a merge of another pipeline, of any commit.
    merged: Position


@dataclass(frozen=True, kw_only=True)
class LoadedAgain:
    """Records of a producer that were loaded more than once, and two of the commits that loaded them."""

    producer: str
    spans: SpanSet
    first: Position
    again: Position


@dataclass(frozen=True, kw_only=True)
class ReceiptOfRows:
    """The parts of one receipt that determine its rows."""

    producer: str
    spans: SpanSet
    #: Its quarantined records: those that are rows now, and those that are not.
    retried: tuple[int, ...]
    held: tuple[int, ...]
    #: Its sequence ids are positions in a file.
    is_of_file: bool


@dataclass(frozen=True, kw_only=True)
class QuarantineCount:
    """A commit with missing quarantined records."""

    position: Position
    batch: str
    expected: int
    found: int


@contextmanager
def audit_view(engine: Engine, pipeline: str, *, only_read: bool = True) -> Iterator["AuditView"]:
    """A fixed snapshot of the database while the block runs. Writes in it are rolled back."""
    with translated(pipeline=pipeline, doing="verifying"), one_view(engine) as connection:
        if only_read:
            connection.execute(SQL["only_read"])
        connection.execute(SQL["take_time"])
        connection.execute(SQL["take_memory"])
        found = get_pipeline(connection, pipeline)
        yield AuditView(connection, pipeline_id=found.pipeline_id, position=found.position)
        connection.rollback()


@contextmanager
def shared_view(engine: Engine, pipeline: str, name: str) -> Iterator[Connection]:
    """A connection that reads in the view of another one, which exported it. What it writes is rolled back."""
    with translated(pipeline=pipeline, doing="verifying"), one_view(engine) as connection:
        connection.execute(SQL["share"], {"name": name})
        connection.execute(SQL["work_alone"])
        connection.execute(SQL["take_time"])
        connection.execute(SQL["take_memory"])
        yield connection
        connection.rollback()


class AuditView:
    """Rows and receipts of the same moment."""

    def __init__(self, connection: Connection, *, pipeline_id: int, position: Position) -> None:
        self.connection = connection
        self.pipeline_id = pipeline_id
        self.position = position

    def export(self) -> str:
        """A name by which `shared_view` reads in this view, as long as it is open."""
        return str(self.connection.execute(SQL["export"]).scalar_one())

    def columns_of(self, table: str) -> frozenset[str]:
        """The columns of a table, none if it does not exist. Names of tables are quoted as in SQL."""
        return frozenset(self.connection.execute(SQL["columns_of"], {"table": table}).scalars())

    def count_rows(self, table: str, *, merged: Position) -> RowsFound:
        """Compare every receipt with its rows, in one pass over the table; a merge may have replaced earlier rows."""
        binds = {"pipeline_id": self.pipeline_id, "without_lineage": _WITHOUT_LINEAGE, "merged": merged}
        rows = self.connection.execute(on_table(SQL["rows_that_differ"], table), binds).all()
        return RowsFound(
            expected=int(rows[0].rows_expected),
            repeated=rows[0].repeated,
            differing=tuple(
                RowCounts(
                    producer_id=row.producer_id,
                    position=row.position,
                    expected=row.expected,
                    rows=row.rows,
                    sequences=row.sequences,
                    is_one_row_each=row.is_one_row_each,
                )
                for row in rows
                if row.rows is not None
            ),
        )

    def rows_of_no_record(self, table: str) -> RowsOfNoRecord:
        """The number of rows in a table that should name no producer."""
        binds = {"pipeline_id": self.pipeline_id, "table": table, "without_lineage": _WITHOUT_LINEAGE}
        row = self.connection.execute(SQL["rows_of_no_record"], binds).one()
        return RowsOfNoRecord(
            at_least=row.at_least,
            at_most=row.at_most,
            ours=row.ours,
            is_replaced=row.is_replaced,
            merged=Position(row.merged),
        )

    def count_without_producer(self, table: str) -> int:
        """The number of rows in a table that name no producer."""
        return int(self.connection.execute(on_table(SQL["count_without_producer"], table)).scalar_one())

    def loaded_again(self) -> tuple[LoadedAgain, ...]:
        """Producers with records that were loaded more than once without `at_least_once`."""
        return tuple(
            LoadedAgain(
                producer=row.name,
                spans=SpanSet.parse(row.spans),
                first=row.first_position,
                again=row.again_position,
            )
            for row in self.connection.execute(SQL["loaded_again"], {"pipeline_id": self.pipeline_id})
        )

    def declarations(self) -> Mapping[int, Declaration]:
        """The declarations of all versions of the pipeline file."""
        rows = self.connection.execute(SQL["declarations"], {"pipeline_id": self.pipeline_id})
        return {row.version: Declaration(terms=row.terms, rest=row.rest) for row in rows}

    def positions_of_others(self, versions: Collection[int]) -> frozenset[Position]:
        """The commits of all other versions."""
        binds = {"pipeline_id": self.pipeline_id, "versions": array(versions)}
        return frozenset(self.connection.execute(SQL["positions_of_other_versions"], binds).scalars())

    def receipt(self, producer_id: ProducerId, position: Position) -> ReceiptOfRows:
        binds = {"pipeline_id": self.pipeline_id, "producer_id": producer_id, "position": position}
        row = self.connection.execute(SQL["receipt_at"], binds).one()
        asked = {"producer_id": producer_id, "spans": row.spans}
        quarantined = self.connection.execute(SQL["quarantined_ids"], asked).all()
        return ReceiptOfRows(
            producer=row.producer,
            spans=SpanSet.parse(row.spans),
            retried=tuple(each.sequence_id for each in quarantined if each.is_retried),
            held=tuple(each.sequence_id for each in quarantined if not each.is_retried),
            is_of_file=bool(row.digest),
        )

    def spans_of(self, producer_id: ProducerId) -> SpanSet:
        """All that the receipts of a producer cover."""
        binds = {"pipeline_id": self.pipeline_id, "producer_id": producer_id}
        parts = self.connection.execute(SQL["spans_of"], binds).scalars()
        return SpanSet(span for each in parts for span in SpanSet.parse(each))

    def open_spans(self) -> tuple[OpenSpans, ...]:
        """Spans that wait, are held or are dead letters."""
        return tuple(
            OpenSpans(
                producer_id=row.producer_id,
                name=row.name,
                spans=SpanSet.parse(row.spans),
                delivery=row.delivery_id,
                state=row.state,
            )
            for row in self.connection.execute(SQL["open_spans"], {"pipeline_id": self.pipeline_id})
        )

    def owed(self) -> tuple[Owed, ...]:
        """What rewinds rolled back and no commit has loaded again."""
        return owed(self.connection, self.pipeline_id)

    def find_name(self, producer_id: ProducerId) -> str | None:
        binds = {"pipeline_id": self.pipeline_id, "producer_id": producer_id}
        name: str | None = self.connection.execute(SQL["producer_name"], binds).scalar_one_or_none()
        return name

    def sequences(self, table: str, producer_id: ProducerId, spans: SpanSet) -> Iterator[int]:
        """The sequence ids of a producer's rows in order, with repeated ones; never all of them in memory."""
        binds = {"producer_id": producer_id, "spans": str(spans)}
        options = {"stream_results": True, "yield_per": _IDS_PER_READ}
        statement = on_table(SQL["sequences_within"], table)
        with self.connection.execute(statement, binds, execution_options=options) as found:
            yield from found.scalars()

    def sequences_outside(
        self, table: str, producer_id: ProducerId | None, spans: SpanSet, *, at_most: int
    ) -> tuple[int | None, ...]:
        binds = {"producer_id": producer_id, "spans": str(spans), "at_most": at_most}
        return tuple(self.connection.execute(on_table(SQL["sequences_outside"], table), binds).scalars())

    def count_quarantined(self) -> tuple[QuarantineCount, ...]:
        """The commits with missing quarantined records."""
        rows = self.connection.execute(SQL["quarantine_that_differs"], {"pipeline_id": self.pipeline_id})
        return tuple(
            QuarantineCount(position=row.position, batch=row.batch, expected=row.expected, found=row.found)
            for row in rows
        )

    def quarantined_outside(self) -> tuple[tuple[ProducerId, int], ...]:
        """Quarantined records that no receipt covers."""
        rows = self.connection.execute(SQL["quarantined_outside"], {"pipeline_id": self.pipeline_id})
        return tuple((row.producer_id, row.sequence_id) for row in rows)

    def files(self) -> Iterator[FileReceipts]:
        """Every generation of every file, in this view."""
        return _files(self.connection, self.pipeline_id, up_to=self.position)


def files_up_to(engine: Engine, pipeline: str, position: Position) -> Iterator[FileReceipts]:
    """Every generation of every file. No transaction stays open while the caller handles a page."""
    after = ProducerId(0)
    while True:
        with transaction(engine, pipeline, doing="reading receipts") as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            page = _page(connection, pipeline_id, up_to=position, after=after)
        yield from page
        if len(page) < _FILES_PER_READ:
            return
        after = page[-1].producer_id


def _files(connection: Connection, pipeline_id: int, *, up_to: Position) -> Iterator[FileReceipts]:
    after = ProducerId(0)
    while page := _page(connection, pipeline_id, up_to=up_to, after=after):
        yield from page
        after = page[-1].producer_id


def _page(connection: Connection, pipeline_id: int, *, up_to: Position, after: ProducerId) -> list[FileReceipts]:
    binds = {"pipeline_id": pipeline_id, "position": up_to, "after": after, "at_most": _FILES_PER_READ}
    rows = connection.execute(SQL["files"], binds).all()
    copies: dict[ProducerId, list[CopyOfFile]] = {}
    asked = {"pipeline_id": pipeline_id, "producer_ids": array(row.producer_id for row in rows)}
    for row in connection.execute(SQL["copies"], asked):
        copies.setdefault(row.copy_of, []).append(_copy_of_file(row))
    return [_receipts_of_file(row, copies.get(row.producer_id, ())) for row in rows]


def _copy_of_file(row: Record) -> CopyOfFile:
    return CopyOfFile(
        producer_id=row.producer_id,
        name=row.name,
        generation=row.generation,
        fingerprint=bytes(row.fingerprint),
        size=row.size,
    )


def _receipts_of_file(row: Record, copies: Sequence[CopyOfFile]) -> FileReceipts:
    spans = tuple(zip(row.positions, map(SpanSet.parse, row.spans), strict=True))
    return FileReceipts(
        producer_id=row.producer_id,
        name=row.name,
        generation=row.generation,
        size=row.size,
        digests=bytes(row.digests),
        spans=spans,
        spans_of_rows=tuple(each for each, rows in zip(spans, row.rows, strict=True) if rows),
        is_latest=row.is_latest,
        is_replaced=row.is_replaced,
        copies=tuple(copies),
    )
