"""The statements that hand deliveries to sessions, and that take them from sessions again.

They are composed of parts, by the mode of the board and by the reason for the return.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, TextClause, text

from onceload_core.delivery import Mode, Rules
from onceload_core.errors import DeliveryTakenAway
from onceload_core.events import event
from onceload_core.names import DeliveryId
from onceload_core.ports import Claim
from onceload_core.postgres.connection import statements

SQL = statements("deliveries.sql")
REASON_MAX = 2_000


def _taking(which: str, *, is_kept: bool) -> TextClause:
    """One message to the server: do not wait for the disk, lock if there is an order, and hand out a delivery."""
    kept, lock = (SQL[f"kept_{which}"].text, SQL["lock_board"].text) if is_kept else (SQL["kept_none"].text, "")
    statement = SQL["take"].text.replace("{next}", SQL[f"next_{which}"].text).replace("{kept}", kept)
    return text(SQL["without_flush"].text + lock + statement)


TAKES = {mode: _taking(mode, is_kept=mode in (Mode.ORDERED, Mode.KEY_SHARED)) for mode in Mode}
END_LEASES = text(SQL["without_flush"].text + SQL["end_leases_of_another_clock"].text)


@dataclass(frozen=True, kw_only=True)
class Fallen:
    """A delivery that was taken from its session, and whether it is a dead letter now."""

    delivery_id: DeliveryId
    tries: int
    is_dead: bool


def fall_back(
    connection: Connection, pipeline_id: int, which: str, *, rules: Rules, reason: str, **binds: object
) -> tuple[Fallen, ...]:
    """Take some deliveries from the sessions that hold them, and count a try. Once committed, log them."""
    statement = SQL["fall_back"].text.replace("{which}", SQL[which].text)
    own = {"pipeline_id": pipeline_id, "deliveries_max": rules.deliveries_max, "reason": reason[:REASON_MAX]}
    rows = connection.execute(text(statement), {**own, **binds})
    return tuple(Fallen(delivery_id=row.delivery_id, tries=row.tries, is_dead=row.is_dead) for row in rows)


def log_dead(pipeline: str, fallen: Iterable[Fallen]) -> None:
    """Log the new dead letters, once they are committed."""
    for each in fallen:
        if each.is_dead:
            log_set_aside(pipeline, each.delivery_id, tries=each.tries)


def log_set_aside(pipeline: str, delivery_id: DeliveryId, *, tries: int) -> None:
    event("delivery_set_aside", level=logging.WARNING, pipeline=pipeline, delivery=delivery_id, tries=tries)


def taken_away(claim: Claim) -> DeliveryTakenAway:
    session = claim.session
    return DeliveryTakenAway(session.pipeline, claim.delivery_id, session.name, session.epoch, "no longer held")
