"""How the loads of each pipeline end, and which files they leave: no commit reports a load that fails.

No load decides by it. It is written in transactions of its own, by the load's process, and a failure to write it fails
no load. A load that is killed writes no end, and is known by its beginning.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import ExitCode, OnceloadError
from onceload_core.names import Batch
from onceload_core.postgres.connection import Record, array, statements, transaction

SQL = statements("attempts.sql")
#: The oldest files that a load leaves are remembered by name.
_NAMES_MAX = 1_000
_ENDING = "recording the end of a load"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The outcome of a load."""

    exit_code: ExitCode
    #: Empty after a success. It repeats no value of a record, because readers see it.
    reason: str = ""
    #: By the name of each file that is not loaded, or not completely: when it was modified, in seconds since 1970. None
    #: if the load has not looked at the files.
    left: Mapping[str, float | None] | None = None
    #: The source had a file. If it had none, files that waited may be out of sight, and not gone.
    has_files: bool = False
    #: It was about all files of the source.
    is_whole: bool = False

    @property
    def has_listed(self) -> bool:
        """Whether it has found out which files of the source are new."""
        return self.is_whole and self.left is not None

    @property
    def has_looked(self) -> bool:
        """Whether it has read everything that was new when it began, but what it left."""
        return self.has_listed and self.exit_code is ExitCode.DONE


def begin(engine: Engine, pipeline: str, batch: Batch) -> datetime:
    """Record that a load has begun; return when."""
    with suppress(OnceloadError, DBAPIError), transaction(engine, pipeline, doing="recording a load") as connection:
        begun_at: datetime = connection.execute(SQL["begin"], {"pipeline": pipeline, "batch": batch}).scalar_one()
        return begun_at
    return datetime.now(UTC)


def end(engine: Engine, pipeline: str, batch: Batch, ended: Ended, *, begun_at: datetime) -> None:
    """Record how a load has ended, and since when the files that it left have been waiting."""
    names = _oldest(ended.left or {})
    binds = {
        "pipeline": pipeline,
        "batch": batch,
        "begun_at": begun_at,
        "exit_code": int(ended.exit_code),
        "reason": ended.reason,
        "knows": ended.left is not None,
        "knows_all": ended.is_whole and ended.has_files,
        "listed": ended.has_listed,
        "looked": ended.has_looked,
        "names": array(names),
    }
    with suppress(OnceloadError, DBAPIError), transaction(engine, pipeline, doing=_ENDING) as connection:
        _leave(connection, pipeline, names, begun_at=begun_at)
        connection.execute(SQL["end"], binds)


def keep(engine: Engine, pipeline: str, batch: Batch, *, left: Mapping[str, float | None]) -> None:
    """Record that a load of all files has staged its batch, so that its files wait to be published."""
    with suppress(OnceloadError, DBAPIError), transaction(engine, pipeline, doing=_ENDING) as connection:
        _leave(connection, pipeline, _oldest(left), begun_at=None)
        connection.execute(SQL["keep"], {"pipeline": pipeline, "batch": batch})


def withdraw(engine: Engine, pipeline: str, batch: Batch) -> None:
    """Forget that a load has begun, because its end does not count."""
    with suppress(OnceloadError, DBAPIError), transaction(engine, pipeline, doing=_ENDING) as connection:
        connection.execute(SQL["withdraw"], {"pipeline": pipeline, "batch": batch})


def _oldest(left: Mapping[str, float | None]) -> dict[str, float | None]:
    return dict(sorted(left.items(), key=lambda each: (each[1] or 0.0, each[0]))[:_NAMES_MAX])


def _leave(
    connection: Connection, pipeline: str, left: Mapping[str, float | None], *, begun_at: datetime | None
) -> None:
    connection.execute(SQL["one_at_a_time"], {"pipeline": pipeline})
    if left:
        binds = {"names": array(left), "modified_s": list(left.values()), "begun_at": begun_at}
        connection.execute(SQL["leave"], {"pipeline": pipeline, **binds})


def look_attempts(engine: Engine, *, only: str | None = None) -> Sequence[Record]:
    """For each pipeline with a load: how the last one ended, and since when one has been running."""
    with transaction(engine, "(any)", doing="reading the last loads") as connection:
        return connection.execute(SQL["look"], {"pipeline": only}).all()


@dataclass(frozen=True, kw_only=True)
class Left:
    """What the last loads of a pipeline have left, in seconds since 1970."""

    #: When the last load began that has read everything else.
    looked_at: float | None
    #: By file, since when it has been waiting.
    since: Mapping[str, float]


def find_left(engine: Engine, pipeline: str) -> Left:
    with transaction(engine, pipeline, doing="reading which files wait") as connection:
        found = connection.execute(SQL["look"], {"pipeline": pipeline}).one_or_none()
        rows = connection.execute(SQL["waiting"], {"pipeline": pipeline}).all()
    looked_at = None if found is None or found.looked_at_s is None else float(found.looked_at_s)
    return Left(looked_at=looked_at, since={row.name: float(row.since_s) for row in rows})
