"""Sums over the entries and receipts of the ledger: what commits have brought."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from onceload_core.names import Batch, Position, ProducerId
from onceload_core.ports import Outcome
from onceload_core.postgres.commit import SQL
from onceload_core.postgres.connection import array
from onceload_core.replay import Counts, Proof


def outcome_of(connection: Connection, pipeline_id: int, batch: Batch, *, after: Position) -> Outcome:
    """The sum of what a batch committed since a position."""
    row = connection.execute(SQL["outcome"], {"pipeline_id": pipeline_id, "batch": batch, "after": after}).one()
    counts = Counts(loaded=row.loaded, duplicate=row.duplicate, quarantined=row.quarantined, filtered=row.filtered)
    return Outcome(
        position=Position(row.position),
        counts=counts,
        bytes=row.bytes,
        has_quarantined=row.has_quarantined,
        has_replaced=row.has_replaced,
    )


def replaced_by(connection: Connection, pipeline_id: int, batch: Batch, *, after: Position) -> dict[str, int]:
    """The files that a batch has replaced since a position, each with the number of its old rows."""
    binds = {"pipeline_id": pipeline_id, "batch": batch, "after": after}
    old = [ProducerId(each) for each in connection.execute(SQL["replaced_by"], binds).scalars()]
    promised = rows_promised(connection, pipeline_id, old) if old else {}
    return {promise.name: promise.rows for promise in promised.values()}


def proof_of(connection: Connection, pipeline_id: int, producer_id: ProducerId, *, end: int | None) -> Proof:
    """The spans read of one producer in all its commits, or in those that end before a sequence id."""
    binds = {"pipeline_id": pipeline_id, "producer_id": producer_id, "end": end}
    row = connection.execute(SQL["proof"], binds).one()
    return Proof(records=row.records, digests=bytes(row.digests))


def all_bad(connection: Connection, pipeline_id: int, batch: Batch) -> dict[str, int]:
    """For each producer from which this batch loaded no row: the number of its records still in quarantine."""
    rows = connection.execute(SQL["all_bad"], {"pipeline_id": pipeline_id, "batch": batch})
    return {row.producer: row.records for row in rows}


def done_by(connection: Connection, pipeline_id: int, batch: Batch, *, after: Position | None) -> dict[str, Position]:
    """The files that a batch has replaced, or loaded since a position, each with its last position."""
    binds = {"pipeline_id": pipeline_id, "batch": batch, "after": after}
    return {row.producer: Position(row.position) for row in connection.execute(SQL["done_by"], binds)}


@dataclass(frozen=True, kw_only=True)
class Unattributed:
    """A commit with rows that do not name their producer, and one of its producers."""

    name: str
    position: Position
    rows: int


def rows_unattributed(
    connection: Connection, pipeline_id: int, producer_ids: Sequence[ProducerId]
) -> tuple[Unattributed, ...]:
    """The commits in force of some producers whose rows carry no producer id."""
    binds = {"pipeline_id": pipeline_id, "producer_ids": array(producer_ids)}
    rows = connection.execute(SQL["rows_unattributed"], binds)
    return tuple(Unattributed(name=row.name, position=Position(row.position), rows=row.rows) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The number of rows that a generation has in the target, by the receipts in force."""

    name: str
    rows: int


def rows_promised(
    connection: Connection, pipeline_id: int, producer_ids: Sequence[ProducerId]
) -> dict[ProducerId, Promise]:
    """The rows of some generations by the receipts in force."""
    binds = {"pipeline_id": pipeline_id, "producer_ids": array(producer_ids)}
    rows = connection.execute(SQL["rows_promised"], binds)
    return {row.producer_id: Promise(name=row.name, rows=row.rows) for row in rows}
