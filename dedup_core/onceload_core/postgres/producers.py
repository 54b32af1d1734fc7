"""The producers of a pipeline: their ids, what is known of each, and the idle ones that are forgotten.

Each function is a part of the transaction of its caller.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from onceload_core.declaration import ROOT
from onceload_core.errors import LimitReached
from onceload_core.names import Batch, ProducerId, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Knowledge, KnownProducer
from onceload_core.postgres.commit import NO_ORIGIN, SQL, write_entry
from onceload_core.postgres.connection import Record, array, in_batches, on_table
from onceload_core.postgres.pipeline_row import lock_pipeline, take_position
from onceload_core.postgres.rows import state_in
from onceload_core.postgres.stages import with_lost
from onceload_core.replay import EntryKind
from onceload_core.spans import SpanSet

_KNOWN = with_lost(SQL["known"])
#: No session has this name, so the claims of all sessions are returned.
NO_SESSION = SessionName("")


def register(
    connection: Connection, pipeline: str, names: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], ProducerId]:
    """Return the producer id of each (name, generation). New producers have consumed nothing."""
    found = lock_pipeline(connection, pipeline)
    ids: dict[tuple[str, int], ProducerId] = {}
    producers = found.producers
    for some in in_batches(names):
        binds = {
            "pipeline_id": found.pipeline_id,
            "names": array(name for name, _ in some),
            "generations": array(generation for _, generation in some),
        }
        producers += connection.execute(SQL["register_producers"], binds).rowcount
        rows = connection.execute(SQL["producer_ids"], binds)
        ids.update({(row.name, row.generation): row.producer_id for row in rows})
    _count(connection, found, pipeline, producers)
    return ids


def register_all(connection: Connection, pipeline: str, table: str, *, generation: int) -> None:
    """Register each `name` of a table on the server, which holds each name once."""
    found = lock_pipeline(connection, pipeline)
    binds = {"pipeline_id": found.pipeline_id, "generation": generation}
    registered = connection.execute(on_table(SQL["register_all"], table), binds).rowcount
    _count(connection, found, pipeline, found.producers + registered)


def _count(connection: Connection, found: Record, pipeline: str, producers: int) -> None:
    if producers > found.producers_max:
        raise LimitReached(pipeline, "producers_max", found.producers_max, producers)
    connection.execute(SQL["count_producers"], {"pipeline_id": found.pipeline_id, "producers": producers})


def find(
    connection: Connection, pipeline_id: int, names: Sequence[str], *, here: Pipeline | None
) -> dict[str, KnownProducer]:
    """The latest generation of each registered name, with the claims of all sessions."""
    # Without a root, names do not identify files.
    where = {"root": here and here.declaration.terms.get(ROOT), "folder": here and here.folder}
    found: dict[str, Record] = {}
    for some in in_batches(names):
        binds = {"pipeline_id": pipeline_id, "names": array(some), **where}
        found.update({row.name: row for row in connection.execute(SQL["latest_generations"], binds)})
    known = know(connection, pipeline_id, NO_SESSION, [row.producer_id for row in found.values()])
    return {
        name: KnownProducer(row.producer_id, replace(known[row.producer_id], is_elsewhere=row.is_elsewhere))
        for name, row in found.items()
    }


def know(
    connection: Connection, pipeline_id: int, asking: SessionName, producer_ids: Sequence[ProducerId]
) -> dict[ProducerId, Knowledge]:
    """The input for `judge`, as one session sees it."""
    if not producer_ids:
        return {}
    binds = {"pipeline_id": pipeline_id, "session": asking, "producer_ids": array(producer_ids)}
    rows = connection.execute(_KNOWN, binds).all()
    known = {
        row.producer_id: Knowledge(
            state=state_in(row), claimed=SpanSet.parse(row.claimed) if row.claimed else SpanSet()
        )
        for row in rows
    }
    if copies := {row.producer_id: row.copy_of for row in rows if row.copy_of is not None}:
        rows = connection.execute(SQL["producer_states"], {**binds, "producer_ids": array({*copies.values()})}).all()
        shared = {row.producer_id: state_in(row) for row in rows}
        known |= {each: known[each].as_copy_of(its, shared.get(its)) for each, its in copies.items()}
    return known


def forget_idle(connection: Connection, pipeline: str) -> tuple[str, ...]:
    """Delete producers that records name, never files, if idle for the declared time. Returns their names."""
    taken = take_position(connection, pipeline)
    batch = Batch(f"forget-{taken.position}")
    binds = {"pipeline_id": taken.pipeline_id, "position": taken.position}
    forgotten = tuple(connection.execute(SQL["forget_producers"], binds).scalars())
    if forgotten:
        write_entry(connection, pipeline, {**binds, **NO_ORIGIN, "kind": EntryKind.FORGET, "batch": batch})
    else:
        # This returns the position. The ledger stays unchanged.
        connection.rollback()
    return forgotten
