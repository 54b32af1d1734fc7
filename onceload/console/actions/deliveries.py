"""Redeliver and abandon dead letters."""

from onceload.console.access import Link
from onceload.console.actions.asking import Action, Answer, Asked, Question
from onceload.console.rendering import query
from onceload.terminal import counted
from onceload_core.delivery import State
from onceload_core.errors import SettingRefused
from onceload_core.names import DeliveryId
from onceload_core.postgres import by_hand

_SPANS_SHOWN = 5


def _ask_redeliver(asked: Asked) -> Question:
    return Question(
        title=f"Redeliver dead letter {_delivery(asked)}",
        sentences=(
            *_covers(asked),
            "The next load retries it, with all its attempts again. Fix the cause first, or it fails again.",
        ),
        button="Redeliver",
    )


def _redeliver(asked: Asked) -> Answer:
    number = _delivery(asked)
    by_hand.redrive(asked.engine, asked.pipeline, number, by=asked.user)
    return Answer(sentences=(f"Dead letter {number} was redelivered. The next load retries it.",), link=_back(asked))


def _ask_abandon(asked: Asked) -> Question:
    return Question(
        title=f"Abandon dead letter {_delivery(asked)}",
        sentences=(
            *_covers(asked),
            "This delivery is dropped, and the next load plans its records again as new work. No record is lost.",
        ),
        button="Abandon",
    )


def _abandon(asked: Asked) -> Answer:
    number = _delivery(asked)
    by_hand.abandon(asked.engine, asked.pipeline, number, by=asked.user)
    words = f"Dead letter {number} was abandoned. The next load plans its records again."
    return Answer(sentences=(words,), link=_back(asked))


def _delivery(asked: Asked) -> DeliveryId:
    """A delivery of this pipeline, and of no other."""
    number = DeliveryId(asked.number("delivery"))
    found = by_hand.describe(asked.engine, number, at_most=0).delivery
    if found["pipeline"] != asked.pipeline:
        raise SettingRefused("delivery", str(number), f"a delivery of pipeline {asked.pipeline}")
    if found["state"] != State.DEAD:
        raise SettingRefused(f"delivery {number}", f"one that is {found['state']}", "a dead letter")
    return number


def _covers(asked: Asked) -> list[str]:
    found = by_hand.describe(asked.engine, _delivery(asked), at_most=_SPANS_SHOWN + 1)
    parts = [f"It covers {each['spans']} of {each['producer']}." for each in found.spans[:_SPANS_SHOWN]]
    parts += ["It covers more than these."] if len(found.spans) > _SPANS_SHOWN else []
    return [*parts, f"{counted(len(found.failures), 'attempt')} failed."]


def _back(asked: Asked) -> Link:
    return Link(address=f"attention?{query(pipeline=asked.pipeline)}", words="What needs a person")


REDELIVER = Action(ask=_ask_redeliver, do=_redeliver)
ABANDON = Action(ask=_ask_abandon, do=_abandon)
