"""The rows that were read again, in a temporary table, and how the rows of the target differ from them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlalchemy import Connection, TextClause

from onceload_core.names import ProducerId
from onceload_core.postgres.audit import AuditView
from onceload_core.postgres.connection import Record, statements
from onceload_jobs.pipeline.columns import LINEAGE, Column
from onceload_jobs.verify.findings import Difference, Findings, Kind
from onceload_jobs.verify.reread import POSITION
from onceload_jobs.write.binary_copy import copy_encoded, copy_in
from onceload_jobs.write.sql import filled, quoted
from onceload_jobs.write.writer import copy_columns

SQL = statements("values.sql", package=__package__)
SHOWN_CHARACTERS = 60
#: The kinds of differences that comparing values finds, in the order in which they are named.
KINDS = (Kind.VALUE_CHANGED, Kind.ROW_MISSING, Kind.ROW_FROM_NOWHERE)


class RowsReread:
    """A temporary table, until the transaction ends."""

    def __init__(self, connection: Connection, columns: tuple[Column, ...]) -> None:
        self._connection = connection
        self.columns = columns
        #: Columns with values of the files that the target no longer has.
        self.dropped: tuple[Column, ...] = ()
        connection.execute(filled(SQL["create_reread"], columns=copy_columns(columns, lineage=True)))

    def copy(self, rows: pa.Table, dropped: tuple[Column, ...]) -> None:
        self._add(dropped)
        columns = self.columns + dropped
        copy_in(self._connection, rows, table="reread", names=rows.column_names, columns=columns)

    def copy_encoded(self, encoded: Iterator[bytes], dropped: tuple[Column, ...]) -> None:
        """The same for rows that a worker encoded."""
        self._add(dropped)
        names = [each.name for each in (*self.columns, *LINEAGE)] + [POSITION] + [each.name for each in dropped]
        copy_encoded(self._connection, encoded, table="reread", names=names)

    def _add(self, dropped: tuple[Column, ...]) -> None:
        for column in dropped:
            if column not in self.dropped:
                self._connection.execute(filled(SQL["add_dropped"], name=quoted(column.name)))
                self.dropped += (column,)

    def analyze(self) -> None:
        self._connection.execute(SQL["analyze"])

    def empty(self) -> None:
        """Free the space of rows that are compared."""
        self._connection.execute(SQL["empty"])


@dataclass(frozen=True, kw_only=True)
class Row:
    """One value that differs, or a row that is missing or surplus."""

    producer_id: ProducerId | None
    sequence_id: int | None
    column: str | None
    expected: str
    found: str

    @property
    def place(self) -> tuple[bool, int, bool, int, str]:
        """For the order: nulls are last, as in Postgres."""
        of_none, at_none = self.producer_id is None, self.sequence_id is None
        return of_none, self.producer_id or 0, at_none, self.sequence_id or 0, self.column or ""


@dataclass(kw_only=True)
class DifferingRows:
    """The first rows of each kind, and how many there are."""

    #: How many rows were compared.
    compared: int = 0
    rows: dict[Kind, list[Row]] = field(default_factory=dict)
    counts: Counter[Kind] = field(default_factory=Counter)
    #: Files that end each process that reads them, and how.
    deadly: dict[str, str] = field(default_factory=dict)

    def ask(self, connection: Connection, question: TextClause, kind: Kind, binds: Mapping[str, object]) -> None:
        """Add the answer to a question."""
        found = connection.execute(question, {**binds, "shown": SHOWN_CHARACTERS}).all()
        if found:
            self.add(kind, map(row_of, found), count=found[0].counted)

    def add(self, kind: Kind, rows: Iterable[Row], *, count: int) -> None:
        self.rows.setdefault(kind, []).extend(rows)
        self.counts[kind] += count

    def join(self, other: "DifferingRows") -> None:
        """Add what another worker found."""
        self.compared += other.compared
        for kind, rows in other.rows.items():
            self.add(kind, rows, count=other.counts[kind])

    def report(self, findings: Findings, view: AuditView) -> None:
        """Name the first rows of each kind, in their order in the files, whichever worker found them."""
        for name, reason in sorted(self.deadly.items()):
            findings.add(
                Difference(
                    producer=name,
                    kind=Kind.FILE_UNREADABLE,
                    expected="the values of its records",
                    found=reason,
                )
            )
        for kind in filter(self.rows.get, KINDS):
            first = sorted(self.rows[kind], key=lambda row: row.place)[: asked(findings, kind)]
            for row in first:
                findings.add(_difference(row, kind, view))
            findings.counts[kind] += self.counts[kind] - len(first)


def asked(findings: Findings, kind: Kind) -> int:
    """How many rows of a kind to ask for: the first one also has the total count."""
    return max(1, findings.room(kind))


def row_of(found: Record) -> Row:
    return Row(
        producer_id=found.producer_id,
        sequence_id=found.sequence_id,
        column=found.column_name,
        expected=found.expected,
        found=found.found,
    )


def _difference(row: Row, kind: Kind, view: AuditView) -> Difference:
    name = None if row.producer_id is None else view.find_name(row.producer_id)
    return Difference(
        producer=name or "(a row without a producer)",
        kind=kind,
        sequence_id=row.sequence_id,
        column=row.column,
        expected=row.expected,
        found=row.found,
    )
