"""Redeliver and abandon dead letters."""

from onceload.console.access import Link
from onceload.console.actions.asking import Action, Answer, Asked, Question
from onceload.console.rendering import query
from onceload.terminal import counted
from onceload_core.errors import SettingRefused
from onceload_core.names import DeliveryId
from onceload_core.postgres import by_hand

_SPANS_SHOWN = 5


def _ask_redeliver(asked: Asked) -> Question:
    return Question(
        title=f"Redeliver dead letter {_delivery(asked)}",
        sentences=(
            *_covers(asked),
            "Its attempts are counted from zero again, and the next load takes it. Fix the cause first, or it fails "
            "again.",
        ),
        button="Redeliver",
    )


def _redeliver(asked: Asked) -> Answer:
    number = _delivery(asked)
    by_hand.redrive(asked.engine, asked.pipeline, number)
    return Answer(sentences=(f"Dead letter {number} is handed out again: the next load takes it.",), link=_back(asked))


def _ask_abandon(asked: Asked) -> Question:
    return Question(
        title=f"Abandon dead letter {_delivery(asked)}",
        sentences=(
            *_covers(asked),
            "The part is given up as it is, and the next load plans its records again. No record is lost.",
        ),
        button="Abandon",
    )


def _abandon(asked: Asked) -> Answer:
    number = _delivery(asked)
    by_hand.abandon(asked.engine, asked.pipeline, number)
    words = f"Dead letter {number} is abandoned: the next load plans its records again."
    return Answer(sentences=(words,), link=_back(asked))


def _delivery(asked: Asked) -> DeliveryId:
    """A delivery of this pipeline, and of no other."""
    number = DeliveryId(asked.number("delivery"))
    found = by_hand.describe(asked.engine, number, at_most=0).delivery
    if found["pipeline"] != asked.pipeline:
        raise SettingRefused("delivery", str(number), f"a delivery of pipeline {asked.pipeline}")
    return number


def _covers(asked: Asked) -> list[str]:
    found = by_hand.describe(asked.engine, _delivery(asked), at_most=_SPANS_SHOWN)
    parts = [f"It covers {each['spans']} of {each['producer']}." for each in found.spans]
    return [*parts, f"{counted(len(found.failures), 'attempt')} failed."]


def _back(asked: Asked) -> Link:
    return Link(address=f"attention?{query(pipeline=asked.pipeline)}", words="What needs a person")


REDELIVER = Action(ask=_ask_redeliver, do=_redeliver)
ABANDON = Action(ask=_ask_abandon, do=_abandon)
