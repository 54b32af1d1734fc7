"""Bundles of chunks for one session each: what is new is cut into them, and the board holds them as text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from onceload_core.delivery import Mode
from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.deliveries import Handed
from onceload_core.postgres.offers import Offer
from onceload_core.spans import SpanSet
from onceload_jobs.files.addresses import shown, with_login
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.reading import read_at
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.declared import Declared, Format, Source
from onceload_jobs.plan.to_read import FileToRead
from onceload_jobs.read.parts import cuts, find_newline, is_stream
from onceload_jobs.write.codec import decode, encode

Bundle = tuple[Chunk, ...]
Item = TypeVar("Item")


def bundles_of(
    declared: Declared, files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId]
) -> Iterator[Bundle]:
    """Cut large files, and combine small ones: a bundle is about as large as one commit."""
    of_files = [_chunks(declared, file, ids[file.listed.name, file.generation]) for file in files]
    is_by_file = declared.delivery.mode is Mode.ORDERED
    # Files take turns, so that a large one does not delay small ones.
    turns: Iterable[Iterable[Chunk | None]] = of_files if is_by_file else zip_longest(*of_files)
    chunks = (chunk for some in turns for chunk in some if chunk is not None)
    return bundled(chunks, weigh=lambda chunk: chunk.bytes, bytes_max=declared.source.chunk_bytes)


def bundled(items: Iterable[Item], *, weigh: Callable[[Item], int], bytes_max: int) -> Iterator[tuple[Item, ...]]:
    """Items in their order, together up to a size."""
    some: list[Item] = []
    left = bytes_max
    for item in items:
        size = weigh(item)
        if some and size > left:
            yield tuple(some)
            some, left = [], bytes_max
        some.append(item)
        left -= size
    if some:
        yield tuple(some)


def _chunks(declared: Declared, file: FileToRead, producer_id: ProducerId) -> Iterator[Chunk]:
    """The new chunks of a file in order; each one but the last is marked as followed by another."""
    before: Chunk | None = None
    for chunk in _chunks_of_spans(declared, file, producer_id):
        if before is not None:
            yield replace(before, is_followed=True)
        before = chunk
    if before is not None:
        yield before


def _chunks_of_spans(declared: Declared, file: FileToRead, producer_id: ProducerId) -> Iterator[Chunk]:
    source, listed = declared.source, file.listed
    header = file.header or (declared.column_names if source.format is Format.CSV else ())
    for first, end in file.spans:
        chunk = Chunk(
            producer_id=producer_id,
            name=listed.name,
            url=listed.url,
            first=first,
            end=end,
            size=listed.size,
            etag=listed.etag,
            sealed=file.sealed,
            expected=file.expected,
            stored=file.stored,
            header=header,
        )
        if source.format.is_whole:
            yield from _cut_at_row_groups(source, chunk, file)
        elif end is None or is_stream(source, listed.name):
            yield chunk
        else:
            yield from _cut(source, chunk, end)


def _cut_at_row_groups(source: Source, chunk: Chunk, file: FileToRead) -> Iterator[Chunk]:
    """Chunks of whole row groups, so that several sessions read one file; a compressed one is read in order."""
    groups = file.row_groups_of(chunk.first, chunk.end)
    if not groups and chunk.end is None and len(file.spans) > 1:
        # Only rows are missing that are before its end.
        return
    may_cut = not is_compressed(chunk.url)
    firsts, sizes = [chunk.first], [0]
    for group in groups:
        if may_cut and sizes[-1] and sizes[-1] + group.bytes > source.chunk_bytes:
            firsts.append(group.first)
            sizes.append(0)
        sizes[-1] += group.bytes
    for first, end, size in zip(firsts, [*firsts[1:], chunk.end], sizes, strict=True):
        yield replace(chunk, first=first, end=end, row_bytes=size)


def _cut(source: Source, chunk: Chunk, end: int) -> Iterator[Chunk]:
    """Chunks of whole records; the rest of a record that is already loaded is skipped."""
    begins = chunk.first
    if begins and read_at(chunk.url, offset=begins - 1, size=1) != b"\n":
        newline = find_newline(chunk.url, first=begins, end=end)
        begins = end if newline is None else newline + 1
    sizes = {"chunk_bytes": source.chunk_bytes, "record_bytes_max": source.record_bytes_max}
    for first, cut_end in cuts(chunk.url, first=begins, end=end, **sizes) if begins < end else [(begins, end)]:
        if first == begins and begins != chunk.first:
            yield replace(chunk, begins=begins, end=cut_end)
        else:
            yield replace(chunk, first=first, end=cut_end)


def spans_of(chunks: Iterable[Chunk]) -> dict[ProducerId, SpanSet]:
    spans: dict[ProducerId, SpanSet] = {}
    for chunk in chunks:
        spans[chunk.producer_id] = spans.get(chunk.producer_id, SpanSet()) | SpanSet([chunk.span])
    return spans


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Chunks that one task loads: one large or many small ones."""

    number: int
    chunks: Bundle
    claim: Claim
    #: The claim covers more than this, and stays.
    is_kept: bool = False


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What the board stores of a delivery."""

    number: int
    #: Only earlier releases staged batches by deliveries.
    stage: None = None
    #: Their addresses are without passwords.
    chunks: Bundle
    #: The name of the file that a worker is reading.
    reading: str | None = None


def offers_of(bundles: Sequence[Bundle]) -> list[Offer]:
    """Serialise bundles, without passwords."""
    works = (
        _Work(number=number, chunks=tuple(_at(chunk, shown(chunk.url)) for chunk in chunks))
        for number, chunks in enumerate(bundles)
    )
    return [Offer(spans=spans_of(work.chunks), work=encode(work)) for work in works]


def decode_handed(declared: Declared, handed: Handed) -> Delivery:
    work = decode(_Work, handed.work)
    chunks = tuple(_at(chunk, with_login(chunk.url, of=declared.source.path)) for chunk in work.chunks)
    return Delivery(number=work.number, chunks=chunks, claim=handed.claim)


def _at(chunk: Chunk, url: str) -> Chunk:
    # A delivery may have thousands of chunks, and few addresses have a password.
    return chunk if url == chunk.url else replace(chunk, url=url)


def reading(work: str, name: str | None) -> str:
    """The same work with the name of the file that is being read, or None."""
    return encode(replace(decode(_Work, work), reading=name))


def find_file_being_read(work: str) -> str | None:
    """The file that a worker was reading at its last sign of life."""
    return decode(_Work, work).reading


def split_off(work: str, name: str) -> tuple[str | None, Offer]:
    """Split one file off a delivery: the rest, if there is any, and that file."""
    whole = replace(decode(_Work, work), reading=None)
    rest = tuple(chunk for chunk in whole.chunks if chunk.name != name)
    its = tuple(chunk for chunk in whole.chunks if chunk.name == name)
    return (
        encode(replace(whole, chunks=rest)) if rest else None,
        Offer(spans={chunk.producer_id: SpanSet() for chunk in its}, work=encode(replace(whole, chunks=its))),
    )
