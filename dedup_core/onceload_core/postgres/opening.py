"""How an epoch of a session begins; parts of the transaction of their caller."""

from dataclasses import dataclass

from sqlalchemy import Connection, text

from onceload_core.checks import check_name
from onceload_core.declaration import refuse_other_version
from onceload_core.names import Epoch, Position, SessionName, Version
from onceload_core.ports import Session
from onceload_core.postgres.connection import statements
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.rows import version_in

_SQL = statements("ledger.sql")
#: Sent together. What the second one sees is from after the wait for an earlier life of the session.
_OPEN_SESSION_OF_LOAD = text(_SQL["open_session"].text + _SQL["opened_session"].text)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A session of a load, and its pipeline at that moment."""

    session: Session
    position: Position
    #: Since the last snapshot, or else the first commit.
    commits_since: int
    seconds_since: float


def open_session(connection: Connection, pipeline: str, name: SessionName, *, version: Version | None) -> Session:
    """Start a new epoch, by default of the version in force."""
    check_name("session", name)
    found = get_pipeline(connection, pipeline)
    in_force = version_in(found)
    version = in_force if version is None else version
    refuse_other_version(pipeline, version, in_force)
    epoch = connection.execute(_SQL["open_session"], {"pipeline_id": found.pipeline_id, "session": name})
    return Session(pipeline=pipeline, name=name, epoch=Epoch(epoch.scalar_one()), version=version)


def open_session_of_load(
    connection: Connection, pipeline_id: int, pipeline: str, name: SessionName, *, version: Version
) -> Opened:
    """The same for a load, which knows the number of its pipeline and needs the age of its last snapshot."""
    check_name("session", name)
    row = connection.execute(_OPEN_SESSION_OF_LOAD, {"pipeline_id": pipeline_id, "session": name}).one()
    refuse_other_version(pipeline, version, version_in(row))
    return Opened(
        session=Session(pipeline=pipeline, name=name, epoch=Epoch(row.epoch), version=version),
        position=Position(row.position),
        commits_since=row.commits_since,
        seconds_since=float(row.seconds_since or 0),
    )
