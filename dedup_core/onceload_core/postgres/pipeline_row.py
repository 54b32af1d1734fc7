"""The row of a pipeline: looked up, locked, and taking the next position of its ledger."""

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload_core.declaration import refuse_other_version
from onceload_core.errors import NotFound, SessionFenced
from onceload_core.pause import Pause
from onceload_core.ports import Commit, Session, Settlement
from onceload_core.postgres.connection import Record, execute_prepared, statements
from onceload_core.postgres.own_transaction import ended, has_committed
from onceload_core.postgres.rows import version_in

_SQL = statements("ledger.sql")


def get_pipeline(connection: Connection, pipeline: str) -> Record:
    return _one_pipeline(connection, "find_pipeline", pipeline)


class PipelineIds:
    """The numbers of pipelines, each looked up once. A rename keeps them."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, connection: Connection, pipeline: str) -> int:
        if pipeline not in self._known:
            self._known[pipeline] = int(get_pipeline(connection, pipeline).pipeline_id)
        return self._known[pipeline]

    def known(self, pipeline: str) -> int | None:
        return self._known.get(pipeline)

    def note(self, pipeline: str, pipeline_id: int) -> None:
        self._known[pipeline] = pipeline_id


def lock_pipeline(connection: Connection, pipeline: str) -> Record:
    return _one_pipeline(connection, "lock_pipeline", pipeline)


def lock_pipeline_against_snapshots(connection: Connection, pipeline: str) -> Record:
    return _one_pipeline(connection, "lock_pipeline_against_snapshots", pipeline)


def hold_pipeline(connection: Connection, pipeline: str) -> Record:
    return _one_pipeline(connection, "hold_pipeline", pipeline)


def take_position(connection: Connection, pipeline: str) -> Record:
    """Take the next position, and with it the commit lock; the row also has the settings of the pipeline."""
    return _one_pipeline(connection, "take_position", pipeline)


def take_position_in(
    transaction_id: str, connection: Connection, commit: Commit[Connection] | Settlement[Connection]
) -> Record:
    """The same for a session: refused if a later epoch took over, or if another version is in force.

    Also refused in a transaction other than the one that was begun: rows and receipts must commit together.
    """
    session = commit.session
    life = {"session": session.name, "epoch": session.epoch, "version": session.version.number}
    try:
        taken = _one_pipeline(connection, "take_position_of_session", session.pipeline, **life)
    except DBAPIError as error:
        # A connection that is lost cannot be asked.
        if not error.connection_invalidated and has_committed(connection, transaction_id):
            raise ended(connection, commit.session.pipeline, commit.batch) from None
        raise
    if taken.transaction_id != transaction_id:
        raise ended(connection, commit.session.pipeline, commit.batch)
    refuse_other_version(session.pipeline, session.version, version_in(taken))
    if not taken.is_latest:
        raise SessionFenced(session.pipeline, session.name, session.epoch)
    return taken


def pause_in(found: Record) -> Pause | None:
    """The pause that a row of the pipeline holds."""
    if found.paused_at is None:
        return None
    return Pause(at=found.paused_at, by=found.paused_by, why=found.pause_reason)


def lock_pipeline_of(connection: Connection, session: Session) -> Record:
    """Lock the pipeline for a session: refused if another version of the declaration is in force."""
    found = lock_pipeline(connection, session.pipeline)
    refuse_other_version(session.pipeline, session.version, version_in(found))
    return found


def _one_pipeline(connection: Connection, statement: str, pipeline: str, **binds: object) -> Record:
    found = execute_prepared(connection, _SQL[statement], {"pipeline": pipeline, **binds}).one_or_none()
    if found is None:
        raise NotFound("pipeline", pipeline, tuple(connection.execute(_SQL["pipeline_names"]).scalars()))
    return found
