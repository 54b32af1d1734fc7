"""New, duplicate or unknown: what to do with offered sequence ids.

A pure function of three inputs: the offered ids, the consumed ids, and the ids that live workers claim.
Consumed ids are duplicates. Ids that another worker is loading are unknown, because they may or may not be
consumed. The rest is new. Spans that are partly one and partly another are split.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from onceload_core.spans import Span, SpanSet


class Order(StrEnum):
    """Whether a sequence id that was skipped may still arrive later."""

    #: The producer only counts up: ids at or below the last consumed one are duplicates.
    ORDERED = "ordered"
    #: Ids may arrive in any order: only consumed ids are duplicates.
    ANY = "any"


@dataclass(frozen=True)
class Judgement:
    """The offered spans, split by verdict. Together they are exactly what was offered."""

    new: SpanSet = field(default_factory=SpanSet)
    duplicate: SpanSet = field(default_factory=SpanSet)
    unknown: SpanSet = field(default_factory=SpanSet)


_NOTHING = SpanSet()


def judge(
    offered: SpanSet,
    *,
    consumed: SpanSet,
    claimed: SpanSet = _NOTHING,
    order: Order = Order.ANY,
) -> Judgement:
    """Split the offered ids into new, duplicate and unknown. `claimed` holds the claims of *other* sessions."""
    seen = settled(consumed, order=order)
    rest = offered - seen
    match order:
        case Order.ANY:
            unknown = rest & claimed
        case Order.ORDERED:
            # An ordered producer must not overtake itself: all new ids wait until the claim has ended.
            unknown = rest if claimed - seen else SpanSet()
    return Judgement(new=rest - unknown, duplicate=offered & seen, unknown=unknown)


def passed_over(offered: SpanSet, *, consumed: SpanSet, owed: SpanSet) -> SpanSet:
    """The owed ids that an offer leaves out, although it brings higher ids that were never loaded.

    A rewind rolled back the owed ids. A producer that goes on behind them has not noticed, and would lose them.
    """
    never_loaded = offered - consumed - owed
    return (owed - consumed - offered) & SpanSet.of((0, never_loaded.end)) if never_loaded else SpanSet()


def settled(consumed: SpanSet, *, order: Order) -> SpanSet:
    """The ids that will not be loaded any more: for an ordered producer, all up to its last one.

    An ordered producer also consumes the ids that it skipped. So the same compare-and-set
    refuses them later, and its state stays one span.
    """
    match order:
        case Order.ANY:
            return consumed
        case Order.ORDERED:
            return SpanSet([Span(0, consumed.end)]) if consumed else consumed
