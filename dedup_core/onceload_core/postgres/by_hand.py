"""What a person does with deliveries: list and describe them, redrive a dead letter, abandon one.

What a live worker or planner holds can be abandoned too: each commit checks that it is still held.
"""

from dataclasses import dataclass
from shlex import quote
from typing import Any

from sqlalchemy import Connection, Engine, text

from onceload_core.delivery import Event, State, next_state
from onceload_core.errors import NotFound, SettingRefused
from onceload_core.events import event
from onceload_core.names import DeliveryId
from onceload_core.postgres.connection import change, statements, transaction
from onceload_core.postgres.pipeline_row import get_pipeline

SQL = statements("by_hand.sql")


def list_deliveries(engine: Engine, pipeline: str, *, state: State | None, at_most: int) -> list[dict[str, object]]:
    """The deliveries of a pipeline, the oldest first."""
    with transaction(engine, pipeline, doing="reading deliveries") as connection:
        binds = {"pipeline_id": get_pipeline(connection, pipeline).pipeline_id, "state": state, "at_most": at_most}
        return [dict(row) for row in connection.execute(SQL["list_deliveries"], binds).mappings()]


@dataclass(frozen=True, kw_only=True)
class Described:
    """Everything known of one delivery: its fields, its spans, and each failed try."""

    delivery: dict[str, object]
    spans: list[dict[str, object]]
    failures: list[dict[str, object]]


def describe(engine: Engine, delivery_id: DeliveryId, *, at_most: int) -> Described:
    """Read everything known of one delivery: its spans, and each failed try."""
    with transaction(engine, "(any)", doing="reading a delivery") as connection:
        binds = {"delivery_id": delivery_id, "at_most": at_most}
        found = _get(connection, delivery_id)
        del found["parent_id"]
        spans = [dict(row) for row in connection.execute(SQL["spans_of_delivery"], binds).mappings()]
        failures = [dict(row) for row in connection.execute(SQL["failures_of_delivery"], binds).mappings()]
    return Described(delivery=found, spans=spans, failures=failures)


def redrive(engine: Engine, pipeline: str, delivery_id: DeliveryId, *, by: str) -> None:
    """Reset the tries of a dead letter. One of a batch that is already published is planned again."""
    found = _change(engine, pipeline, delivery_id, Event.REDRIVE)
    event("delivery_redelivered", **_logged(found), by=by)


def abandon(engine: Engine, pipeline: str, delivery_id: DeliveryId, *, by: str) -> None:
    """Give up a delivery, so that its spans are planned again."""
    found = _change(engine, pipeline, delivery_id, Event.ABANDON)
    event("delivery_abandoned", **_logged(found), by=by)


def _change(engine: Engine, pipeline: str, delivery_id: DeliveryId, asked: Event) -> dict[str, Any]:
    """Return the delivery as it was before."""
    see = f"onceload deliveries list --pipeline {quote(pipeline)}"
    with change(engine, pipeline, doing="changing a delivery", see=see) as connection:
        row = _get(connection, delivery_id, and_then="FOR UPDATE OF delivery")
        is_held = asked is Event.ABANDON and row["state"] == State.HELD
        next_state(State(row["state"]), Event.WITHDRAW if is_held else asked)
        if row["parent_id"] is not None:
            found = f"a delivery of batch {row['batch']}, which is being loaded"
            raise SettingRefused(
                asked, found, "a delivery of no running batch: this one ends with its batch, published or not"
            )
        is_planned_again = asked is Event.ABANDON or row["is_staged"]
        connection.execute(SQL["abandon" if is_planned_again else "redrive"], {"delivery_id": delivery_id})
    return row


def _logged(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("pipeline", "batch", "delivery", "tries")}


def _get(connection: Connection, delivery_id: DeliveryId, *, and_then: str = "") -> dict[str, Any]:
    """One delivery."""
    statement = text(f"{SQL['one_delivery'].text} {and_then}")
    found = connection.execute(statement, {"delivery_id": delivery_id}).mappings().one_or_none()
    if found is None:
        raise NotFound("delivery", str(delivery_id))
    return dict(found)
