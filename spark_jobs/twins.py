"""The same content under another name: a file that was copied, renamed or rotated away.

A name is never proof, and neither are a file's edges: they only point at what it may be a copy of. That it is one
is shown by reading it, and comparing it with the digests of all that was loaded of the other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

from dedup_core.errors import NotFound, OnceloadError
from dedup_core.names import ProducerId
from dedup_core.ports import Ledger
from dedup_core.replay import Condition, ProducerState
from dedup_core.spans import Span, SpanSet
from spark_jobs.declared import Declared, Format, Source
from spark_jobs.prepare import Digests, digest_of, digests_in
from spark_jobs.read import WrittenAnew, read_parts
from spark_jobs.sources.addresses import told
from spark_jobs.sources.files import look_at, open_stream, read_at
from spark_jobs.sources.fingerprints import EDGE_BYTES, Fingerprint, Resemblance, compare, compare_whole
from spark_jobs.sources.listing import Listed
from spark_jobs.sources.packed import Compression, Incomplete
from spark_jobs.sources.records import Chunk

_READ_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Twin:
    """What a file has in common with one that was loaded."""

    name: str
    consumed: SpanSet
    digest: bytes
    fingerprint: bytes | None
    size: int | None
    condition: Condition
    #: How many records were read under the other name.
    records: int


def resemblance_of(source: Source, listed: Listed, state: ProducerState) -> Resemblance:
    """What a file is to one that was loaded, under the same name or another."""
    fingerprint = Fingerprint.from_bytes(state.fingerprint or b"")
    if source.format is Format.PARQUET:
        return compare_whole(listed, fingerprint)
    resemblance = compare(listed, fingerprint, consumed_end=state.consumed.end)
    if resemblance is Resemblance.GROWN and state.condition is Condition.SEALED:
        return resemblance if _ends_a_line(listed, state.consumed.end) else Resemblance.CONTINUED
    return resemblance


def _ends_a_line(listed: Listed, end: int) -> bool:
    """Whether more may follow: a last line that was taken without its newline must stay the last."""
    if end == 0:
        return True
    if Compression.of(listed.url) is Compression.NONE:
        return read_at(listed.url, offset=end - 1, size=1) == b"\n"
    with open_stream(listed.url) as stream:
        _feed(stream, end - 1)
        return stream.read(1) == b"\n"


class Twins:
    """All that was loaded, by how it begins when it is unpacked; asked for as soon as a file is new."""

    def __init__(self, declared: Declared, ledger: Ledger[Any]) -> None:
        self._declared = declared
        self._ledger = ledger

    def find(self, listed: Listed) -> Twin | None:
        """The file that this one starts with, if there is one; the longest of several."""
        found = [
            (producer_id, state)
            for producer_id, state in self._alike(listed)
            if resemblance_of(self._declared.source, listed, state) in (Resemblance.SAME, Resemblance.GROWN)
        ]
        for producer_id, state in sorted(found, key=lambda each: -each[1].consumed.end):
            proof = self._ledger.proof_of(self._declared.name, producer_id)
            if self._is_proven(listed, proof.digests):
                return Twin(
                    name=state.name,
                    consumed=state.consumed,
                    digest=proof.digests,
                    fingerprint=state.fingerprint,
                    size=state.size,
                    condition=state.condition,
                    records=proof.records,
                )
        return None

    def _alike(self, listed: Listed) -> Iterator[tuple[ProducerId, ProducerState]]:
        edges = sorted({length for length, _ in self._by_edge}, reverse=True)
        begins = _beginning(listed) if edges else b""
        for length in edges:
            if length <= len(begins):
                yield from self._by_edge.get((length, _digest(begins[:length])), [])

    @cached_property
    def _by_edge(self) -> dict[tuple[int, bytes], list[tuple[ProducerId, ProducerState]]]:
        by_edge: dict[tuple[int, bytes], list[tuple[ProducerId, ProducerState]]] = {}
        for producer_id, state in _states(self._ledger, self._declared.name).items():
            # What was replaced has none any more.
            if state.fingerprint is not None and state.consumed:
                marks = Fingerprint.from_bytes(state.fingerprint).stream
                by_edge.setdefault((min(marks.end, EDGE_BYTES), marks.head), []).append((producer_id, state))
        return by_edge

    def _is_proven(self, listed: Listed, digests: bytes) -> bool:
        """Read the file, and compare; a Parquet file is written once, and its edges name all that is in between."""
        if self._declared.source.format is Format.PARQUET:
            return True
        try:
            return _holds(listed, digests)
        except OnceloadError:
            return False


def holds_what_was_loaded(declared: Declared, ledger: Ledger[Any], listed: Listed, producer_id: ProducerId) -> bool:
    """Read all of a file, and compare it with what the receipts hold of it."""
    return _is_what_was_loaded(declared.source, listed, ledger.proof_of(declared.name, producer_id).digests)


@lru_cache(maxsize=10_000)
def _is_what_was_loaded(source: Source, listed: Listed, digests: bytes) -> bool:
    """Remembered, as the store calls another content otherwise: who looks every minute does not read it each time."""
    is_text = source.format is not Format.PARQUET
    with told(listed.url):
        found = _holds(listed, digests) if is_text else _holds_row_groups(source, listed, digests)
    if look_at(listed.url).etag != listed.etag:
        raise WrittenAnew(listed.url, "its store says that it was written anew while it was compared")
    return found


def _holds_row_groups(source: Source, listed: Listed, digests: bytes) -> bool:
    whole = Chunk(producer_id=ProducerId(0), name=listed.name, url=listed.url, first=0, end=None, size=listed.size)
    there = b"".join(
        digest_of(Span(each.part.first, each.part.end), each.part.raw)
        for each in read_parts(whole, source)
        if each.part.raw
    )
    # Not all of them need to be in.
    return set(digests_in(digests)) <= set(digests_in(there))


def _first_of(digest: tuple[Span, bytes]) -> int:
    return digest[0].first


def _states(ledger: Ledger[Any], pipeline: str) -> Mapping[ProducerId, ProducerState]:
    try:
        return ledger.states(pipeline).states
    except NotFound:
        return {}


def _beginning(listed: Listed) -> bytes:
    """A file's first bytes, as far as they can be unpacked."""
    try:
        with open_stream(listed.url) as stream:
            return stream.read(EDGE_BYTES)
    except Incomplete:
        return b""


def _holds(listed: Listed, digests: bytes) -> bool:
    at = 0
    with open_stream(listed.url) as stream:
        for span, expected in sorted(digests_in(digests), key=_first_of):
            _feed(stream, span.first - at)
            if expected not in _feed(stream, len(span)):
                return False
            at = span.end
    return True


def _feed(stream: Any, size: int) -> tuple[bytes, ...]:  # noqa: ANN401 - whatever opens a source reads like a file.
    digests = Digests()
    while size and (block := stream.read(min(size, _READ_BYTES))):
        digests.feed(block)
        size -= len(block)
    return digests.possible()


def _digest(edge: bytes) -> bytes:
    return blake2b(edge, digest_size=16).digest()
