"""Actions that take long: they start a job, which has a page of its own."""

from typing import Literal

from onceload.console.access import Job
from onceload.console.actions.asking import Action, Answer, Asked, Question
from onceload.contradictions import may_replace
from onceload.recoveries import rewind_in_words
from onceload_core.errors import SettingRefused
from onceload_core.names import Position
from onceload_jobs.recover.rewind import rewind

_VERIFY = Question(
    title="Verify",
    sentences=("Files and rows are compared with the ledger. Nothing is changed.",),
    button="Verify",
)
_SNAPSHOT = Question(
    title="Take a snapshot",
    sentences=("The states of all producers are stored as they are now. A recovery starts from them.",),
    button="Take it",
)


def _ask_load(asked: Asked) -> Question:
    which = f"The file {asked.values['file']}" if asked.values.get("file") else "Every file of the pipeline"
    return Question(
        title="Load",
        sentences=(f"{which} is read, as far as it is not loaded yet. It is safe to repeat.",),
        button="Load",
    )


def _load(asked: Asked) -> Answer:
    return _start(asked, "backfill", mode="missing", files=_files(asked))


def _ask_replace(asked: Asked) -> Question:
    (file,) = _files(asked) or [""]
    if not file:
        raise SettingRefused("file", "no file", "the name of a file")
    if not may_replace(asked.file.declared):
        sentences = ("This pipeline cannot replace files: see `onceload load --help`, option --replace.",)
        return Question(title=f"Replace the rows of {file}", sentences=sentences, button=None)
    return Question(
        title=f"Replace the rows of {file}",
        sentences=(
            "The rows that were loaded from it are deleted, and all of the file as it is now is loaded, in one commit.",
            "If the new content has no record, nothing is changed.",
        ),
        button="Replace",
    )


def _replace(asked: Asked) -> Answer:
    return _start(asked, "backfill", mode="replace", files=_files(asked))


def _ask_rewind(asked: Asked) -> Question:
    to = Position(asked.number("position"))
    found = rewind(asked.file.declared, asked.engine, to=to, dry_run=True)
    return Question(
        title=f"Rewind to position {to:,}",
        sentences=(
            *rewind_in_words(found).splitlines(),
            "Afterwards everything is loaded again from the files that exist then: rows of deleted files do not come "
            "back.",
        ),
        button="Rewind" if found.entries and not found.differing else None,
    )


def _rewind(asked: Asked) -> Answer:
    return _start(asked, "recover", what="rewind", position=asked.number("position"))


def _verify(asked: Asked) -> Answer:
    return _start(asked, "verify", deep=False)


def _snapshot(asked: Asked) -> Answer:
    return _start(asked, "snapshot")


def _files(asked: Asked) -> list[str]:
    return [asked.values["file"]] if asked.values.get("file") else []


def _start(asked: Asked, kind: Literal["backfill", "recover", "verify", "snapshot"], **params: object) -> Answer:
    job = Job(kind=kind, pipeline=asked.pipeline, params=params)
    link = asked.access.start(asked.request, job, asked.described)
    return Answer(sentences=("It was started.",), link=link)


LOAD = Action(ask=_ask_load, do=_load)
REPLACE = Action(ask=_ask_replace, do=_replace)
REWIND = Action(ask=_ask_rewind, do=_rewind)
VERIFY = Action(ask=lambda _: _VERIFY, do=_verify)
SNAPSHOT = Action(ask=lambda _: _SNAPSHOT, do=_snapshot)
