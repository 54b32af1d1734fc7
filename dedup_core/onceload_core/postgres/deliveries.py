"""The board in Postgres: deliveries that wait, that sessions hold, and dead letters.

The database is authoritative. Its statements implement `onceload_core.delivery`, and random histories compare the two.
A crash of the server may lose changes made here without harm: a lost hand-out is handed out again, and only the
commit of a load, which is never lost, ends a delivery.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from sqlalchemy import Connection, Engine

from onceload_core.checks import check_name
from onceload_core.declaration import refuse_other_version
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import SessionFenced
from onceload_core.events import event
from onceload_core.names import Batch, DeliveryId, Epoch, SessionName, Version
from onceload_core.ports import Claim, Session
from onceload_core.postgres.batches import STAGE_KEPT_S
from onceload_core.postgres.connection import array, transaction, translated
from onceload_core.postgres.handing import (
    END_LEASES,
    REASON_MAX,
    SQL,
    TAKES,
    fall_back,
    log_dead,
    log_set_aside,
    taken_away,
)
from onceload_core.postgres.offers import Offer, adopt_strays, offer, set_aside
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.rows import version_in
from onceload_core.postgres.sessions import end_batch_of, end_sessions_of, log_opened, open_session
from onceload_core.postgres.stages import with_lost

_IS_BEING_PLANNED = with_lost(SQL["is_being_planned"])


@dataclass(frozen=True, kw_only=True)
class Handed:
    """A delivery that a session holds."""

    claim: Claim
    batch: Batch
    work: str
    #: Including this one.
    tries: int

    @property
    def id(self) -> DeliveryId:
        return self.claim.delivery_id


@dataclass(frozen=True, kw_only=True)
class OpenWork:
    """The deliveries that wait or are held."""

    count: int
    waiting: int
    of_batch: bool
    of_session: bool


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A session that holds something: a delivery, or the claim of a planner, until its lease ends."""

    session: str
    delivery: int
    until: datetime


class PostgresDeliveries:
    """All deliveries and sessions of one pipeline."""

    def __init__(self, engine: Engine, pipeline: str, rules: Rules, *, pipeline_id: int | None = None) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._known_id = pipeline_id
        self._session_ids: dict[SessionName, int] = {}
        self.rules = rules

    # For planners.

    def offer(self, claim: Claim, offers: Sequence[Offer], *, batch: Batch) -> None:
        """Turn a claim into deliveries that any session may take. This ends the claim."""
        with self._doing("offering deliveries") as connection:
            offer(connection, self._pipeline_id, claim, offers, batch=batch, rules=self.rules)

    def adopt_strays(self) -> None:
        """In mode session: move deliveries of sessions that no longer exist to the first session."""
        with self._doing("reassigning deliveries") as connection:
            adopt_strays(connection, self._pipeline_id, rules=self.rules)

    def set_aside(self, claim: Claim, offer: Offer, *, batch: Batch, reasons: Sequence[str]) -> None:
        """Make a dead letter of a part of a claim, with the reason of each try."""
        with self._doing("adding a dead letter") as connection:
            delivery_id = set_aside(connection, self._pipeline_id, claim, offer, batch=batch, reasons=reasons)
        log_set_aside(self._pipeline, delivery_id, tries=len(reasons))

    def end_earlier(self, batch: Batch, *, reason: str) -> None:
        """End all sessions of an earlier call of a batch. What they hold waits again, and that counts as a try."""
        with self._doing("ending sessions") as connection:
            fallen = end_sessions_of(connection, self._pipeline_id, batch, rules=self.rules, reason=reason)
        log_dead(self._pipeline, fallen)

    def end_batch(self, batch: Batch, *, life: Session) -> bool:
        """End all sessions of a batch, unless a later epoch of its planner has begun. What they hold waits again.

        Returns whether there are staging tables, of any batch.
        """
        with self._doing("ending sessions") as connection:
            return end_batch_of(connection, self._pipeline_id, batch, life)

    def open_work(self, batch: Batch, *, session: SessionName | None = None) -> OpenWork:
        """The deliveries that wait or are held, and whether any is of this batch or for this session."""
        binds = {"pipeline_id": self._pipeline_id, "batch": batch, "session": session}
        with self._doing("reading deliveries") as connection:
            row = connection.execute(SQL["open_deliveries"], binds).one()
        return OpenWork(count=row.all, waiting=row.waiting, of_batch=row.of_batch, of_session=row.of_session)

    def is_being_planned(self) -> bool:
        """Whether a planner holds a claim that is not offered yet."""
        with self._doing("looking for planners") as connection:
            return bool(connection.execute(_IS_BEING_PLANNED, {"pipeline_id": self._pipeline_id}).scalar_one())

    def holders(self) -> tuple[Holder, ...]:
        """Some of the sessions that hold deliveries."""
        with self._doing("reading deliveries") as connection:
            rows = connection.execute(SQL["holders"], {"pipeline_id": self._pipeline_id}).all()
        return tuple(
            Holder(session=row.name, delivery=row.delivery, until=row.deadline_at.astimezone(UTC)) for row in rows
        )

    # For workers.

    def open_session(self, name: SessionName, *, version: Version | None = None, waits: bool = False) -> Session | None:
        """Start a new epoch of a session, which takes over from an earlier one, or with `waits` only if that has ended.

        The default version is the one in force.
        """
        check_name("session", name)
        with self._doing("opening a session") as connection:
            version = _checked(connection, self._pipeline, self._pipeline_id, version)
            opened = open_session(connection, self._pipeline_id, name, rules=self.rules, waits=waits)
            if opened is None:
                return None
        row, fallen = opened
        log_dead(self._pipeline, fallen)
        self._session_ids[name] = row.session_id
        session = Session(pipeline=self._pipeline, name=name, epoch=Epoch(row.epoch), version=version)
        log_opened(session)
        return session

    def renew(self, session: Session) -> None:
        """Heartbeat: extend the lease of a session and the deadlines of its deliveries."""
        with self._doing("renewing a lease") as connection:
            connection.execute(SQL["without_flush"])
            binds = self._lease(session)
            if connection.execute(SQL["move_lease"], binds).rowcount != 1:
                raise SessionFenced(self._pipeline, session.name, session.epoch)
            connection.execute(SQL["move_deadlines"], binds)

    def close_session(self, session: Session) -> None:
        """Exit cleanly: return what is held, without counting a try, and end the lease."""
        self._give_back(session, and_then="end_lease")

    def give_back(self, session: Session) -> None:
        """Return what is held, without counting a try. The session continues."""
        self._give_back(session, and_then="move_lease")

    def _give_back(self, session: Session, *, and_then: str) -> None:
        with self._doing("returning deliveries") as connection:
            binds = self._lease(session)
            # The first statement checks that this is the latest epoch.
            if connection.execute(SQL[and_then], binds).rowcount == 1:
                connection.execute(SQL["give_back"], {**binds, "session_ids": array([binds["session_id"]])})

    def take(self, session: Session) -> Handed | None:
        """Hand the next available delivery to a session, or None if there is none."""
        statement = TAKES[self.rules.mode]
        binds = {**self._lease(session), "version": session.version.number}
        with translated(pipeline=self._pipeline, doing="taking a delivery"), self._engine.connect() as connection:
            # One message to the server is one transaction.
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            row = alone.execute(statement, binds).one_or_none()
            if row is None:
                _checked(alone, self._pipeline, self._pipeline_id, session.version)
        if row is None:
            raise SessionFenced(self._pipeline, session.name, session.epoch)
        if row.delivery_id is None:
            return None
        claim = Claim(delivery_id=DeliveryId(row.delivery_id), session=session, spans={})
        handed = Handed(claim=claim, batch=Batch(row.batch), work=row.work, tries=row.tries)
        _log_taken(handed)
        return handed

    def note(self, handed: Handed, work: str) -> None:
        """Record the progress for the next worker, in case this one is lost."""
        with self._doing("recording progress") as connection:
            connection.execute(SQL["without_flush"])
            if connection.execute(SQL["note"], {**self._hand(handed), "work": work}).rowcount != 1:
                raise taken_away(handed.claim)

    def part_with(self, handed: Handed, part: Offer, *, rest: str, tries: int, reason: str) -> None:
        """Turn a part of a delivery into a dead letter. The rest stays held, with a new number of tries."""
        binds = self._hand(handed) | _parting(part, handed, self.rules, reason) | {"rest": rest, "tries": tries}
        with self._doing("adding a dead letter") as connection:
            delivery_id = connection.execute(SQL["part_with"], binds).scalar_one_or_none()
            if delivery_id is None:
                raise taken_away(handed.claim)
        log_set_aside(self._pipeline, delivery_id, tries=self.rules.deliveries_max)

    def nack(self, handed: Handed, reason: str) -> None:
        """Return a failed delivery, to be delivered again at once."""
        with self._doing("returning a delivery") as connection:
            binds = self._hand(handed)
            fallen = fall_back(connection, self._pipeline_id, "which_one", rules=self.rules, reason=reason, **binds)
            if not fallen:
                raise taken_away(handed.claim)
        log_dead(self._pipeline, fallen)

    def end_leases(self) -> None:
        """End the leases that no clock of today can have given."""
        with self._doing("ending leases") as connection:
            connection.execute(END_LEASES, _longest_leases(self._pipeline_id, self.rules))

    def expire(self) -> int:
        """The same, and expire the deliveries whose deadline has passed, except those of fixed sessions."""
        which = "which_late_strays" if self.rules.mode is Mode.SESSION else "which_late"
        own, longest = array(self.rules.names), _longest_leases(self._pipeline_id, self.rules)
        with self._doing("expiring deliveries") as connection:
            connection.execute(END_LEASES, longest)
            fallen = fall_back(connection, self._pipeline_id, which, rules=self.rules, reason=_EXPIRED, names=own)
        log_dead(self._pipeline, fallen)
        return len(fallen)

    def _doing(self, what: str) -> AbstractContextManager[Connection]:
        """A transaction. The pipeline is looked up before it: inside, that would take a second connection."""
        _ = self._pipeline_id
        return transaction(self._engine, self._pipeline, doing=what)

    @cached_property
    def _pipeline_id(self) -> int:
        if self._known_id is not None:
            return self._known_id
        with transaction(self._engine, self._pipeline, doing="reading the ledger") as connection:
            return int(get_pipeline(connection, self._pipeline).pipeline_id)

    def _lease(self, session: Session) -> dict[str, object]:
        return {"pipeline_id": self._pipeline_id, "ack_deadline_s": self.rules.ack_deadline_s, **self._life(session)}

    def _life(self, session: Session) -> dict[str, object]:
        return {"session_id": self._session_ids[session.name], "epoch": session.epoch}

    def _hand(self, handed: Handed) -> dict[str, object]:
        return {"delivery_id": handed.id, **self._life(handed.claim.session)}


def _checked(connection: Connection, pipeline: str, pipeline_id: int, version: Version | None) -> Version:
    """The version in force. Any other one is refused."""
    in_force = version_in(connection.execute(SQL["version"], {"pipeline_id": pipeline_id}).one())
    if version is not None:
        refuse_other_version(pipeline, version, in_force)
    return in_force


def _longest_leases(pipeline_id: int, rules: Rules) -> dict[str, object]:
    lease_max_s = max(STAGE_KEPT_S, rules.ack_deadline_s)
    return {"pipeline_id": pipeline_id, "lease_max_s": lease_max_s, "kept_s": STAGE_KEPT_S}


_EXPIRED = "its deadline passed without a heartbeat from its session"


def _parting(part: Offer, handed: Handed, rules: Rules, reason: str) -> dict[str, object]:
    return {
        "work": part.work,
        "producer_ids": array(part.spans),
        "deliveries_max": rules.deliveries_max,
        "session": handed.claim.session.name,
        "reason": reason[:REASON_MAX],
    }


def _log_taken(handed: Handed) -> None:
    session = handed.claim.session
    event(
        "delivery_taken",
        level=logging.DEBUG,
        pipeline=session.pipeline,
        batch=handed.batch,
        session=session.name,
        epoch=session.epoch,
        delivery=handed.id,
        tries=handed.tries,
    )
