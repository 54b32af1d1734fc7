"""Pause and resume a pipeline, for the command line, programs and web pages.

The row of the pipeline is authoritative. A pause takes the lock that orders commits, so it waits for a commit in
progress, and each later commit of a load finds it and is rolled back. So once `pause` has returned, nothing is loaded.
A load that meets the pause ends like any failed load: its claims and deliveries are released, and loaded after the
resume. If a call is cut off, it can be repeated: the first pause stays in force until it is resumed.
"""

from dataclasses import dataclass

from sqlalchemy import Engine

from onceload_core import pause as core
from onceload_core.checks import check_name
from onceload_core.errors import SettingRefused
from onceload_core.events import event
from onceload_core.pause import Pause
from onceload_core.postgres.connection import change, statements, transaction
from onceload_core.postgres.pipeline_row import lock_pipeline, pause_in

SQL = statements("pausing.sql")


@dataclass(frozen=True, kw_only=True)
class Paused:
    """The pause in force after a call."""

    pause: Pause
    #: It was in force before the call, which changed nothing.
    is_earlier: bool


def pause(engine: Engine, pipeline: str, *, by: str, why: str) -> Paused:
    """Stop all loads of a pipeline until it is resumed. A pause that is already in force stays as it is."""
    by, why = _one_line("the user who pauses", by), _one_line("the reason of a pause", why)
    with change(engine, pipeline, doing="pausing a pipeline") as connection:
        found = lock_pipeline(connection, pipeline)
        if (earlier := pause_in(found)) is not None:
            return Paused(pause=earlier, is_earlier=True)
        binds = {"pipeline_id": found.pipeline_id, "by": by, "why": why}
        made = Pause(at=connection.execute(SQL["pause"], binds).scalar_one(), by=by, why=why)
    event("pipeline_paused", pipeline=pipeline, by=by, reason=why)
    return Paused(pause=made, is_earlier=False)


def resume(engine: Engine, pipeline: str, *, by: str) -> Pause | None:
    """Let loads of a pipeline commit again; return the pause that has ended, if there was one."""
    by = _one_line("the user who resumes", by)
    with change(engine, pipeline, doing="resuming a pipeline") as connection:
        found = lock_pipeline(connection, pipeline)
        ended = pause_in(found)
        if ended is not None:
            connection.execute(SQL["resume"], {"pipeline_id": found.pipeline_id})
    if ended is not None:
        event("pipeline_resumed", pipeline=pipeline, by=by, paused_by=ended.by, paused_at=ended.since)
    return ended


def find_pause(engine: Engine, pipeline: str) -> Pause | None:
    """The pause of a pipeline. One that is not registered yet is not paused."""
    with transaction(engine, pipeline, doing="looking for a pause") as connection:
        found = connection.execute(SQL["find_pause"], {"pipeline": pipeline}).one_or_none()
    return None if found is None else pause_in(found)


def refuse_paused(engine: Engine, pipeline: str) -> None:
    """Raise if a pipeline is paused. Loads ask it before they begin, and each of their commits asks again."""
    core.refuse_paused(pipeline, find_pause(engine, pipeline))


def _one_line(what: str, given: str) -> str:
    """A text on one line, as messages and tables show it."""
    text = " ".join(given.split())
    check_name(what, text)
    if not text.isprintable():
        raise SettingRefused(what, repr(text), "printable characters")
    return text
