"""What a rewind changes, and what must be true after it."""

from onceload_core.names import Position
from onceload_core.postgres import PostgresSnapshots, recover_state
from onceload_core.replay import replay
from onceload_jobs.recover.rewind import rewind

START = Position(0)


def back(loads, to=None, **options):
    position = None if to is None else Position(to)
    return rewind(loads.declared, loads.engine, to=position, **{"dry_run": False, **options})


def everything(loads):
    """All that a rewind may touch, but for the ledger that only grows."""
    return {
        "rows": loads.rows("id, note"),
        "states": loads.ledger.states("events").states,
        "quarantine": loads.ask(
            "SELECT producer_id, sequence_id, raw::text, state, settled_position FROM onceload.quarantine ORDER BY 1, 2"
        ),
        "messages": loads.ask("SELECT message::text FROM onceload.message ORDER BY 1"),
    }


def proven(loads):
    """The live states are what the whole ledger adds up to, however it is added."""
    for start in (START, *(each.position for each in PostgresSnapshots(loads.engine).list("events")[:1])):
        found = recover_state(loads.engine, "events", snapshot_position=start, dry_run=True)
        assert (found.differing, found.position) == ((), found.position_was)
    return replay({}, loads.ledger.entries("events", after=START)) == loads.ledger.states("events").states


def pipeline_file(loads, folder):
    path = folder / "events.yaml"
    path.write_text(
        f"pipeline: events\nsource: {{path: {loads.folder}/**/*.jsonl*, format: jsonl}}\n"
        "columns: {id: bigint not null, amount: 'numeric(12,2)', note: text}\n"
        f"target: {{table: public.target}}\npublish: {loads.declared.publish}\n"
    )
    return path
