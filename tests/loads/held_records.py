"""Quarantined records: bad ones, and what became of them."""

from typing import Any

from onceload_core.names import Position
from onceload_core.postgres import recover_state
from onceload_core.postgres.quarantine import QuarantineId, Selection, choose
from onceload_core.replay import replay
from tests.loads.conftest import Loads

BROKEN = "{broken\n"


def held(loads: Loads) -> list[QuarantineId]:
    return [each.quarantine_id for each in choose(loads.engine, Selection(pipeline="events")).held]


def states_of(loads: Loads) -> list[tuple[Any, ...]]:
    return loads.ask("SELECT state, settled_position FROM onceload.quarantine ORDER BY sequence_id")


def is_sound(loads: Loads) -> bool:
    """Whether ledger, replay and live state agree."""
    entries = list(loads.ledger.entries("events", after=Position(0)))
    recovery = recover_state(loads.engine, "events", dry_run=True)
    return replay({}, entries) == loads.ledger.states("events").states and not recovery.differing
