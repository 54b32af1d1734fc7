"""Pause and resume a pipeline."""

from onceload.console.access import Link
from onceload.console.actions.asking import Action, Answer, Asked, Field, Question
from onceload.console.rendering import query
from onceload_core.postgres import pausing

_PAUSE = Question(
    title="Pause the pipeline",
    sentences=(
        "No load commits anything until the pipeline is resumed. A load that is running ends at its next commit.",
        "Nothing is lost, and repairs stay possible.",
    ),
    button="Pause",
    field=Field(name="why", label="Why, for everyone who meets the pause"),
)


def _pause(asked: Asked) -> Answer:
    found = pausing.pause(asked.engine, asked.pipeline, by=asked.user, why=asked.values.get("why", ""))
    words = f"The pipeline was already {found.pause}." if found.is_earlier else "The pipeline is paused."
    return Answer(sentences=(words,), link=_back(asked))


def _ask_resume(asked: Asked) -> Question:
    found = pausing.find_pause(asked.engine, asked.pipeline)
    if found is None:
        return Question(title="Resume the pipeline", sentences=("It is not paused.",), button=None)
    sentences = (f"It is {found}.", "The next load takes up what is left.")
    return Question(title="Resume the pipeline", sentences=sentences, button="Resume")


def _resume(asked: Asked) -> Answer:
    ended = pausing.resume(asked.engine, asked.pipeline, by=asked.user)
    words = "The pipeline was not paused." if ended is None else "The pipeline is resumed."
    return Answer(sentences=(words,), link=_back(asked))


def _back(asked: Asked) -> Link:
    return Link(address=f"pipeline?{query(pipeline=asked.pipeline)}", words="The pipeline")


PAUSE = Action(ask=lambda _: _PAUSE, do=_pause)
RESUME = Action(ask=_ask_resume, do=_resume)
