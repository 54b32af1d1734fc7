"""Chunks that wait for a later load: those that would overtake an unreadable chunk, and lines that still grow.

With ordered records, the order is that of the file names; with merged records, that of the parts of each file. An
overtaken record would be lost, because its producer is already past it, or would undo a later one. If a plan finds
this, it leaves the file out. If only reading finds it, the batch leaves it out and is staged again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import groupby

from onceload_core.names import ProducerId
from onceload_core.ports import Advance
from onceload_core.spans import Span, SpanSet
from onceload_jobs.batch.piece import Piece, advances_of
from onceload_jobs.batch.stage import SealedEnd
from onceload_jobs.files.addresses import Unreadable, local_path
from onceload_jobs.files.compression import Damaged, Incomplete, is_compressed
from onceload_jobs.files.notes import Note
from onceload_jobs.files.reading import look_at
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.declared import Declared, Source
from onceload_jobs.plan.copies import ends_a_line
from onceload_jobs.plan.waiting_files import waits_for

_GOES_ON = (
    "it grew after it was read, in a last line that counted as sealed (source.sealed). The part with that line is not "
    "loaded. The next load reads it again"
)


def overtaking(
    declared: Declared, chunks: Sequence[Chunk], pieces: Sequence[Piece], *, noted: Set[str]
) -> tuple[Set[Chunk], list[Note]]:
    """The chunks that would overtake another one, and why; `noted` names files that were not read completely."""
    if not (declared.is_ordered_across_files or declared.is_merge_of_files or any(each.sealed for each in chunks)):
        return set(), []
    in_order = sorted(chunks, key=_place)
    last_of = {chunk.name: chunk for chunk in in_order}
    read = {advance.producer_id: advance for advance in advances_of(pieces)}
    ends = {chunk: _sealed_end(chunk, read, declared.source) for chunk in in_order}
    gone_on = {chunk for chunk, end in ends.items() if end is not None and goes_on(end, declared.source)}
    noted = noted | {chunk.name for chunk in gone_on}
    #: The waiting files, each with the file that it waits for; that file has its own notes.
    behind, waiting = set(gone_on), dict[str, str]()
    for line in _lines(declared, in_order):
        # The unread part of a noted file may be after everything that was planned of it.
        first = next(
            (each for each in line if not _is_read(each, read) or (each.name in noted and each is last_of[each.name])),
            None,
        )
        if first is not None:
            late = [chunk for chunk in line if _place(chunk) > _place(first)]
            behind.update(late)
            waiting |= {chunk.name: first.name for chunk in late if chunk.name != first.name}
    notes = [Note(name=name, reason=_GOES_ON) for name in sorted({chunk.name for chunk in gone_on})]
    return behind, notes + [waits_for(declared, name, other) for name, other in sorted(waiting.items())]


def _place(chunk: Chunk) -> tuple[str, int]:
    return chunk.name, chunk.first


def _lines(declared: Declared, in_order: Sequence[Chunk]) -> Iterable[Sequence[Chunk]]:
    """The chunks that must take effect in sequence."""
    if declared.is_ordered_across_files:
        return [in_order]
    if declared.is_merge_of_files:
        # The last record of a key wins, and only the position in the file shows which one is last.
        return [tuple(line) for _, line in groupby(in_order, key=lambda chunk: chunk.name)]
    return []


def _is_read_to_end(chunk: Chunk, read: Mapping[ProducerId, Advance]) -> bool:
    advance = read.get(chunk.producer_id)
    if advance is None or not advance.spans:
        return False
    # A size is only recorded if the file was unpacked to its end.
    return advance.size is not None if is_compressed(chunk.url) else advance.spans.end >= chunk.size


def _is_read(chunk: Chunk, read: Mapping[ProducerId, Advance]) -> bool:
    advance = read.get(chunk.producer_id)
    if chunk.end is None:
        # A reader that was stopped records no size.
        return advance is not None and advance.size is not None
    planned = SpanSet([Span(chunk.first, chunk.end)]) if chunk.first < chunk.end else SpanSet()
    return not planned or (advance is not None and advance.spans.covers(planned))


def sealed_ends(source: Source, chunks: Sequence[Chunk], pieces: Sequence[Piece]) -> Iterator[SealedEnd]:
    """The ends of files whose last line counts as sealed, to be checked when the batch is published."""
    read = {advance.producer_id: advance for advance in advances_of(pieces)}
    ends = (_sealed_end(chunk, read, source) for chunk in chunks)
    yield from (end for end in ends if end is not None)


def _sealed_end(chunk: Chunk, read: Mapping[ProducerId, Advance], source: Source) -> SealedEnd | None:
    """The end of a file that was read to a last line that counts as sealed; objects in stores never grow."""
    is_sealed = chunk.sealed and chunk.end in (None, chunk.size) and not source.format.is_whole
    if not (is_sealed and local_path(chunk.url) and _is_read_to_end(chunk, read)):
        return None
    return SealedEnd(name=chunk.name, url=chunk.url, end=read[chunk.producer_id].spans.end, size=chunk.size)


def goes_on(sealed: SealedEnd, source: Source) -> bool:
    """Whether a file has grown in a last line that counted as sealed; an unreadable file counts as unchanged."""
    try:
        return look_at(sealed.url).size > sealed.size and not ends_a_line(source, sealed.url, sealed.end)
    except Unreadable:
        return False
    except (Incomplete, Damaged):
        return True
