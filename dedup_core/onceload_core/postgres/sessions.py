"""Sessions of the board: their names, and how an epoch begins and ends.

What a session holds when its epoch ends waits again. The functions that take a connection are parts of the
transaction of their caller.
"""

import logging

from sqlalchemy import Connection, text

from onceload_core.checks import check_name
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import SettingRefused
from onceload_core.events import event
from onceload_core.names import Batch, SessionName
from onceload_core.ports import Session
from onceload_core.postgres.connection import Record, array
from onceload_core.postgres.handing import SQL, Fallen, fall_back

#: Sent together. What the second one sees is from after the wait for the locks.
_END_BATCH = text(SQL["lock_batch"].text + SQL["end_batch_and_give_back"].text)
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


def open_session(
    connection: Connection, pipeline_id: int, name: SessionName, *, rules: Rules, waits: bool
) -> tuple[Record, tuple[Fallen, ...]] | None:
    """Start a new epoch, which takes over from an earlier one, or with `waits` only if that has ended.

    Return it with what fell back from the earlier one.
    """
    binds = {"pipeline_id": pipeline_id, "session": name, "ack_deadline_s": rules.ack_deadline_s}
    before = connection.execute(SQL["look_at_session"], binds).one_or_none()
    is_alive = before is not None and before.is_alive
    if waits and is_alive:
        return None
    row = connection.execute(SQL["open_session"], binds).one()
    fallen: tuple[Fallen, ...] = ()
    if before is not None:
        ids = array([row.session_id])
        reason = f"a later epoch of session {name} took over"
        fallen = fall_back(connection, pipeline_id, "which_of_sessions", rules=rules, reason=reason, session_ids=ids)
    if rules.mode is Mode.KEY_SHARED and not is_alive:
        connection.execute(SQL["share_out_again"], binds)
    return row, fallen


def log_opened(session: Session) -> None:
    """Log a new epoch, once it is committed."""
    level = logging.DEBUG
    event("session_opened", level=level, pipeline=session.pipeline, session=session.name, epoch=session.epoch)


def end_sessions_of(
    connection: Connection, pipeline_id: int, batch: Batch, *, rules: Rules, reason: str
) -> tuple[Fallen, ...]:
    """End all sessions of a batch. What they hold waits again, and that counts as a try."""
    prefix = {"pipeline_id": pipeline_id, "prefix": session_of(batch, "")}
    found = connection.execute(SQL["sessions_of_batch"], prefix).all()
    if not found:
        return ()
    ids = array(row.session_id for row in found)
    connection.execute(SQL["end_sessions"], {"pipeline_id": pipeline_id, "session_ids": ids})
    return fall_back(connection, pipeline_id, "which_of_sessions", rules=rules, reason=reason, session_ids=ids)


def end_batch_of(connection: Connection, pipeline_id: int, batch: Batch, life: Session) -> bool:
    """End all sessions of a batch after its load; none begins before the transaction ends.

    If a later epoch of its planner has begun, that one has sessions of its own, and none ends. Returns whether there
    are staging tables, of any batch.
    """
    binds = {"pipeline_id": pipeline_id, "prefix": session_of(batch, ""), "name": life.name, "epoch": life.epoch}
    return bool(connection.execute(_END_BATCH, binds).scalar_one())
