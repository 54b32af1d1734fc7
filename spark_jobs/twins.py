"""The same content under another name: a file that was copied, renamed or rotated away.

A name is never proof, and neither are a file's edges: they only point at what it may be a copy of. That it is one
is shown by reading it, and comparing it with the digests of all that was loaded of the other.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dedup_core.errors import NotFound, OnceloadError
from dedup_core.names import ProducerId
from dedup_core.ports import Ledger
from dedup_core.replay import ProducerState
from dedup_core.spans import SpanSet
from spark_jobs.declared import Declared, Format
from spark_jobs.prepare import digests_in, shortened
from spark_jobs.sources.files import Listed, open_stream, read_at
from spark_jobs.sources.fingerprints import EDGE_BYTES, Fingerprint, Marks, Resemblance, compare, compare_whole

_READ_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Twin:
    """What a file has in common with one that was loaded."""

    name: str
    consumed: SpanSet
    digest: bytes
    fingerprint: bytes | None
    size: int | None
    #: How many records took effect, or were quarantined, under the other name.
    records: int


class Twins:
    """All that was loaded, by how it begins."""

    def __init__(self, declared: Declared, ledger: Ledger[Any]) -> None:
        self._declared = declared
        self._ledger = ledger
        self._by_edge: dict[tuple[int, bytes], list[tuple[ProducerId, ProducerState, Fingerprint]]] = {}
        for producer_id, state in _states(ledger, declared.name).items():
            if state.fingerprint is not None and state.consumed:
                fingerprint = Fingerprint.from_bytes(state.fingerprint)
                self._by_edge.setdefault(_edge(fingerprint), []).append((producer_id, state, fingerprint))
        self._edges = sorted({length for length, _ in self._by_edge}, reverse=True)

    def find(self, listed: Listed) -> Twin | None:
        """The file that this one starts with, if there is one; the longest of several."""
        found = [
            (producer_id, state)
            for producer_id, state, fingerprint in self._alike(listed)
            if self._resembles(listed, state, fingerprint)
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
                    records=proof.records,
                )
        return None

    def _alike(self, listed: Listed) -> Iterator[tuple[ProducerId, ProducerState, Fingerprint]]:
        begins = read_at(listed.url, offset=0, size=EDGE_BYTES)
        for length in self._edges:
            if length <= len(begins):
                yield from self._by_edge.get((length, _digest(begins[:length])), [])

    def _resembles(self, listed: Listed, state: ProducerState, fingerprint: Fingerprint) -> bool:
        if self._declared.source.format is Format.PARQUET:
            return compare_whole(listed, fingerprint) is Resemblance.SAME
        return compare(listed, fingerprint, consumed_end=state.consumed.end) in (Resemblance.SAME, Resemblance.GROWN)

    def _is_proven(self, listed: Listed, digests: bytes) -> bool:
        """Read the file, and compare; a Parquet file is written once, and its edges name all that is in between."""
        if self._declared.source.format is Format.PARQUET:
            return True
        try:
            return _holds(listed, digests)
        except OnceloadError:
            return False


def _states(ledger: Ledger[Any], pipeline: str) -> Mapping[ProducerId, ProducerState]:
    try:
        return ledger.states(pipeline).states
    except NotFound:
        return {}


def _edge(fingerprint: Fingerprint) -> tuple[int, bytes]:
    """How long the beginning is that is remembered of a file as it lies there, and its digest."""
    marks: Marks = fingerprint.packed or fingerprint.stream
    return min(marks.end, EDGE_BYTES), marks.head


def _holds(listed: Listed, digests: bytes) -> bool:
    at = 0
    with open_stream(listed.url) as stream:
        for span, expected in sorted(digests_in(digests), key=lambda each: each[0].first):
            _feed(stream, span.first - at)
            if _feed(stream, len(span)) != expected:
                return False
            at = span.end
    return True


def _feed(stream: Any, size: int) -> bytes:  # noqa: ANN401 - whatever opens a source reads like a file.
    digest = hashlib.sha256()
    while size and (block := stream.read(min(size, _READ_BYTES))):
        digest.update(block)
        size -= len(block)
    return shortened(digest)


def _digest(edge: bytes) -> bytes:
    return blake2b(edge, digest_size=16).digest()
