"""Pause and resume a pipeline."""

from onceload.console.access import Link
from onceload.console.actions.asking import Action, Answer, Asked, Field, Question
from onceload.console.rendering import query
from onceload_core.postgres import pausing

_IS_PAUSED = "The pipeline is paused. No load commits anything until it is resumed."
_EARLIER = "The pipeline was already {}. That pause stays in force."
_PAUSE = Question(
    title="Pause the pipeline",
    sentences=(
        "No load commits anything until the pipeline is resumed. A load that is running ends at its next commit.",
        "Nothing is lost, and repairs stay possible.",
    ),
    button="Pause",
    field=Field(name="why", label="Reason (the overview, `onceload status` and each refused load show it)"),
)


def _pause(asked: Asked) -> Answer:
    found = pausing.pause(asked.engine, asked.pipeline, by=asked.user, why=asked.values.get("why", ""))
    words = _EARLIER.format(found.pause) if found.is_earlier else _IS_PAUSED
    return Answer(sentences=(words,), link=_back(asked))


def _ask_resume(asked: Asked) -> Question:
    found = pausing.find_pause(asked.engine, asked.pipeline)
    if found is None:
        return Question(title="Resume the pipeline", sentences=("It is not paused.",), button=None)
    sentences = (f"It was {found}.", "After the resume, the next load continues with the rest.")
    return Question(title="Resume the pipeline", sentences=sentences, button="Resume")


def _resume(asked: Asked) -> Answer:
    ended = pausing.resume(asked.engine, asked.pipeline, by=asked.user)
    words = (
        "The pipeline was not paused."
        if ended is None
        else "The pipeline is resumed. The next load continues with the rest."
    )
    return Answer(sentences=(words,), link=_back(asked))


def _back(asked: Asked) -> Link:
    return Link(address=f"pipeline?{query(pipeline=asked.pipeline)}", words="The pipeline")


PAUSE = Action(ask=lambda _: _PAUSE, do=_pause)
RESUME = Action(ask=_ask_resume, do=_resume)
