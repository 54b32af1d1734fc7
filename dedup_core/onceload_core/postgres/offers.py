"""Offers: the work that a planner's claim covers, put on the board as deliveries.

Each function is a part of the transaction of its caller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from onceload_core.delivery import Mode, Rules
from onceload_core.names import Batch, DeliveryId, ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.connection import array, in_batches
from onceload_core.postgres.handing import REASON_MAX, SQL, taken_away
from onceload_core.postgres.pipeline_row import lock_pipeline_of
from onceload_core.spans import SpanSet


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Work to hand out: its spans, and the instructions for the worker."""

    spans: Mapping[ProducerId, SpanSet]
    work: str


def offer(
    connection: Connection, pipeline_id: int, claim: Claim, offers: Sequence[Offer], *, batch: Batch, rules: Rules
) -> None:
    """Turn a claim into deliveries that any session may take. This ends the claim."""
    _use(connection, pipeline_id, claim, "end_claim")
    if offers:
        first_id = _insert(connection, pipeline_id, offers, batch=batch)
        _line_up(connection, pipeline_id, first_id, rules=rules)


def set_aside(
    connection: Connection, pipeline_id: int, claim: Claim, offer: Offer, *, batch: Batch, reasons: Sequence[str]
) -> DeliveryId:
    """Make a dead letter of a part of a claim, which continues."""
    _use(connection, pipeline_id, claim, "keep_claim")
    session = claim.session
    its = {"batch": batch, "work": offer.work, "reasons": array(each[:REASON_MAX] for each in reasons)}
    by = {"pipeline_id": pipeline_id, "session": session.name, "epoch": session.epoch}
    delivery_id = DeliveryId(connection.execute(SQL["set_aside"], its | by).scalar_one())
    columns = [array(column) for column in zip(*((delivery_id, *each) for each in offer.spans.items()), strict=True)]
    connection.execute(SQL["offer_spans"], dict(zip(("delivery_ids", "producer_ids", "spans"), columns, strict=True)))
    return delivery_id


def _use(connection: Connection, pipeline_id: int, claim: Claim, statement: str) -> None:
    """End or keep the claim that is offered. If it has been lost, nothing of it may be offered."""
    session = claim.session
    lock_pipeline_of(connection, session)
    own = {"delivery_id": claim.delivery_id, "session": session.name, "epoch": session.epoch}
    if connection.execute(SQL[statement], {"pipeline_id": pipeline_id, **own}).rowcount != 1:
        raise taken_away(claim)


def _insert(
    connection: Connection,
    pipeline_id: int,
    offers: Sequence[Offer],
    *,
    batch: Batch,
) -> DeliveryId:
    ids: list[int] = []
    for some in in_batches(offers, weigh=lambda each: len(each.work)):
        works = array(each.work for each in some)
        binds = {"pipeline_id": pipeline_id, "batch": batch, "works": works}
        ids += connection.execute(SQL["offer_deliveries"], binds).scalars()
    spans = [
        (delivery_id, producer_id, its_spans)
        for delivery_id, each in zip(ids, offers, strict=True)
        for producer_id, its_spans in each.spans.items()
    ]
    for some_spans in in_batches(spans):
        columns = [array(column) for column in zip(*some_spans, strict=True)]
        connection.execute(
            SQL["offer_spans"], dict(zip(("delivery_ids", "producer_ids", "spans"), columns, strict=True))
        )
    return DeliveryId(ids[0])


def _line_up(connection: Connection, pipeline_id: int, first_id: DeliveryId, *, rules: Rules) -> None:
    if rules.mode is Mode.SESSION:
        connection.execute(SQL["add_sessions"], {"pipeline_id": pipeline_id, "names": array(rules.names)})
    if rules.mode is not Mode.SHARED:
        binds = {"pipeline_id": pipeline_id, "first_id": first_id, "sessions": rules.sessions}
        connection.execute(SQL[f"line_up_{rules.mode}"], binds)


def adopt_strays(connection: Connection, pipeline_id: int, *, rules: Rules) -> None:
    """In mode session: move deliveries of sessions that no longer exist to the first session."""
    binds = {"pipeline_id": pipeline_id, "names": array(rules.names)}
    connection.execute(SQL["add_sessions"], binds)
    connection.execute(SQL["adopt_strays"], binds)
