"""Compare every value of every row: workers parse the sources again, and the server compares.

The parsed rows are in temporary tables of transactions that are rolled back; they take about as much space as the
source, up to a limit, after which the next files follow.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Engine

from onceload_core.names import Position, ProducerId
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.audit import AuditView, FileReceipts, RowsOfNoRecord, audit_view
from onceload_core.postgres.connection import settings_of
from onceload_core.spans import SpanSet
from onceload_jobs.executor.executor import Executor
from onceload_jobs.files.addresses import is_of_s3, known_access
from onceload_jobs.files.listing import url_of
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Declared, Source, Write
from onceload_jobs.plan.declaration_texts import of_rows, pipeline_with_declaration
from onceload_jobs.verify.at_once import AtOnce
from onceload_jobs.verify.bundles import Deadly, over_bundles
from onceload_jobs.verify.compare_rows import COMPARED_BYTES, Comparing, compare_rows
from onceload_jobs.verify.differing_rows import KINDS, DifferingRows, asked
from onceload_jobs.verify.findings import Difference, Findings, Kind
from onceload_jobs.verify.ranges import Range, shared
from onceload_jobs.verify.reread import Records
from onceload_jobs.write.sql import table_name
from onceload_jobs.write.target import columns_in, differing_columns


def compare_values(
    declared: Declared,
    engine: Engine,
    findings: Findings,
    *,
    executor: Executor,
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
        files = _Files(
            declared=declared,
            view=view,
            findings=findings,
            unproven=unproven,
            differing=differing,
            of_no_record=view.rows_of_no_record(table_name(declared.target)),
        )
        found = _compared(files, settings_of(engine), executor)
        found.report(findings, view)
        if rows and not files.are_there:
            reason = f"the values of {rows:,} rows were not compared, because a program gave them, and no file has them"
            findings.notes.append(Note(name=table_name(declared.target), reason=reason))
        return found.compared


def _compared(files: "_Files", ledger: LedgerSettings, executor: Executor) -> DifferingRows:
    """Compare the rows of each file by themselves, unless the rows of one may depend on another one."""
    declared = files.declared
    if declared.target.write is Write.MERGE or declared.producer is not None:
        at_once = AtOnce(
            declared=declared,
            view=files.view,
            findings=files.findings,
            is_of_records=files.is_of_records,
            left_out=files.left_out,
        )
        return at_once.compare(executor, files.ranges())
    comparing = Comparing(
        declared=declared,
        columns=columns_in(files.view.connection, declared),
        ledger=ledger,
        view=files.view.export(),
        pipeline_id=files.view.pipeline_id,
        is_of_records=files.is_of_records,
        at_most={kind: asked(files.findings, kind) for kind in KINDS},
        access=known_access() if is_of_s3(declared.source.path) else {},
    )
    return _compare_by_file(comparing, executor, files.ranges())


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
    if declared.message_id is not None and not declared.target.lineage:
        return "which of several records with one business id was loaded, only lineage shows (target.lineage)"
    return None


@dataclass(kw_only=True)
class _Files:
    """The files whose values can be compared; the others are left out."""

    declared: Declared
    view: AuditView
    findings: Findings
    unproven: AbstractSet[ProducerId]
    #: Producers with rows known to be missing; only their values are compared.
    differing: AbstractSet[ProducerId | None]
    of_no_record: RowsOfNoRecord
    are_there: bool = False
    left_out: set[ProducerId] = field(default_factory=set)

    @property
    def is_of_records(self) -> bool:
        """All rows that a load wrote name a record."""
        return not self.of_no_record.at_most

    def ranges(self) -> Iterator[Range]:
        others = _of_other_versions(self.declared, self.view)
        for file in self.view.files():
            self.are_there = True
            if file.is_replaced or not file.is_latest or file.producer_id in self.unproven:
                self.left_out.add(file.producer_id)
            elif not others.isdisjoint(position for position, _ in file.spans):
                reason = (
                    "its values were not compared, because a part of this file was loaded under an earlier version of "
                    "the pipeline file"
                )
                self.findings.notes.append(Note(name=file.name, reason=reason))
                self.left_out.add(file.producer_id)
            else:
                yield self._range(file)

    def _range(self, file: FileReceipts) -> Range:
        source = self.declared.source
        # If the records name their producers, the receipts of these count the rows.
        commits = file.spans if self.declared.producer else file.spans_of_rows
        url = url_of(source.path, file.name, root=source.root)
        # A merge may have replaced rows of these, although rows are only appended now. Only their values are compared.
        is_lacking = any(position <= self.of_no_record.merged for position, _ in file.spans)
        return Range(
            records=Records(producer_id=file.producer_id, name=file.name, url=url, commits=commits),
            has_other_rows=file.producer_id in self.differing or is_lacking,
            bytes=_bytes_of(source, file, SpanSet(span for _, spans in commits for span in spans)),
        )


def _bytes_of(source: Source, file: FileReceipts, brought: SpanSet) -> int:
    """About how much is read of a file."""
    if source.format.is_whole:
        return file.size or brought.count
    return brought.spans[-1].end if brought else 0


def _compare_by_file(comparing: Comparing, executor: Executor, ranges: Iterator[Range]) -> DifferingRows:
    """Compare rows of files that are independent: each worker compares some, in a transaction of its own."""
    found, source, pipeline = DifferingRows(), comparing.declared.source, comparing.declared.name
    for some in _waves(ranges, bytes_max=executor.slots * COMPARED_BYTES):
        size = -(-sum(each.weight for each in some) // executor.slots)
        bundles = shared(source, some, bytes_max=min(size, COMPARED_BYTES))
        for bundle, result in over_bundles(executor, partial(compare_rows, comparing), bundles, pipeline=pipeline):
            if isinstance(result, Deadly):
                found.deadly[bundle[0].records.name] = result.reason
            else:
                found.join(result)
    return found


def _waves(ranges: Iterator[Range], *, bytes_max: int) -> Iterator[list[Range]]:
    """As many files as are compared at once."""
    some, size = list[Range](), 0
    for each in ranges:
        some.append(each)
        size += each.bytes
        if size >= bytes_max:
            yield some
            some, size = [], 0
    if some:
        yield some
