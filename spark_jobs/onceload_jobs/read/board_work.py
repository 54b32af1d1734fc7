"""The delivery that a session takes, and its form on the board."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.deliveries import Handed
from onceload_core.postgres.offers import Offer
from onceload_core.spans import SpanSet
from onceload_jobs.files.addresses import shown, with_login
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.write.codec import decode, encode


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Chunks that one task loads: one large or many small ones."""

    number: int
    chunks: tuple[Chunk, ...]
    claim: Claim
    #: The claim covers more than this, and stays.
    is_kept: bool = False


Bundle = tuple[Chunk, ...]


def spans_of(chunks: Iterable[Chunk]) -> dict[ProducerId, SpanSet]:
    spans: dict[ProducerId, SpanSet] = {}
    for chunk in chunks:
        spans[chunk.producer_id] = spans.get(chunk.producer_id, SpanSet()) | SpanSet([chunk.span])
    return spans


def offers_of(bundles: Sequence[Bundle]) -> list[Offer]:
    """Serialise bundles, without passwords."""
    return [
        Offer(spans=spans_of(chunks), work=_written(chunks, number=number)) for number, chunks in enumerate(bundles)
    ]


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What the board stores of a delivery."""

    number: int
    #: Only earlier releases staged batches by deliveries.
    stage: None = None
    #: Their addresses are without passwords.
    chunks: tuple[Chunk, ...]
    #: The name of the file that a worker is reading.
    reading: str | None = None


def _written(chunks: Bundle, *, number: int) -> str:
    return encode(_Work(number=number, chunks=tuple(_at(chunk, shown(chunk.url)) for chunk in chunks)))


def _at(chunk: Chunk, url: str) -> Chunk:
    # A delivery may have thousands of chunks, and few addresses have a password.
    return chunk if url == chunk.url else replace(chunk, url=url)


def decode_work(declared: Declared, work: str, claim: Claim) -> Delivery:
    found = decode(_Work, work)
    chunks = tuple(_at(chunk, with_login(chunk.url, of=declared.source.path)) for chunk in found.chunks)
    return Delivery(number=found.number, chunks=chunks, claim=claim)


def decode_handed(declared: Declared, handed: Handed) -> Delivery:
    return decode_work(declared, handed.work, handed.claim)


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
