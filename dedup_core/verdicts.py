"""New, duplicate or unknown: what to do with sequence ids that are offered.

A pure function of three things: what is offered, what is consumed, and what live workers claim.
A part that is consumed is a duplicate; a part that somebody else is loading is unknown, because nobody
can tell yet whether it will be consumed; the rest is new. What is part this and part that is cut.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from dedup_core.spans import Span, SpanSet


class Order(StrEnum):
    """What a sequence id that was jumped over means, should it come later after all."""

    #: The producer counts up and never goes back: at or below the last consumed id is a duplicate.
    ORDERED = "ordered"
    #: Ids may come in any order: only those that were seen are duplicates.
    ANY = "any"


class Verdict(StrEnum):
    NEW = "new"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Judgement:
    """The offered spans, cut into the three answers; together they are exactly what was offered."""

    new: SpanSet = field(default_factory=SpanSet)
    duplicate: SpanSet = field(default_factory=SpanSet)
    unknown: SpanSet = field(default_factory=SpanSet)

    @property
    def verdict(self) -> Verdict:
        """One word for the whole: unknown while any part is, else new while any part is."""
        if self.unknown:
            return Verdict.UNKNOWN
        return Verdict.NEW if self.new else Verdict.DUPLICATE


_NOTHING = SpanSet()


def judge(
    offered: SpanSet,
    *,
    consumed: SpanSet,
    claimed: SpanSet = _NOTHING,
    order: Order = Order.ANY,
) -> Judgement:
    """Cut what is offered into new, duplicate and unknown; `claimed` is what *others* hold."""
    seen = settled(consumed, order=order)
    rest = offered - seen
    match order:
        case Order.ANY:
            unknown = rest & claimed
        case Order.ORDERED:
            # An ordered producer must not overtake itself: whatever it offers waits for the claim to end.
            unknown = rest if claimed - seen else SpanSet()
    return Judgement(new=rest - unknown, duplicate=offered & seen, unknown=unknown)


def settled(consumed: SpanSet, *, order: Order) -> SpanSet:
    """The ids that will never be loaded (again): of an ordered producer, all up to its last one.

    What an ordered producer consumes is settled as well, so that ids that it jumped over
    are refused by the same compare-and-set, and its state stays one span.
    """
    match order:
        case Order.ANY:
            return consumed
        case Order.ORDERED:
            return SpanSet([Span(0, consumed.end)]) if consumed else consumed
