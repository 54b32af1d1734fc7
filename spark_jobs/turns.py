"""Files that take effect in the order of their names: nothing overtakes what could not be read.

An overtaken record would be lost: its producer has gone on, so that it counts as a duplicate once it can be read. What
a plan sees is left out of the plan; what only reading tells is left out of the batch, which is then staged again.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from dedup_core.names import ProducerId
from dedup_core.ports import Advance
from dedup_core.spans import Span, SpanSet
from spark_jobs.declared import Declared
from spark_jobs.offers import Bundle
from spark_jobs.plan import Note, waits_for
from spark_jobs.publish import merged
from spark_jobs.sources.records import Chunk
from spark_jobs.stage import StagedPart


@dataclass(frozen=True, kw_only=True)
class Overtaking:
    """Chunks of a batch that stand behind the first one that was not read whole."""

    #: The file of that one.
    file: str
    chunks: frozenset[Chunk]

    def notes(self, declared: Declared) -> Iterator[Note]:
        """Why those files wait; the first one has notes of its own."""
        for name in sorted({chunk.name for chunk in self.chunks} - {self.file}):
            yield waits_for(declared, name, self.file)


def overtaking(
    declared: Declared, some: Sequence[Bundle], parts: Sequence[StagedPart], *, noted: Set[str]
) -> Overtaking | None:
    """What of a batch would overtake something; `noted` names the files that were not read whole."""
    if not declared.is_in_turn:
        return None
    in_order = sorted((chunk for chunks in some for chunk in chunks), key=_place)
    last_of = {chunk.name: chunk for chunk in in_order}
    read = {advance.producer_id: advance for advance in merged(parts)}
    # What was noted of a file may be behind all that was planned of it.
    first = next(
        (each for each in in_order if not _is_read(each, read) or (each.name in noted and each is last_of[each.name])),
        None,
    )
    if first is None:
        return None
    behind = frozenset(chunk for chunk in in_order if _place(chunk) > _place(first))
    return Overtaking(file=first.name, chunks=behind) if behind else None


def _place(chunk: Chunk) -> tuple[str, int]:
    return chunk.name, chunk.first


def _is_read(chunk: Chunk, read: Mapping[ProducerId, Advance]) -> bool:
    advance = read.get(chunk.producer_id)
    if chunk.end is None:
        # Its size is noted by nobody who was stopped.
        return advance is not None and advance.size is not None
    planned = SpanSet([Span(chunk.first, chunk.end)]) if chunk.first < chunk.end else SpanSet()
    return not planned or (advance is not None and advance.spans.covers(planned))
