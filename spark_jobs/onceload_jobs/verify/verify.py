"""Verify a pipeline: compare files with their receipts byte by byte, and rows with their receipts one by one.

Nothing is changed. Rows and receipts are read at one moment, so that concurrent loads make no difference. Receipts
count rows and do not know their values: the deep form proves that each row has the values of its record.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

import pyarrow as pa
from sqlalchemy import Engine

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import OnceloadError
from onceload_core.names import Position, ProducerId
from onceload_core.pipeline import Guarantee
from onceload_core.postgres.audit import AuditView, OpenSpans, ReceiptOfRows, RowCounts, audit_view
from onceload_core.postgres.rewound import Owed
from onceload_core.spans import SpanSet
from onceload_jobs.executor.executor import IN_PROCESS, Executor
from onceload_jobs.files.listing import url_of
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.pipeline.declared import Declared, Write
from onceload_jobs.verify.files import compare_files
from onceload_jobs.verify.findings import Difference, Findings, Kind
from onceload_jobs.verify.no_record import compare_rows_of_no_record
from onceload_jobs.write.sql import table_name


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The numbers of things that were compared, and all differences."""

    pipeline: str
    position: Position
    is_deep: bool
    files: int
    bytes: int
    #: The number that the receipts state; None if counts do not apply.
    rows: int | None
    #: Rows whose values were compared one by one.
    rows_compared: int
    #: By kind, named or not.
    counts: dict[Kind, int]
    differences: tuple[Difference, ...]
    #: Files and rows that could not be compared, and the reasons.
    not_compared: tuple[Note, ...]

    @property
    def differing(self) -> int:
        return sum(self.counts.values())


def verify(declared: Declared, engine: Engine, *, deep: bool = False, executor: Executor = IN_PROCESS) -> Verification:
    """Compare the sources and the target with the ledger; the deep form parses the sources again.

    The executor reads the files. All executors find the same differences, in the same order.
    """
    findings = Findings()
    of_rows = _compare_rows(declared, engine, findings)
    at, open_spans, owed = of_rows.position, of_rows.open_spans, of_rows.owed
    compared = compare_files(declared, engine, findings, at, executor=executor, open_spans=open_spans, owed=owed)
    rows_compared = 0
    if deep:
        # Imported late, because only the deep form needs it.
        from onceload_jobs.verify.values import compare_values

        rows_compared = compare_values(
            declared,
            engine,
            findings,
            executor=executor,
            unproven=compared.unproven,
            differing=of_rows.differing,
            rows=of_rows.expected,
        )
    return Verification(
        pipeline=declared.name,
        position=of_rows.position,
        is_deep=deep,
        files=compared.files,
        bytes=compared.bytes,
        rows=of_rows.expected,
        rows_compared=rows_compared,
        counts=dict(findings.counts),
        differences=tuple(findings.named),
        not_compared=tuple(findings.notes),
    )


@dataclass(frozen=True, kw_only=True)
class _OfOneMoment:
    """The state of the database at one moment."""

    position: Position
    #: The number that the receipts state; None if counts do not apply.
    expected: int | None
    #: Producers with rows that differ from their receipts.
    differing: set[ProducerId | None]
    open_spans: tuple[OpenSpans, ...]
    owed: tuple[Owed, ...]


def _compare_rows(declared: Declared, engine: Engine, findings: Findings) -> _OfOneMoment:
    """Count everything at once; look for single records only where counts differ."""
    with audit_view(engine, declared.name) as view:
        again = _compare_receipts(view, findings)
        expected, differing = _count_rows(declared, view, findings, again=again)
        _compare_quarantine(declared, view, findings)
        return _OfOneMoment(
            position=view.position,
            expected=expected,
            differing=differing,
            open_spans=view.open_spans(),
            owed=view.owed(),
        )


def _compare_receipts(view: AuditView, findings: Findings) -> int:
    """Receipts that overlap: the number of producers with records that were loaded more than once."""
    again = view.loaded_again()
    for each in again:
        findings.add(
            Difference(
                producer=each.producer,
                kind=Kind.LOADED_AGAIN,
                span=str(each.spans),
                expected=f"loaded once, at position {each.first}",
                found=f"loaded again at position {each.again}",
            )
        )
    return len(again)


def _count_rows(
    declared: Declared, view: AuditView, findings: Findings, *, again: int
) -> tuple[int | None, set[ProducerId | None]]:
    table = table_name(declared.target)
    columns = view.columns_of(table)
    if not columns and view.position:
        expected = "the table that rows were loaded into"
        findings.add(Difference(producer=table, kind=Kind.TABLE_MISSING, expected=expected, found="no such table"))
    if not columns:
        return None, set()
    of_no_record = view.rows_of_no_record(table)
    reason = _uncountable(declared, columns)
    if reason:
        findings.notes.append(Note(name=table, reason=reason))
        if of_no_record.at_most and _has_lineage(declared, columns):
            found_without = view.count_without_producer(table)
            compare_rows_of_no_record(table, of_no_record, findings, found=found_without)
        return None, set()
    if of_no_record.merged:
        reason = "rows that a merge may have replaced are not expected"
        findings.notes.append(Note(name=table, reason=reason))
    found = view.count_rows(table, merged=of_no_record.merged)
    if found.repeated > again:
        allowed = found.repeated - again
        reason = f"not counted: {allowed} producers were loaded more than once, as at_least_once allows"
        findings.notes.append(Note(name=table, reason=reason))
    if of_no_record.at_most:
        compare_rows_of_no_record(table, of_no_record, findings, found=found.without_producer)
    for counts in found.differing:
        if counts.producer_id is not None or not of_no_record.at_most:
            _Rows(declared, view, findings, counts).compare()
    total = None if of_no_record.merged else found.expected + of_no_record.ours
    return total, {counts.producer_id for counts in found.differing}


def _uncountable(declared: Declared, columns: frozenset[str]) -> str | None:
    if declared.target.write is Write.MERGE:
        deep = f". `onceload verify --deep {PIPELINE_FILE}` compares them by key"
        is_compared = declared.transform is None and declared.producer is None
        return f"its rows are merged by key, so counts do not apply{deep if is_compared else ''}"
    if not _has_lineage(declared, columns):
        return "its rows have no lineage (target.lineage), so they cannot be compared"
    return None


def _has_lineage(declared: Declared, columns: frozenset[str]) -> bool:
    return declared.target.lineage and columns >= {PRODUCER_ID, SEQUENCE}


class _Rows:
    """A receipt with missing or duplicated rows, or the rows without a receipt."""

    def __init__(self, declared: Declared, view: AuditView, findings: Findings, counts: RowCounts) -> None:
        self._declared = declared
        self._table = table_name(declared.target)
        self._view = view
        self._findings = findings
        self._counts = counts

    def compare(self) -> None:
        counts = self._counts
        if counts.position is None or counts.producer_id is None:
            self._name_uncovered()
            return
        # If one record may become several rows, none of them is a duplicate.
        distinct = counts.sequences if counts.is_one_row_each else counts.rows
        all_wanted = {
            Kind.ROW_MISSING: counts.expected - distinct,
            Kind.ROW_DUPLICATED: counts.rows - distinct,
            Kind.ROW_FROM_NOWHERE: distinct - counts.expected,
        }
        wanted = {kind: count for kind, count in all_wanted.items() if count > 0}
        if not any(map(self._findings.room, wanted)):
            # Enough are named; querying the table for each of the others would take too long.
            self._findings.counts.update(wanted)
            return
        self._name(self._view.receipt(counts.producer_id, counts.position), counts.producer_id, wanted)

    def _name_uncovered(self) -> None:
        producer_id, kind = self._counts.producer_id, Kind.ROW_FROM_NOWHERE
        room = self._findings.room(kind)
        ids: tuple[int | None, ...] = ()
        if room:
            spans = SpanSet() if producer_id is None else self._view.spans_of(producer_id)
            ids = self._view.sequences_outside(self._table, producer_id, spans, at_most=room)
        for sequence_id in ids:
            expected = "no row: no receipt covers it"
            producer = self._producer_of(producer_id)
            self._findings.add(
                Difference(producer=producer, kind=kind, sequence_id=sequence_id, expected=expected, found="a row")
            )
        self._findings.counts[kind] += self._counts.rows - len(ids)

    def _producer_of(self, producer_id: ProducerId | None) -> str:
        if producer_id is None:
            return "(a row without _producer_id)"
        return self._view.find_name(producer_id) or f"(unknown producer {producer_id})"

    def _name(self, receipt: ReceiptOfRows, producer_id: ProducerId, wanted: dict[Kind, int]) -> None:
        """Compare the expected with the existing rows side by side."""
        left = {kind: min(count, self._findings.room(kind)) for kind, count in wanted.items()}
        named: Counter[Kind] = Counter()
        expected = self._expected_ids(receipt, producer_id)
        found = self._view.sequences(self._table, producer_id, receipt.spans)
        for kind, sequence_id in _apart(expected, found):
            if named[kind] < left.get(kind, 0):
                named[kind] += 1
                self._add(receipt, kind, sequence_id=sequence_id)
            if named.total() == sum(left.values()):
                break
        for kind, count in wanted.items():
            if not named[kind]:
                # It can no longer be known which ones they are.
                self._add(receipt, kind, sequence_id=None, count=count)
            else:
                self._findings.counts[kind] += count - named[kind]

    def _add(self, receipt: ReceiptOfRows, kind: Kind, *, sequence_id: int | None, count: int = 1) -> None:
        expected, found = _IN_WORDS[kind]
        if sequence_id is None:
            expected, found = f"{self._counts.expected} rows", f"{self._counts.rows} rows, {count} of them {kind}"
        self._findings.add(
            Difference(
                producer=receipt.producer,
                kind=kind,
                sequence_id=sequence_id,
                span=str(receipt.spans),
                expected=expected,
                found=found,
            ),
            count=count,
        )

    def _expected_ids(self, receipt: ReceiptOfRows, producer_id: ProducerId) -> Iterator[int] | None:
        """The sequence ids of all rows of a receipt in order, or None if unknown."""
        left = receipt.spans - SpanSet.of_ids(receipt.held)
        if left.count == self._counts.expected:
            # Every id is a row, as where ids count rows.
            return (sequence_id for span in left for sequence_id in range(span.first, span.end))
        if not receipt.is_of_file or not self._counts.is_one_row_each:
            return None
        return self._reread(receipt, producer_id)

    def _reread(self, receipt: ReceiptOfRows, producer_id: ProducerId) -> Iterator[int] | None:
        from onceload_jobs.verify.reread import Records, reread_ids

        quarantined = frozenset((*receipt.held, *receipt.retried))
        source, name = self._declared.source, receipt.producer
        url = url_of(source.path, name, root=source.root)
        commits = ((self._counts.position or self._view.position, receipt.spans),)
        records = Records(producer_id=producer_id, name=name, url=url, commits=commits)

        def read() -> Iterator[int]:
            ids = reread_ids(self._declared, records)
            return merge((each for each in ids if each not in quarantined), receipt.retried)

        try:
            # Read twice instead of held: the rows of a receipt might not fit into memory.
            is_as_it_was = sum(1 for _ in read()) == self._counts.expected
        except (OnceloadError, OSError, pa.ArrowException):
            # An unreadable file is a difference of its own.
            return None
        return read() if is_as_it_was else None


_IN_WORDS = {
    Kind.ROW_MISSING: ("a row", "none"),
    Kind.ROW_DUPLICATED: ("one row", "more than one"),
    Kind.ROW_FROM_NOWHERE: ("no row: no record begins here", "a row"),
}


def _apart(expected: Iterator[int] | None, found: Iterator[int]) -> Iterator[tuple[Kind, int]]:
    """The differences of two sorted sequences of ids; repeated ids show even without expected ones."""
    wanted = None if expected is None else next(expected, None)
    before: int | None = None
    for sequence_id in found:
        if sequence_id == before:
            yield Kind.ROW_DUPLICATED, sequence_id
            continue
        before = sequence_id
        if expected is None:
            continue
        while wanted is not None and wanted < sequence_id:
            yield Kind.ROW_MISSING, wanted
            wanted = next(expected, None)
        if wanted == sequence_id:
            wanted = next(expected, None)
        else:
            yield Kind.ROW_FROM_NOWHERE, sequence_id
    while expected is not None and wanted is not None:
        yield Kind.ROW_MISSING, wanted
        wanted = next(expected, None)


def _compare_quarantine(declared: Declared, view: AuditView, findings: Findings) -> None:
    """Quarantined records are part of the promise, like rows."""
    # A record that is quarantined again, as at_least_once allows, is stored once.
    is_counted = declared.pipeline.guarantee is not Guarantee.AT_LEAST_ONCE
    for counts in view.count_quarantined() if is_counted else ():
        findings.add(
            Difference(
                producer=f"(position {counts.position}, batch {counts.batch})",
                kind=Kind.QUARANTINE_DIFFERS,
                expected=f"{counts.expected} quarantined records",
                found=f"{counts.found}",
            )
        )
    for producer_id, sequence_id in view.quarantined_outside():
        findings.add(
            Difference(
                producer=view.find_name(producer_id) or f"(unknown producer {producer_id})",
                kind=Kind.QUARANTINE_DIFFERS,
                sequence_id=sequence_id,
                expected="no quarantined record: no receipt covers it",
                found="a quarantined record",
            )
        )
