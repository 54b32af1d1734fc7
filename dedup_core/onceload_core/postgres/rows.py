"""Conversion of rows of the ledger's tables into values of the core."""

from collections.abc import Iterator
from itertools import groupby

from sqlalchemy import Connection

from onceload_core.names import Position, Version
from onceload_core.postgres.connection import Record, statements
from onceload_core.replay import Condition, Counts, Entry, EntryKind, ProducerState, Receipt, Run
from onceload_core.spans import SpanSet

SQL = statements("ledger.sql")
_ENTRIES_PER_READ = 1_000


def state_in(row: Record) -> ProducerState:
    return ProducerState(
        name=row.name,
        generation=row.generation,
        consumed=SpanSet.parse(row.consumed),
        fingerprint=_bytes(row.fingerprint),
        size=row.size,
        condition=Condition(row.condition),
    )


def version_in(row: Record) -> Version:
    return Version(number=row.version, taken_at=row.declared_at)


def page_of_entries(connection: Connection, pipeline_id: int, after: Position) -> Iterator[Entry]:
    binds = {"pipeline_id": pipeline_id, "after": after, "at_most": _ENTRIES_PER_READ}
    rows = connection.execute(SQL["ledger_entries"], binds).all()
    if not rows:
        return
    between = {"pipeline_id": pipeline_id, "first": rows[0].position, "last": rows[-1].position}
    receipts = connection.execute(SQL["ledger_receipts"], between)
    by_position = {
        position: tuple(map(_receipt_in, some)) for position, some in groupby(receipts, lambda row: row.position)
    }
    for row in rows:
        yield _entry_in(row, by_position.get(row.position, ()))


def _receipt_in(row: Record) -> Receipt:
    return Receipt(
        producer_id=row.producer_id,
        producer=row.producer,
        generation=row.generation,
        spans=SpanSet.parse(row.spans),
        rows=row.rows,
        records=row.records,
        digest=_bytes(row.digest),
        fingerprint=_bytes(row.fingerprint),
        size=row.size,
        condition=Condition(row.condition),
    )


def _entry_in(row: Record, receipts: tuple[Receipt, ...]) -> Entry:
    run = Run(dag_id=row.dag_id, run_id=row.run_id, try_number=row.try_number) if row.dag_id else None
    return Entry(
        position=row.position,
        kind=EntryKind(row.kind),
        batch=row.batch,
        counts=Counts(loaded=row.loaded, duplicate=row.duplicate, quarantined=row.quarantined, filtered=row.filtered),
        bytes=row.bytes,
        committed_at=row.committed_at,
        session=row.session,
        epoch=row.epoch,
        run=run,
        receipts=receipts,
    )


def _bytes(value: memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
