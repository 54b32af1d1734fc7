"""Spans and span sets: the algebra of Postgres' int8multirange, in plain Python.

A span is half-open, `[first, end)`. A span set keeps its spans sorted, disjoint and not touching,
so that equal sets are equal values and print the same text as Postgres does.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onceload_core.errors import WrongUse

#: One past the last sequence id: the end of a half-open range must fit into an int8.
SEQUENCE_END = 2**63 - 1

_SPANS_SHOWN = 5
_SPAN_TEXT = re.compile(r"\[(\d+),(\d+)\)")


@dataclass(eq=False)
class NotASpan(WrongUse):
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.found} is not a span of sequence ids. Nothing was changed. Expected {self.expected}."


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """At least one sequence id: from `first` up to, but not including, `end`."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= SEQUENCE_END:
            raise NotASpan(f"[{self.first},{self.end})", f"0 <= first < end <= {SEQUENCE_END}")

    def __len__(self) -> int:
        return self.end - self.first

    def __contains__(self, sequence_id: int) -> bool:
        return self.first <= sequence_id < self.end

    def __str__(self) -> str:
        return f"[{self.first},{self.end})"


@dataclass(frozen=True, init=False, slots=True)
class SpanSet:
    """A set of sequence ids, stored as the fewest spans."""

    spans: tuple[Span, ...]

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        object.__setattr__(self, "spans", tuple(_joined(sorted(spans))))

    @classmethod
    def of(cls, *bounds: tuple[int, int]) -> "SpanSet":
        """Build a set from bounds: `SpanSet.of((0, 5), (9, 12))`."""
        return cls(Span(first, end) for first, end in bounds)

    @classmethod
    def of_ids(cls, sequence_ids: Iterable[int]) -> "SpanSet":
        return cls(Span(sequence_id, sequence_id + 1) for sequence_id in sequence_ids)

    @classmethod
    def parse(cls, text: str) -> "SpanSet":
        """Parse the text that Postgres prints for an int8multirange."""
        inner = text.removeprefix("{").removesuffix("}")
        parts = _SPAN_TEXT.findall(inner)
        if text != "{" + ",".join(f"[{first},{end})" for first, end in parts) + "}":
            raise NotASpan(text, "an int8multirange such as {[0,5),[9,12)}")
        return cls.of(*((int(first), int(end)) for first, end in parts))

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.spans)) + "}"

    @property
    def shortened(self) -> str:
        """The first spans, and how many more there are, for messages."""
        shown = ",".join(map(str, self.spans[:_SPANS_SHOWN]))
        more = len(self.spans) - _SPANS_SHOWN
        return f"{shown} and {more:,} more" if more > 0 else shown

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    @property
    def count(self) -> int:
        """The number of sequence ids. `len` is limited to a C integer."""
        return sum(span.end - span.first for span in self.spans)

    @property
    def end(self) -> int:
        """One past the last sequence id, or 0 for the empty set."""
        return self.spans[-1].end if self.spans else 0

    @property
    def is_without_holes(self) -> bool:
        """Whether the set is all of `[0, end)`."""
        return self.count == self.end

    def __contains__(self, sequence_id: int) -> bool:
        at = bisect_right(self.spans, sequence_id, key=_first_of) - 1
        return at >= 0 and sequence_id in self.spans[at]

    def overlaps(self, other: "SpanSet") -> bool:
        return bool(self & other)

    def covers(self, other: "SpanSet") -> bool:
        return not other - self

    def __or__(self, other: "SpanSet") -> "SpanSet":
        return SpanSet((*self.spans, *other.spans))

    def __and__(self, other: "SpanSet") -> "SpanSet":
        return SpanSet(_common(self.spans, other.spans))

    def __sub__(self, other: "SpanSet") -> "SpanSet":
        return self & other._gaps()

    def _gaps(self) -> "SpanSet":
        """All possible sequence ids that are not in this set."""
        edges = [0, *(edge for span in self.spans for edge in (span.first, span.end)), SEQUENCE_END]
        return SpanSet(Span(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end)


def _first_of(span: Span) -> int:
    return span.first


def _joined(ordered: list[Span]) -> Iterator[Span]:
    """Merge spans that overlap or touch, as a multirange does."""
    current: Span | None = None
    for span in ordered:
        if current is None:
            current = span
        elif span.first > current.end:
            yield current
            current = span
        elif span.end > current.end:
            current = Span(current.first, span.end)
    if current is not None:
        yield current


def _common(left: tuple[Span, ...], right: tuple[Span, ...]) -> Iterator[Span]:
    """Walk both lists in step: the span that ends first overlaps nothing further."""
    i = j = 0
    while i < len(left) and j < len(right):
        first, end = max(left[i].first, right[j].first), min(left[i].end, right[j].end)
        if first < end:
            yield Span(first, end)
        if left[i].end < right[j].end:
            i += 1
        else:
            j += 1
