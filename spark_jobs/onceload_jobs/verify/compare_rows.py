"""What a worker does with records of files: it reads them again, and compares the rows that they brought.

Only the server knows when two values of a type are equal. The rows are in a temporary table of a transaction that is
rolled back, and that reads in the view of the command: all workers compare with the rows of one moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.audit import shared_view
from onceload_core.postgres.connection import array
from onceload_core.spans import SEQUENCE_END
from onceload_jobs.files.addresses import use_access
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.verify.differing_rows import DifferingRows, RowsReread
from onceload_jobs.verify.findings import Kind
from onceload_jobs.verify.questions import Questions
from onceload_jobs.verify.ranges import Range
from onceload_jobs.verify.reread import reread

#: How much is compared at once, because temporary tables take about as much space as the files.
COMPARED_BYTES = 8 * 2**30


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """Everything that a worker needs; it is pickled and sent to it."""

    declared: Declared
    columns: tuple[Column, ...]
    ledger: LedgerSettings
    #: The name of the view.
    view: str
    pipeline_id: int
    #: All rows that a load wrote name a record.
    is_of_records: bool
    #: How many rows of each kind are named.
    at_most: Mapping[Kind, int]
    #: Credentials for the object store of the files.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)


def compare_rows(comparing: Comparing, ranges: Sequence[Range]) -> DifferingRows:
    """Compare the rows of some ranges."""
    use_access(comparing.access)
    engine = connect(comparing.ledger)
    try:
        with shared_view(engine, comparing.declared.name, comparing.view) as connection:
            return _compared(comparing, ranges, connection)
    finally:
        engine.dispose()


def _compared(comparing: Comparing, ranges: Sequence[Range], connection: Connection) -> DifferingRows:
    found, reread_rows = DifferingRows(), RowsReread(connection, comparing.columns)
    taken, held_bytes = list[Range](), 0
    for each in ranges:
        taken.append(each)
        for rows, dropped in reread(comparing.declared, comparing.columns, each.records):
            reread_rows.copy(rows, dropped)
            found.compared += rows.num_rows
            held_bytes += rows.nbytes
        if held_bytes > COMPARED_BYTES:
            _ask(comparing, taken, connection, reread_rows, found)
            reread_rows.empty()
            taken, held_bytes = [], 0
    if taken:
        _ask(comparing, taken, connection, reread_rows, found)
    return found


def _ask(
    comparing: Comparing,
    taken: Sequence[Range],
    connection: Connection,
    rows: RowsReread,
    found: DifferingRows,
) -> None:
    rows.analyze()
    questions = Questions(comparing.declared, comparing.columns, rows.dropped, is_of_records=comparing.is_of_records)
    binds = {
        "pipeline_id": comparing.pipeline_id,
        "taken": array(each.records.producer_id for each in taken),
        "firsts": array(each.first for each in taken),
        "lasts": array(each.last for each in taken),
        "sequence_end": SEQUENCE_END,
        "left_out": array(()),
        "differing": array(each.records.producer_id for each in taken if each.has_other_rows),
    }
    asked = {Kind.VALUE_CHANGED: questions.changed, Kind.ROW_FROM_NOWHERE: questions.surplus}
    if comparing.declared.message_id is None:
        # Otherwise a missing row may be a duplicate by business id.
        asked[Kind.ROW_MISSING] = questions.missing
    for kind, question in asked.items():
        found.ask(connection, question, kind, {**binds, "at_most": comparing.at_most[kind]})
