"""Share the records of files among workers: a plain file is cut between records, and any other file is read whole."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from onceload_core.spans import SEQUENCE_END, Span, SpanSet
from onceload_jobs.pipeline.declared import Source
from onceload_jobs.read.parts import cuts, is_stream
from onceload_jobs.verify.reread import Records

_BEFORE_ALL = -(2**63)
#: Less than this is not worth another worker.
_LEAST_BYTES = 4 * 2**20
#: Opening a file takes as long as reading so much.
_FILE_BYTES = 2**18


@dataclass(frozen=True, kw_only=True)
class Range:
    """Records, and which rows of the target are theirs: those of the file with a sequence id from `first` to `last`.

    All ranges of a file together have all of its rows, also those that no record brought.
    """

    records: Records
    first: int = _BEFORE_ALL
    last: int = SEQUENCE_END
    #: Rows are known to be missing or surplus, or may be.
    has_other_rows: bool = False
    #: About how much there is to read.
    bytes: int

    @property
    def weight(self) -> int:
        """How much work it is."""
        return self.bytes + _FILE_BYTES


def shared(source: Source, wholes: Iterable[Range], *, bytes_max: int) -> Iterator[tuple[Range, ...]]:
    """Bundles of about the same weight, in the order of the files.

    Few large ones are better than many small ones: each worker searches the whole target for the rows of its bundle.
    """
    some, left = list[Range](), max(bytes_max, _LEAST_BYTES)
    for whole in wholes:
        if some and whole.bytes > 2 * left and is_stream(source, whole.records.name):
            yield tuple(some)
            some, left = [], max(bytes_max, _LEAST_BYTES)
        rest: Range | None = whole
        while rest is not None:
            head, rest = _cut(source, rest, left)
            some.append(head)
            left -= head.weight
            if rest is not None or left <= 0:
                yield tuple(some)
                some, left = [], max(bytes_max, _LEAST_BYTES)
    if some:
        yield tuple(some)


def _cut(source: Source, whole: Range, size: int) -> tuple[Range, Range | None]:
    """About as much of a range as is wanted, and the rest of it."""
    records = whole.records
    if whole.bytes < size + _LEAST_BYTES or is_stream(source, records.name):
        return whole, None
    end = records.spans.end
    found = cuts(
        records.url,
        first=records.first,
        end=end,
        chunk_bytes=max(size, _LEAST_BYTES),
        record_bytes_max=source.record_bytes_max,
    )
    at = next(found)[1]
    if at == end:
        return whole, None
    head, tail = _within(records, Span(0, at)), _within(records, Span(at, end))
    return (
        replace(whole, records=head, last=at - 1, bytes=at - records.first),
        replace(whole, records=replace(tail, first=at), first=at, bytes=end - at),
    )


def _within(records: Records, span: Span) -> Records:
    """Those of some records that are in a span."""
    held = SpanSet([span])
    commits = ((position, spans & held) for position, spans in records.commits)
    return replace(records, commits=tuple((position, spans) for position, spans in commits if spans))
