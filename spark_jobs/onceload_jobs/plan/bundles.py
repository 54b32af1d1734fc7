"""Cut what is new into bundles for one session each, and describe them for the board."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from onceload_core.delivery import Mode
from onceload_core.names import ProducerId
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.reading import read_at
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.declared import Declared, Format, Source
from onceload_jobs.plan.to_read import FileToRead
from onceload_jobs.read.board_work import Bundle
from onceload_jobs.read.cuts import cuts, find_newline
from onceload_jobs.read.parts import is_stream


def bundles_of(
    declared: Declared, files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId]
) -> Iterator[Bundle]:
    """Cut large files, and combine small ones: a bundle is about as large as one commit."""
    held: list[Chunk] = []
    held_bytes = 0
    for chunk in _in_turn(declared, files, ids):
        if held and held_bytes + chunk.bytes > declared.source.chunk_bytes:
            yield tuple(held)
            held, held_bytes = [], 0
        held.append(chunk)
        held_bytes += chunk.bytes
    if held:
        yield tuple(held)


def _in_turn(
    declared: Declared, files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId]
) -> Iterator[Chunk]:
    """Alternate between files, so that a large file does not delay small ones; or file by file if ordered."""
    of_files = [_chunks(declared, file, ids[file.listed.name, file.generation]) for file in files]
    if declared.delivery.mode is Mode.ORDERED:
        return chain.from_iterable(of_files)
    return (chunk for rank in zip_longest(*of_files) for chunk in rank if chunk is not None)


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
    header = file.header or (tuple(c.name for c in declared.columns) if source.format is Format.CSV else ())
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
    begins = _begins(chunk, end)
    sizes = {"chunk_bytes": source.chunk_bytes, "record_bytes_max": source.record_bytes_max}
    edges = cuts(chunk.url, first=begins, end=end, **sizes) if begins < end else [(begins, end)]
    for first, cut_end in edges:
        if first == begins and begins != chunk.first:
            yield replace(chunk, begins=begins, end=cut_end)
        else:
            yield replace(chunk, first=first, end=cut_end)


def _begins(chunk: Chunk, end: int) -> int:
    """The start of the first record; the rest of a record that is already loaded is skipped."""
    if chunk.first == 0 or read_at(chunk.url, offset=chunk.first - 1, size=1) == b"\n":
        return chunk.first
    newline = find_newline(chunk.url, first=chunk.first, end=end)
    return end if newline is None else newline + 1
