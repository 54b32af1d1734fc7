"""Compare the rows that name no record and no producer.

A transform made them of several records, or a version without lineage loaded them. So only their number is known.
"""

from collections.abc import Iterator

from onceload_core.postgres.audit import RowsOfNoRecord
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.columns import PRODUCER_ID
from onceload_jobs.verify.findings import Difference, Findings, Kind


def compare_rows_of_no_record(table: str, expected: RowsOfNoRecord, findings: Findings, *, found: int) -> None:
    """Compare the number of rows without a producer with the ledger."""
    is_exact = expected.at_least == expected.at_most
    if not is_exact:
        reason = (
            f"its rows without {PRODUCER_ID} are not counted exactly: it should have {expected.at_least:,} to "
            f"{expected.at_most:,} of them, because {' or '.join(_causes(expected))} may have removed some"
        )
        findings.notes.append(Note(name=table, reason=reason))
    if found < expected.at_least:
        _add(findings, Kind.ROW_MISSING, ("" if is_exact else "at least ", expected.at_least), found)
    if found > expected.at_most:
        _add(findings, Kind.ROW_FROM_NOWHERE, ("" if is_exact else "at most ", expected.at_most), found)


def _causes(expected: RowsOfNoRecord) -> Iterator[str]:
    if expected.merged:
        yield "a merge"
    if expected.is_replaced:
        yield "a replacement"
    if expected.ours < expected.at_most:
        yield "another pipeline"


def _add(findings: Findings, kind: Kind, limit: tuple[str, int], found: int) -> None:
    words, expected = limit
    difference = Difference(
        producer=f"(rows without {PRODUCER_ID})",
        kind=kind,
        expected=f"{words}{expected:,} rows, which the ledger counts",
        found=f"{found:,} rows",
    )
    findings.add(difference, count=abs(expected - found))
