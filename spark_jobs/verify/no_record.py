"""Compare the rows that a transform made of several records.

They name no record and no producer, so only their number is known: the ledger states how many of them were loaded.
"""

from dedup_core.postgres.audit import RowsOfNoRecord
from spark_jobs.files.notes import Note
from spark_jobs.pipeline.columns import PRODUCER_ID
from spark_jobs.verify.findings import Difference, Findings, Kind


def compare_rows_of_no_record(table: str, expected: RowsOfNoRecord, findings: Findings, *, found: int) -> None:
    """Compare the number of rows without a producer with the ledger."""
    if expected.is_merged:
        reason = f"its rows without {PRODUCER_ID} are not counted exactly: a merge may have replaced some of them"
        findings.notes.append(Note(name=table, reason=reason))
    elif found < expected.rows:
        _add(findings, Kind.ROW_MISSING, expected.rows, found)
    if found > expected.rows:
        _add(findings, Kind.ROW_FROM_NOWHERE, expected.rows, found)


def _add(findings: Findings, kind: Kind, expected: int, found: int) -> None:
    difference = Difference(
        producer=f"(rows without {PRODUCER_ID})",
        kind=kind,
        expected=f"{expected:,} rows, which the ledger counts",
        found=f"{found:,} rows",
    )
    findings.add(difference, count=abs(expected - found))
