"""Actions that take long: they start a job, which has a page of its own."""

import glob
import re
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Literal

from onceload.console.access import Job, Link
from onceload.console.actions.asking import Action, Answer, Asked, Field, Question
from onceload.console.reading import TookTooLong, reading
from onceload.console.rendering import query
from onceload.contradictions import against_replacing, may_choose
from onceload.named_files import named
from onceload.pipeline_file import placeholders
from onceload.placeholders import GIVEN
from onceload.recoveries import rewind_in_words
from onceload.terminal import counted
from onceload_core.errors import SettingRefused
from onceload_core.names import Position
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.pausing import find_pause
from onceload_core.postgres.rewind import Preview
from onceload_jobs.recover.rewind import preview as preview_of

#: With millions of commits after the position, the ledger is read for this long at most.
_LEDGER_S = 30
#: How many entries of the ledger are counted without asking first.
_COUNTED_AT_ONCE = 100_000
#: How many producers are named before a rewind.
_NAMES_SHOWN = 20
_DAY = re.compile(r"(?<!\d)\d{4}(-?)\d{2}\1\d{2}(?!\d)")
_VERIFY = Question(
    title="Verify",
    sentences=("Files and rows are compared with the ledger. Nothing is changed.",),
    button="Verify",
)
_SNAPSHOT = Question(
    title="Take a snapshot",
    sentences=(
        "The current states of all producers are stored. A later recovery starts from them, and replays newer commits.",
    ),
    button="Take a snapshot",
)


def _ask_load(asked: Asked) -> Question:
    which = f"the file {asked.values['file']}" if asked.values.get("file") else "all files of the pipeline"
    if paused := _paused(asked, title="Load"):
        return paused
    if asked.values.get("file") and not may_choose(asked.file.declared):
        sentences = ("This pipeline loads records in their order, so a load of one file alone is not possible.",)
        return Question(title="Load", sentences=sentences, button=None)
    return Question(
        title="Load",
        sentences=(f"The new records of {which} are loaded. Records that are already loaded are skipped.",),
        button="Load",
        field=_day_field(asked),
    )


def _load(asked: Asked) -> Answer:
    return _start(asked, "backfill", mode="missing", files=_files(asked), **_day(asked))


def _ask_replace(asked: Asked) -> Question:
    file = _file(asked)
    title = f"Replace the rows of {file}"
    if why := list(against_replacing(asked.file.declared)):
        sentences = (f"This pipeline cannot replace the rows of a file: {'; '.join(why)}.",)
        return Question(title=title, sentences=sentences, button=None)
    if paused := _paused(asked, title=title):
        return paused
    return Question(
        title=title,
        sentences=(
            "The rows that were loaded from this file are deleted, and its current content is loaded, in one commit.",
            "If the file has no good record now, nothing is changed.",
        ),
        button="Replace",
        field=_day_field(asked),
    )


def _replace(asked: Asked) -> Answer:
    return _start(asked, "backfill", mode="replace", files=[glob.escape(_file(asked))], **_day(asked))


def _ask_rewind(asked: Asked) -> Question:
    to = Position(asked.number("position"))
    title = f"Rewind to position {to:,}"
    if many := _too_many_at_once(asked, to, title=title):
        return many
    try:
        preview = _preview(asked, to)
    except TookTooLong:
        return Question(title=title, sentences=_too_many(asked, to), button=None)
    found, sentences = preview.found, rewind_in_words(preview.found).splitlines()
    if not found.entries:
        return Question(title=title, sentences=tuple(sentences), button=None)
    if paused := _paused(asked, title=title):
        return paused
    sentences += [f"{name}: {counted(rows, 'row')}" for name, rows in preview.most]
    if found.producers > len(preview.most):
        sentences.append(f"… and {found.producers - len(preview.most):,} more files or producers.")
    return Question(
        title=title, sentences=(*sentences, *_before_rewind(asked, to)), button="Rewind", seen=int(found.position)
    )


def _too_many(asked: Asked, to: Position) -> tuple[str, ...]:
    command = f"onceload recover rewind {named(asked.file.path)} --position {to} --dry-run"
    return (
        f"There are too many commits after this position: they could not be counted here within {_LEDGER_S} s.",
        f"`{command}` shows what would be rolled back. Without --dry-run, it does that.",
    )


def _before_rewind(asked: Asked, to: Position) -> tuple[str, ...]:
    file = named(asked.file.path)
    return (
        "These rows are deleted. Then the files are loaded again from this position. Rows whose source file no longer "
        "exists are lost for good.",
        "If the job cannot roll the commits back exactly, it reports why, and changes nothing. Then `onceload verify "
        f"{file}` lists rows that differ from the ledger, and `onceload recover rewind {file} --position {to} "
        "--accept-differences` rewinds anyway.",
    )


def _too_many_at_once(asked: Asked, to: Position, *, title: str) -> Question | None:
    """The question whether to count very many entries, unless a pause makes that useless."""
    entries = PostgresLedger(asked.engine).position(asked.file.declared.name) - to
    if entries <= _COUNTED_AT_ONCE or asked.values.get("count") == "yes":
        return None
    if paused := _paused(asked, title=title):
        return paused
    sentences = (
        f"The ledger has {entries:,} entries after this position. Nothing was changed.",
        "Before a rewind, their rows and files must be counted. This can take a minute.",
    )
    address = query(pipeline=asked.pipeline, position=to, count="yes")
    link = Link(address=f"rewind?{address}", words="Count rows and files")
    return Question(title=title, sentences=sentences, button=None, link=link)


def _preview(asked: Asked, to: Position) -> Preview:
    what = "what a rewind would roll back"
    with reading(asked.engine, what, pipeline=asked.pipeline, limit_s=_LEDGER_S) as (connection, _):
        return preview_of(asked.file.declared, connection, to=to, names_max=_NAMES_SHOWN)


def _rewind(asked: Asked) -> Answer:
    position, seen = int(PostgresLedger(asked.engine).position(asked.pipeline)), asked.number("seen")
    if position != seen:
        found = f"position {position:,} now, and position {seen:,} when you were asked: something has committed since"
        raise SettingRefused("this rewind", found, "a question about the current position (ask again)")
    # What commits before the job begins is not rolled back unseen either.
    return _start(asked, "recover", what="rewind", position=asked.number("position"), expected_position=seen)


def _verify(asked: Asked) -> Answer:
    return _start(asked, "verify", deep=False)


def _snapshot(asked: Asked) -> Answer:
    return _start(asked, "snapshot")


def _paused(asked: Asked, *, title: str) -> Question | None:
    """The question that cannot be confirmed, if no load would commit anything."""
    pause = find_pause(asked.engine, asked.pipeline)
    if pause is None:
        return None
    sentences = (f"The pipeline is {pause}.", "Until it is resumed, its loads are refused.")
    return Question(title=title, sentences=sentences, button=None)


def _files(asked: Asked) -> list[str]:
    # A name is taken as it is, and not as a pattern of names.
    return [glob.escape(asked.values["file"])] if asked.values.get("file") else []


def _file(asked: Asked) -> str:
    """Without a name, all files would be meant."""
    if not asked.values.get("file"):
        raise SettingRefused("file", "no file", "the name of a file")
    return asked.values["file"]


def _day_field(asked: Asked) -> Field | None:
    """The day to load, if a run loads the files of one day."""
    is_asked = asked.access.loads_by_day and set(placeholders(asked.file.path)) & set(GIVEN)
    if not is_asked:
        return None
    day = _day_in(asked.values.get("file", "")) or datetime.now(UTC).date()
    return Field(name="day", label="Day (YYYY-MM-DD)", value=day.isoformat())


def _day_in(name: str) -> date | None:
    """The day that the name of a file contains, such as 2026-03-01 or 20260301."""
    for each in _DAY.finditer(name):
        with suppress(ValueError):
            return date.fromisoformat(each.group())
    return None


def _day(asked: Asked) -> dict[str, str]:
    if _day_field(asked) is None:
        return {}
    day = asked.values.get("day", "")
    try:
        date.fromisoformat(day)
    except ValueError as error:
        raise SettingRefused("day", repr(day), "a day such as 2026-03-01") from error
    return {"first_day": day, "last_day": day}


def _start(asked: Asked, kind: Literal["backfill", "recover", "verify", "snapshot"], **params: object) -> Answer:
    job = Job(kind=kind, pipeline=asked.pipeline, params=params)
    link = asked.access.start(asked.request, job, asked.described)
    return Answer(sentences=("The job was started. Follow the link to see its progress and its result.",), link=link)


LOAD = Action(ask=_ask_load, do=_load)
REPLACE = Action(ask=_ask_replace, do=_replace)
REWIND = Action(ask=_ask_rewind, do=_rewind)
VERIFY = Action(ask=lambda _: _VERIFY, do=_verify)
SNAPSHOT = Action(ask=lambda _: _SNAPSHOT, do=_snapshot)
