"""Find the same content under another name: a file that was copied, renamed or rotated.

Neither a name nor the edges of a file are proof; they only point to candidates. The proof is to read the whole file
and to compare it with the digests of everything that was loaded of the other one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, BinaryIO

from onceload_core.errors import NotFound, OnceloadError
from onceload_core.names import ProducerId
from onceload_core.ports import Ledger, LoadedProducer
from onceload_core.replay import Condition, ProducerState
from onceload_core.spans import Span, SpanSet
from onceload_jobs.files.addresses import Unreadable, errors_naming
from onceload_jobs.files.compression import Damaged, Incomplete, is_compressed
from onceload_jobs.files.fingerprints import (
    EDGE_BYTES,
    Fingerprint,
    Resemblance,
    compare,
    compare_whole,
    fingerprint_of,
)
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import look_at, open_stream, read_at
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.declared import Declared, Format, Source
from onceload_jobs.read.checked_parts import FileRewritten, read_parts
from onceload_jobs.read.digests import Digests, digests_in, possible_digests

_READ_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class CopyRecord:
    """What to record about a file that is partly or completely loaded, without reading its records."""

    #: The name under which it is loaded.
    name: str
    fingerprint: bytes | None
    size: int | None
    condition: Condition
    #: What it consumes under its own name, if it continues differently from that other file.
    consumed: SpanSet = field(default_factory=SpanSet)
    digest: bytes = b""
    records: int = 0
    #: How many of its records were not counted yet.
    duplicates: int = 0
    #: The producer that loaded these records.
    shares_with: ProducerId | None = None
    #: The producer whose content this name holds.
    copy_of: ProducerId | None = None
    #: The file contains everything that was loaded of that producer.
    is_whole: bool = False
    #: The consumed set of that producer has holes, so the file is not yet proven to contain what will fill them.
    has_holes: bool = False
    #: That producer continues under this name.
    takes_over: bool = False


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A producer whose loaded content a file contains completely."""

    producer_id: ProducerId
    state: ProducerState
    #: How many of its records were read, under any name.
    records: int
    #: The file ends where the loaded content ends.
    is_all: bool
    #: The fingerprint of the file up to that end.
    fingerprint: bytes


def resemblance_of(source: Source, listed: Listed, state: ProducerState) -> Resemblance:
    """Compare a file with one that was loaded, under the same or another name."""
    fingerprint = Fingerprint.from_bytes(state.fingerprint or b"")
    if source.format.is_whole:
        return compare_whole(listed, fingerprint)
    resemblance = compare(listed, fingerprint, consumed_end=state.consumed.end)
    if resemblance is Resemblance.GROWN and state.condition is Condition.SEALED:
        return resemblance if ends_a_line(source, listed.url, state.consumed.end) else Resemblance.CONTINUED
    return resemblance


def ends_a_line(source: Source, url: str, end: int) -> bool:
    """Whether more may follow: a last line that was loaded without its newline must not continue."""
    if end == 0:
        return True
    # In a multiline file the next newline may be inside an open quote.
    size = 1 if source.format is Format.CSV and source.csv.multiline else 3
    if is_compressed(url):
        with open_stream(url) as stream:
            _digests_of_next(stream, end - 1)
            last_and_next = stream.read(size)
    else:
        last_and_next = read_at(url, offset=end - 1, size=size)
    # The line ends with the first of these bytes, or with the newline after it that was missing.
    return last_and_next[:1] == b"\n" or last_and_next[1:].startswith((b"\n", b"\r\n"))


class LoadedContents:
    """All loaded producers, indexed by the beginning of their unpacked content; used once a file is new."""

    def __init__(self, declared: Declared, ledger: Ledger[Any]) -> None:
        self._declared = declared
        self._ledger = ledger

    def find(self, listed: Listed) -> Shared | None:
        """The producer whose loaded content this file contains completely; the longest of several."""
        return self._find(listed, Resemblance.SAME, Resemblance.GROWN)

    def find_continued(self, listed: Listed) -> Shared | None:
        """The same for a producer whose last line was loaded without its newline and continues in this file."""
        return self._find(listed, Resemblance.CONTINUED)

    def _find(self, listed: Listed, *meant: Resemblance) -> Shared | None:
        found = [
            loaded
            for loaded in self.alike(listed)
            if resemblance_of(self._declared.source, listed, loaded.state) in meant
        ]
        for loaded in sorted(found, key=lambda each: -each.state.consumed.end):
            if shared := self.shared(listed, loaded):
                return shared
        return None

    def shared(self, listed: Listed, loaded: LoadedProducer) -> Shared | None:
        """Check that a file contains all loaded content of a producer, by comparing it with the receipts."""
        producer_id, state = loaded
        source, proof = self._declared.source, self._ledger.proof_of(self._declared.name, producer_id)
        if not proof.records:
            # Many files begin like this: with the same header, or with nothing.
            return None
        marks_before = fingerprint_of(listed.url, end=listed.size).stream
        try:
            is_all = _ends_after(source, listed, proof.digests, end=state.consumed.end)
        except Unreadable:
            # It may contain all of it. If it were loaded as another file, its records would be loaded twice.
            raise
        except OnceloadError:
            return None
        if is_all is None:
            return None
        fingerprint = replace(Fingerprint.from_bytes(state.fingerprint or b""), packed=None)
        if is_all and is_compressed(listed.url) and fingerprint_of(listed.url, end=listed.size).stream == marks_before:
            fingerprint = replace(fingerprint, packed=marks_before)
        return Shared(
            producer_id=producer_id,
            state=state,
            records=proof.records,
            is_all=is_all,
            fingerprint=fingerprint.named(listed.etag).to_bytes(),
        )

    def alike(self, listed: Listed) -> Iterator[LoadedProducer]:
        """The producers that begin like this file, so the file may contain their content."""
        edges = sorted({length for length, _ in self._by_edge}, reverse=True)
        begins = _beginning(listed) if edges else b""
        for length in edges:
            if length <= len(begins):
                digest = blake2b(begins[:length], digest_size=16).digest()
                yield from self._by_edge.get((length, digest), [])

    @cached_property
    def _by_edge(self) -> dict[tuple[int, bytes], list[LoadedProducer]]:
        by_edge: dict[tuple[int, bytes], list[LoadedProducer]] = {}
        for producer_id, state in loaded_states(self._ledger, self._declared.name).items():
            # A replaced producer has no content any more.
            if state.fingerprint is not None and state.consumed:
                marks = Fingerprint.from_bytes(state.fingerprint).stream
                alike = by_edge.setdefault((min(marks.end, EDGE_BYTES), marks.head), [])
                alike.append(LoadedProducer(producer_id, state))
        return by_edge


def holds_what_was_loaded(
    declared: Declared, ledger: Ledger[Any], listed: Listed, producer_id: ProducerId, *, end: int | None = None
) -> bool:
    """Read the whole file, and compare it with the receipts, optionally up to a sequence id."""
    return _is_what_was_loaded(declared.source, listed, ledger.proof_of(declared.name, producer_id, end=end).digests)


@lru_cache(maxsize=10_000)
def _is_what_was_loaded(source: Source, listed: Listed, digests: bytes) -> bool:
    """Cached by ETag, so that a load every minute does not read the file each time."""
    found = _ends_after(source, listed, digests, end=0) is not None
    if look_at(listed.url).etag != listed.etag:
        raise FileRewritten(listed.url, "the object store reports that it was rewritten while it was compared")
    return found


def _ends_after(source: Source, listed: Listed, digests: bytes, *, end: int) -> bool | None:
    """Whether a file ends where all content with these digests ends; None if it does not contain that."""
    if source.format.is_whole:
        with errors_naming(listed.url):
            return _has_only(source, listed, digests)
    with errors_naming(listed.url), open_stream(listed.url) as stream:
        at = 0
        for span, expected in sorted(digests_in(digests), key=lambda each: each[0].first):
            _digests_of_next(stream, span.first - at)
            if expected not in _digests_of_next(stream, len(span)):
                return None
            at = span.end
        _digests_of_next(stream, max(0, end - at))
        try:
            return not stream.read(1)
        except (Incomplete, Damaged):
            return False


def _has_only(source: Source, listed: Listed, digests: bytes) -> bool | None:
    """Whether a file has no other row groups than those with these digests; None if it does not have all of them."""
    whole = Chunk(producer_id=ProducerId(0), name=listed.name, url=listed.url, first=0, end=None, size=listed.size)
    there = {
        Span(each.part.first, each.part.end): possible_digests(each.part.raw)
        for each in read_parts(whole, source)
        if each.part.raw
    }
    loaded = digests_in(digests)
    if any(digest not in there.get(span, ()) for span, digest in loaded):
        return None
    return {span for span, _ in loaded} == there.keys()


def _digests_of_next(stream: BinaryIO, size: int) -> tuple[bytes, ...]:
    digests = Digests()
    while size and (block := stream.read(min(size, _READ_BYTES))):
        digests.feed(block)
        size -= len(block)
    return digests.possible()


def _beginning(listed: Listed) -> bytes:
    """The first bytes of a file, as far as they can be unpacked."""
    try:
        with errors_naming(listed.url), open_stream(listed.url) as stream:
            return stream.read(EDGE_BYTES)
    except Incomplete:
        return b""


def loaded_states(ledger: Ledger[Any], pipeline: str) -> Mapping[ProducerId, ProducerState]:
    """The states of all producers of a pipeline, which may be unknown so far."""
    try:
        return ledger.states(pipeline).states
    except NotFound:
        return {}
