"""Claims: the spans that one session is loading, and that no other may claim.

Each function is a part of the transaction of its caller.
"""

from collections.abc import Mapping

from sqlalchemy import Connection

from onceload_core.delivery import Kept
from onceload_core.errors import SessionFenced
from onceload_core.guards import refuse_change, refuse_taken
from onceload_core.names import Batch, DeliveryId, Position, ProducerId, SessionName
from onceload_core.ports import Claim, Outlook, Session
from onceload_core.postgres.commit import SQL
from onceload_core.postgres.connection import array
from onceload_core.postgres.pipeline_row import lock_pipeline_of
from onceload_core.postgres.producers import know
from onceload_core.postgres.stages import with_lost
from onceload_core.spans import SpanSet

_OUTLOOK = with_lost(SQL["outlook"])
_DROP_ENDED_CLAIMS = with_lost(SQL["drop_ended_claims"])


def outlook(connection: Connection, pipeline_id: int, *, asking: SessionName) -> Outlook:
    """The position of the ledger, and the producers that other sessions are loading."""
    rows = connection.execute(_OUTLOOK, {"pipeline_id": pipeline_id, "session": asking}).all()
    named = [row for row in rows if row.name is not None]
    claimed = [row for row in named if row.dead_letter is None]
    return Outlook(
        position=Position(rows[0].position),
        claimed=frozenset(row.name for row in claimed),
        dead_letters={row.name: DeliveryId(row.dead_letter) for row in named if row.dead_letter is not None},
        kept={row.name: Kept(batch=Batch(row.kept_by), until=row.kept_until) for row in claimed if row.kept_by},
    )


def claim(
    connection: Connection,
    session: Session,
    spans: Mapping[ProducerId, SpanSet],
    *,
    batch: Batch,
    lease_s: float,
    names: Mapping[ProducerId, str],
    unchanged: Outlook | None,
    only_names: bool,
) -> Claim:
    """Claim spans that are neither consumed nor claimed by another session."""
    # Under the commit lock, nothing is consumed or claimed between the check and the claim.
    found = lock_pipeline_of(connection, session)
    pipeline_id = found.pipeline_id
    if unchanged is not None:
        now = outlook(connection, pipeline_id, asking=session.name)
        committed = _committed_since(connection, pipeline_id, unchanged.position) if only_names else None
        refuse_change(session, unchanged, now, committed=committed, names=names.values())
    drop_ended(connection, pipeline_id)
    known = know(connection, pipeline_id, session.name, list(spans))
    refuse_taken(session, spans, known, names=names, position=Position(found.position))
    binds = {"pipeline_id": pipeline_id, "session": session.name, "epoch": session.epoch, "batch": batch}
    claimed = {"lease_s": lease_s, "producer_ids": array(spans), "spans": array(spans.values())}
    delivery_id = connection.execute(SQL["claim"], {**binds, **claimed}).scalar()
    if delivery_id is None:
        raise SessionFenced(session.pipeline, session.name, session.epoch)
    return Claim(delivery_id=DeliveryId(delivery_id), session=session, spans=spans)


def _committed_since(connection: Connection, pipeline_id: int, position: Position) -> frozenset[str]:
    binds = {"pipeline_id": pipeline_id, "position": position}
    return frozenset(connection.execute(SQL["committed_names"], binds).scalars())


def renew(connection: Connection, session: Session, *, lease_s: float) -> None:
    """Extend the claims of a session by another lease. Claims that have expired stay expired."""
    binds = {"pipeline": session.pipeline, "session": session.name, "epoch": session.epoch}
    session_id = connection.execute(SQL["find_session"], binds).scalar_one_or_none()
    if session_id is None:
        raise SessionFenced(session.pipeline, session.name, session.epoch)
    connection.execute(SQL["renew_claims"], {"session_id": session_id, "epoch": session.epoch, "lease_s": lease_s})


def drop_ended(connection: Connection, pipeline_id: int) -> None:
    """Drop the claims of planners that have expired or lost their stage."""
    connection.execute(_DROP_ENDED_CLAIMS, {"pipeline_id": pipeline_id})
