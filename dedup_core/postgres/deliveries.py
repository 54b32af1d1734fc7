"""The board in Postgres: deliveries that wait, that sessions hold, and dead letters.

The database is authoritative. Its statements implement `dedup_core.delivery`, and random histories compare the two.
A crash of the server may lose changes made here without harm: a lost hand-out is handed out again, and only the
commit of a load, which is never lost, ends a delivery.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from sqlalchemy import Connection, Engine, TextClause, text

from dedup_core.declaration import refuse_other_version
from dedup_core.delivery import Mode, Rules
from dedup_core.errors import DeliveryTakenAway, SessionFenced, SettingRefused
from dedup_core.names import Batch, DeliveryId, Epoch, ProducerId, SessionName, Version
from dedup_core.ports import Claim, Session, check_name
from dedup_core.postgres.commit import get_pipeline, lock_pipeline_of
from dedup_core.postgres.connection import array, in_batches, statements, translated
from dedup_core.spans import SpanSet

SQL = statements("deliveries.sql")
#: Separates the name of a batch from those of its sessions. Names of batches and consumers must not contain it.
OF_BATCH = "/"


def session_of(batch: Batch, name: str) -> SessionName:
    """The name of a session of a batch, so that a later run of the batch finds it."""
    return SessionName(f"{batch}{OF_BATCH}{name}")


def check_own_name(what: str, name: str) -> None:
    """Refuse a name that could be taken for a session of a batch."""
    check_name(what, name)
    if OF_BATCH in name or not name.isprintable():
        raise SettingRefused(what, repr(name), f"a printable name without {OF_BATCH}")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Work to hand out: its spans, and the instructions for the worker."""

    spans: Mapping[ProducerId, SpanSet]
    work: str


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
class Dead:
    """A delivery that has used up its tries, and the reason of the last failure."""

    work: str
    tries: int
    reason: str


class PostgresDeliveries:
    """All deliveries and sessions of one pipeline."""

    def __init__(self, engine: Engine, pipeline: str, rules: Rules) -> None:
        self._engine = engine
        self._pipeline = pipeline
        self._session_ids: dict[SessionName, int] = {}
        self.rules = rules

    # For planners.

    def offer(self, claim: Claim, offers: Sequence[Offer], *, batch: Batch) -> None:
        """Turn a claim into deliveries that any session may take. This ends the claim."""
        with translated(pipeline=self._pipeline, doing="offering deliveries"), self._engine.begin() as connection:
            lock_pipeline_of(connection, claim.session)
            if connection.execute(SQL["end_claim"], self._claim_binds(claim)).rowcount != 1:
                raise _taken_away(claim)
            if offers:
                first_id = self._insert(connection, offers, batch=batch)
                self._line_up(connection, first_id)

    def offer_batch(self, claim: Claim, offers: Sequence[Offer], *, batch: Batch) -> None:
        """Offer the deliveries of a batch that is published at once, instead of those offered before.

        The claim still covers all of it.
        """
        with translated(pipeline=self._pipeline, doing="offering deliveries"), self._engine.begin() as connection:
            lock_pipeline_of(connection, claim.session)
            if connection.execute(SQL["keep_claim"], self._claim_binds(claim)).rowcount != 1:
                raise _taken_away(claim)
            connection.execute(SQL["withdraw"], {"delivery_id": claim.delivery_id})
            if offers:
                self._insert(connection, offers, batch=batch, parent=claim.delivery_id)

    def adopt_strays(self) -> None:
        """In mode session: move deliveries of sessions that no longer exist to the first session."""
        with translated(pipeline=self._pipeline, doing="reassigning deliveries"), self._engine.begin() as connection:
            binds = {**self._binds, "names": array(self.rules.names)}
            connection.execute(SQL["add_sessions"], binds)
            connection.execute(SQL["adopt_strays"], binds)

    def dead_of(self, claim: Claim) -> tuple[Dead, ...]:
        """The dead letters of a batch."""
        with translated(pipeline=self._pipeline, doing="reading dead letters"), self._engine.begin() as connection:
            rows = connection.execute(SQL["dead_of"], {"delivery_id": claim.delivery_id}).all()
        return tuple(Dead(work=row.work, tries=row.tries, reason=row.reason or "") for row in rows)

    def set_aside(self, claim: Claim) -> None:
        """Detach the dead letters of a batch from it, so that they outlive it."""
        with translated(pipeline=self._pipeline, doing="keeping dead letters"), self._engine.begin() as connection:
            connection.execute(SQL["set_aside"], {"delivery_id": claim.delivery_id})

    def end_batch(self, batch: Batch, *, reason: str | None, life: Session | None = None) -> None:
        """End all sessions of a batch. What they hold waits again, and with a reason that counts as a try.

        With a session of its planner, only if that is the latest epoch: a later one has sessions of its own.
        """
        with translated(pipeline=self._pipeline, doing="ending sessions"), self._engine.begin() as connection:
            if life is not None:
                binds = {**self._binds, "session": life.name, "epoch": life.epoch}
                if connection.execute(SQL["lock_life"], binds).rowcount != 1:
                    return
            prefix = session_of(batch, "")
            ids = connection.execute(SQL["sessions_of_batch"], {**self._binds, "prefix": prefix}).scalars().all()
            binds = {**self._binds, "session_ids": array(ids)}
            connection.execute(SQL["end_sessions"], binds)
            if reason is None:
                connection.execute(SQL["give_back"], binds)
            else:
                self._fall_back(connection, "which_of_sessions", reason=reason, **binds)

    def open_work(self, batch: Batch, *, is_staged: bool, session: SessionName | None = None) -> OpenWork:
        """The deliveries that wait or are held, and whether any is of this batch or for this session."""
        binds = {**self._binds, "batch": batch, "is_staged": is_staged, "session": session}
        with translated(pipeline=self._pipeline, doing="reading deliveries"), self._engine.begin() as connection:
            row = connection.execute(SQL["open_deliveries"], binds).one()
        return OpenWork(count=row.all, waiting=row.waiting, of_batch=row.of_batch, of_session=row.of_session)

    def is_being_planned(self) -> bool:
        """Whether a planner holds a claim that is not offered yet."""
        with translated(pipeline=self._pipeline, doing="looking for planners"), self._engine.begin() as connection:
            return bool(connection.execute(SQL["is_being_planned"], self._binds).scalar_one())

    def holders(self) -> Mapping[str, datetime]:
        """Some of the sessions that hold deliveries, and their deadlines."""
        with translated(pipeline=self._pipeline, doing="reading deliveries"), self._engine.begin() as connection:
            return {row.name: row.deadline_at for row in connection.execute(SQL["holders"], self._binds)}

    # For workers.

    def open_session(self, name: SessionName, *, version: Version | None = None, waits: bool = False) -> Session | None:
        """Start a new epoch of a session, which takes over from an earlier one, or with `waits` only if that has ended.

        The default version is the one in force.
        """
        check_name("session", name)
        with translated(pipeline=self._pipeline, doing="opening a session"), self._engine.begin() as connection:
            version = self._checked(connection, version)
            binds = {**self._binds, "session": name, "ack_deadline_s": self.rules.ack_deadline_s}
            before = connection.execute(SQL["look_at_session"], binds).one_or_none()
            is_alive = before is not None and before.is_alive
            if waits and is_alive:
                return None
            row = connection.execute(SQL["open_session"], binds).one()
            if before is not None:
                reason = f"a later epoch of session {name} took over"
                self._fall_back(connection, "which_of_sessions", reason=reason, session_ids=array([row.session_id]))
            if self.rules.mode is Mode.KEY_SHARED and not is_alive:
                connection.execute(SQL["share_out_anew"], binds)
        self._session_ids[name] = row.session_id
        return Session(pipeline=self._pipeline, name=name, epoch=Epoch(row.epoch), version=version)

    def _checked(self, connection: Connection, version: Version | None) -> Version:
        """The version in force. Any other one is refused."""
        in_force: Version = connection.execute(SQL["version"], self._binds).scalar_one()
        if version is not None:
            refuse_other_version(self._pipeline, version, in_force)
        return in_force

    def renew(self, session: Session) -> None:
        """Heartbeat: extend the lease of a session and the deadlines of its deliveries."""
        with translated(pipeline=self._pipeline, doing="renewing a lease"), self._engine.begin() as connection:
            connection.execute(SQL["without_flush"])
            binds = {**self._binds, **self._life(session), "ack_deadline_s": self.rules.ack_deadline_s}
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
        with translated(pipeline=self._pipeline, doing="returning deliveries"), self._engine.begin() as connection:
            life = self._life(session)
            binds = {**self._binds, **life, "ack_deadline_s": self.rules.ack_deadline_s}
            # The first statement checks that this is the latest epoch.
            if connection.execute(SQL[and_then], binds).rowcount == 1:
                connection.execute(SQL["give_back"], {**binds, "session_ids": array([life["session_id"]])})

    def take(self, session: Session) -> Handed | None:
        """Hand the next available delivery to a session, or None if there is none."""
        return self._take(session, _TAKES[self.rules.mode])

    def take_staged(self, session: Session, *, lost: Collection[Batch] = ()) -> Handed | None:
        """The same for batches that are published at once. They have no inner order."""
        return self._take(session, _TAKE_STAGED, lost=array(lost))

    def _take(self, session: Session, statement: TextClause, **binds: object) -> Handed | None:
        binds |= {**self._binds, **self._life(session), "ack_deadline_s": self.rules.ack_deadline_s}
        binds["version"] = session.version
        with translated(pipeline=self._pipeline, doing="taking a delivery"), self._engine.connect() as connection:
            # One message to the server is one transaction.
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            row = alone.execute(statement, binds).one_or_none()
            if row is None:
                self._checked(alone, session.version)
        if row is None:
            raise SessionFenced(self._pipeline, session.name, session.epoch)
        if row.delivery_id is None:
            return None
        claim = Claim(delivery_id=DeliveryId(row.delivery_id), session=session, spans={})
        return Handed(claim=claim, batch=Batch(row.batch), work=row.work, tries=row.tries)

    def stage(self, handed: Handed) -> None:
        """Mark a delivery as completely staged."""
        with translated(pipeline=self._pipeline, doing="staging a delivery"), self._engine.begin() as connection:
            if connection.execute(SQL["stage"], self._hand(handed)).rowcount != 1:
                raise _taken_away(handed.claim)

    def note(self, handed: Handed, work: str) -> None:
        """Record the progress for the next worker, in case this one is lost."""
        with translated(pipeline=self._pipeline, doing="recording progress"), self._engine.begin() as connection:
            connection.execute(SQL["without_flush"])
            if connection.execute(SQL["note"], {**self._hand(handed), "work": work}).rowcount != 1:
                raise _taken_away(handed.claim)

    def part_with(self, handed: Handed, part: Offer, *, rest: str, tries: int, reason: str) -> None:
        """Turn a part of a delivery into a dead letter. The rest stays held, with a new number of tries."""
        session = handed.claim.session
        binds = {
            **self._hand(handed),
            "work": part.work,
            "producer_ids": array(part.spans),
            "rest": rest,
            "tries": tries,
            "deliveries_max": self.rules.deliveries_max,
            "session": session.name,
            "reason": reason[:_REASON_MAX],
        }
        with translated(pipeline=self._pipeline, doing="adding a dead letter"), self._engine.begin() as connection:
            if connection.execute(SQL["part_with"], binds).one_or_none() is None:
                raise _taken_away(handed.claim)

    def nack(self, handed: Handed, reason: str) -> None:
        """Return a failed delivery, to be delivered again at once."""
        with translated(pipeline=self._pipeline, doing="returning a delivery"), self._engine.begin() as connection:
            if not self._fall_back(connection, "which_one", reason=reason, **self._hand(handed)):
                raise _taken_away(handed.claim)

    def expire(self, *, is_staged: bool = False) -> int:
        """Expire the deliveries whose deadline has passed, except those of fixed sessions."""
        reason = "its deadline passed without a heartbeat from its session"
        # Batches that are published at once have no fixed sessions.
        which = "which_late_strays" if self.rules.mode is Mode.SESSION and not is_staged else "which_late"
        with translated(pipeline=self._pipeline, doing="expiring deliveries"), self._engine.begin() as connection:
            connection.execute(SQL["without_flush"])
            return self._fall_back(connection, which, reason=reason, names=array(self.rules.names))

    # Internals.

    @cached_property
    def _binds(self) -> dict[str, object]:
        with translated(pipeline=self._pipeline, doing="reading the ledger"), self._engine.begin() as connection:
            return {"pipeline_id": get_pipeline(connection, self._pipeline).pipeline_id}

    def _claim_binds(self, claim: Claim) -> dict[str, object]:
        session = claim.session
        own = {"delivery_id": claim.delivery_id, "session": session.name, "epoch": session.epoch}
        return {**self._binds, **own}

    def _life(self, session: Session) -> dict[str, object]:
        return {"session_id": self._session_ids[session.name], "epoch": session.epoch}

    def _hand(self, handed: Handed) -> dict[str, object]:
        return {"delivery_id": handed.id, **self._life(handed.claim.session)}

    def _insert(
        self,
        connection: Connection,
        offers: Sequence[Offer],
        *,
        batch: Batch,
        parent: DeliveryId | None = None,
    ) -> DeliveryId:
        ids: list[int] = []
        for some in in_batches(offers, weigh=lambda offer: len(offer.work)):
            works = array(each.work for each in some)
            binds = {**self._binds, "batch": batch, "parent_id": parent, "works": works}
            ids += connection.execute(SQL["offer_deliveries"], binds).scalars()
        spans = [
            (delivery_id, producer_id, its_spans)
            for delivery_id, offer in zip(ids, offers, strict=True)
            for producer_id, its_spans in offer.spans.items()
        ]
        for some_spans in in_batches(spans):
            columns = [array(column) for column in zip(*some_spans, strict=True)]
            connection.execute(
                SQL["offer_spans"], dict(zip(("delivery_ids", "producer_ids", "spans"), columns, strict=True))
            )
        return DeliveryId(ids[0])

    def _line_up(self, connection: Connection, first_id: DeliveryId) -> None:
        binds = {**self._binds, "first_id": first_id, "sessions": self.rules.sessions}
        if self.rules.mode is Mode.SESSION:
            connection.execute(SQL["add_sessions"], {**self._binds, "names": array(self.rules.names)})
        if self.rules.mode is not Mode.SHARED:
            connection.execute(SQL[f"line_up_{self.rules.mode}"], binds)

    def _fall_back(self, connection: Connection, which: str, *, reason: str, **binds: object) -> int:
        statement = SQL["fall_back"].text.replace("{which}", SQL[which].text)
        bound = {**self._binds, "deliveries_max": self.rules.deliveries_max, "reason": reason[:_REASON_MAX], **binds}
        return connection.execute(text(statement), bound).rowcount


_REASON_MAX = 2_000


def _taken_away(claim: Claim) -> DeliveryTakenAway:
    session = claim.session
    return DeliveryTakenAway(session.pipeline, claim.delivery_id, session.name, session.epoch, "no longer held")


def _taking(which: str, *, is_kept: bool) -> TextClause:
    """One message to the server: no wait for the disk, the lock if there is an order, and the hand-out."""
    kept, lock = (SQL[f"kept_{which}"].text, SQL["lock_board"].text) if is_kept else (SQL["kept_none"].text, "")
    statement = SQL["take"].text.replace("{next}", SQL[f"next_{which}"].text).replace("{kept}", kept)
    return text(SQL["without_flush"].text + lock + statement)


_TAKES = {mode: _taking(mode, is_kept=mode in (Mode.ORDERED, Mode.KEY_SHARED)) for mode in Mode}
_TAKE_STAGED = _taking("staged", is_kept=False)
