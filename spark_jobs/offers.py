"""What is new, cut into what one session takes at once, and how that is written down for whoever takes it."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, zip_longest

from dedup_core.delivery import Mode
from dedup_core.names import ProducerId
from dedup_core.ports import Claim
from dedup_core.postgres.deliveries import Handed, Offer
from dedup_core.spans import SEQUENCE_END, Span, SpanSet
from spark_jobs.declared import Declared, Format, Source
from spark_jobs.loading import Delivery
from spark_jobs.plan import FileToRead, is_stream
from spark_jobs.sources.addresses import shown, with_login
from spark_jobs.sources.files import read_at
from spark_jobs.sources.pieces import cuts, find_newline
from spark_jobs.sources.records import Chunk

Bundle = tuple[Chunk, ...]


def bundles(
    declared: Declared, files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId]
) -> Iterator[Bundle]:
    """Large files are cut, small ones put together: what one session takes is about as much as one commit does."""
    held: list[Chunk] = []
    held_bytes = 0
    for chunk in _in_turn(declared, files, ids):
        size = (chunk.size if chunk.end is None else chunk.end) - chunk.first
        if held and held_bytes + size > declared.source.chunk_bytes:
            yield tuple(held)
            held, held_bytes = [], 0
        held.append(chunk)
        held_bytes += max(size, 0)
    if held:
        yield tuple(held)


def _in_turn(
    declared: Declared, files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId]
) -> Iterator[Chunk]:
    """One chunk of each file after the other, so that a large file keeps no small one waiting; or file by file."""
    of_files = [_chunks(declared, file, ids[file.listed.name, file.generation]) for file in files]
    if declared.delivery.mode is Mode.ORDERED:
        return chain.from_iterable(of_files)
    return (chunk for rank in zip_longest(*of_files) for chunk in rank if chunk is not None)


def _chunks(declared: Declared, file: FileToRead, producer_id: ProducerId) -> Iterator[Chunk]:
    """What is new of a file, in order; each chunk but the last says that it is not."""
    before: Chunk | None = None
    for chunk in _pieces(declared, file, producer_id):
        if before is not None:
            yield replace(before, is_followed=True)
        before = chunk
    if before is not None:
        yield before


def _pieces(declared: Declared, file: FileToRead, producer_id: ProducerId) -> Iterator[Chunk]:
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
            lying=file.lying,
            header=header,
        )
        if end is None or is_stream(source, listed.name):
            yield chunk
        else:
            yield from _cut(source, chunk, end)


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
    """Where the first record starts: what is left of one that took effect is none."""
    if chunk.first == 0 or read_at(chunk.url, offset=chunk.first - 1, size=1) == b"\n":
        return chunk.first
    newline = find_newline(chunk.url, first=chunk.first, end=end)
    return end if newline is None else newline + 1


def spans_of(chunks: Iterable[Chunk]) -> dict[ProducerId, SpanSet]:
    spans: dict[ProducerId, SpanSet] = {}
    for chunk in chunks:
        span = SpanSet([Span(chunk.first, SEQUENCE_END if chunk.end is None else chunk.end)])
        spans[chunk.producer_id] = spans.get(chunk.producer_id, SpanSet()) | span
    return spans


def offers_of(some: Sequence[Bundle], *, stage: str | None = None) -> list[Offer]:
    """What is written down of bundles, but for passwords; `stage` names the one that their rows go to."""
    return [
        Offer(spans=spans_of(chunks), work=_written(chunks, number=number, stage=stage))
        for number, chunks in enumerate(some)
    ]


def _written(chunks: Bundle, *, number: int, stage: str | None) -> str:
    return json.dumps({"number": number, "stage": stage, "chunks": [_as_json(chunk) for chunk in chunks]})


def _as_json(chunk: Chunk) -> dict[str, object]:
    # What is as it mostly is need not be said.
    said = {name: value for name, value in asdict(chunk).items() if value != _DEFAULTS.get(name, _NOTHING)}
    said["url"] = shown(chunk.url)
    if chunk.expected:
        said["expected"] = [b64encode(each).decode() for each in chunk.expected]
    if chunk.lying:
        said["lying"] = b64encode(chunk.lying).decode()
    return said


_NOTHING = object()
_DEFAULTS: dict[str, object] = {
    "begins": None,
    "etag": None,
    "expected": (),
    "lying": None,
    "sealed": False,
    "header": (),
    "is_followed": False,
}


def read_work(declared: Declared, work: str, claim: Claim) -> tuple[Delivery, str | None]:
    """The delivery that was written down, and the stage that its rows go to."""
    said = json.loads(work)
    chunks = tuple(
        Chunk(
            **{
                **each,
                "url": with_login(each["url"], of=declared.source.path),
                "expected": tuple(map(b64decode, each.get("expected", ()))),
                "lying": b64decode(each["lying"]) if "lying" in each else None,
                "header": tuple(each.get("header", ())),
            }
        )
        for each in said["chunks"]
    )
    return Delivery(number=said["number"], chunks=chunks, claim=claim), said["stage"]


def read_handed(declared: Declared, handed: Handed) -> tuple[Delivery, str | None]:
    return read_work(declared, handed.work, handed.claim)


# What is noted of a delivery that is tried again, file by file.


def reading(work: str, name: str | None) -> str:
    """The same work, with the name of the file that is being read, or without any."""
    return json.dumps({**json.loads(work), _READING: name})


def find_file_in_hand(work: str) -> str | None:
    """The file that a worker was reading when it was last heard of."""
    name: str | None = json.loads(work).get(_READING)
    return name


_READING = "reading"


def parted(work: str, name: str) -> tuple[str | None, Offer]:
    """All but one file of a delivery, if there is more, and that file."""
    said = json.loads(reading(work, None))
    rest = [chunk for chunk in said["chunks"] if chunk["name"] != name]
    its = [chunk for chunk in said["chunks"] if chunk["name"] == name]
    spans = {ProducerId(chunk["producer_id"]): SpanSet() for chunk in its}
    return (
        json.dumps({**said, "chunks": rest}) if rest else None,
        Offer(spans=spans, work=json.dumps({**said, "chunks": its})),
    )
