"""Find where a file differs from another one with the same beginning: after the last record that both contain."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_core.spans import Span, SpanSet
from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.fingerprints import Fingerprint, StreamMarks
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import open_stream
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.columns import SEQUENCE
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.read.digests import Digests
from onceload_jobs.read.parts import complete_end
from onceload_jobs.read.rows import header_of, read_records

_READ_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class CommonBeginning:
    """What a file has in common with another one."""

    end: int
    #: Records in it, from where counting started.
    records: int
    digest: bytes
    fingerprint: bytes

    @property
    def spans(self) -> SpanSet:
        return SpanSet([Span(0, self.end)]) if self.end else SpanSet()


def common_beginning(one: Listed, other: Listed) -> tuple[int, bool]:
    """How many bytes two files share, and whether the first file continues after them."""
    end = 0
    with errors_naming(one.url), open_stream(one.url) as stream, open_stream(other.url) as beside:
        while block := stream.read(_READ_BYTES):
            there = beside.read(len(block))
            length = min(len(block), len(there))
            differs = np.frombuffer(block[:length], np.uint8) != np.frombuffer(there[:length], np.uint8)
            same = int(differs.argmax()) if differs.any() else length
            end += same
            if same < len(block):
                return end, True
    return end, False


def cut_common_beginning(
    declared: Declared, listed: Listed, *, common: int, counted_from: int, is_stream: bool
) -> CommonBeginning:
    """Cut the shared bytes after their last whole record; the records before `counted_from` are known."""
    first = counted_from if counted_from <= common else 0
    starts = np.sort(np.array([*_starts(declared, listed, first=first, common=common, is_stream=is_stream)], np.int64))
    end = int(starts[-1]) if len(starts) else first
    seen, digests = StreamMarks(), Digests()
    with errors_naming(listed.url), open_stream(listed.url) as stream:
        while seen.end < end and (block := stream.read(min(_READ_BYTES, end - seen.end))):
            seen.feed(block)
            digests.feed(block)
    records = int(np.searchsorted(starts, end))
    digest = digests.of(Span(0, end)) if end else b""
    return CommonBeginning(
        end=end, records=records, digest=digest, fingerprint=Fingerprint(stream=seen.marks).to_bytes()
    )


def _starts(declared: Declared, listed: Listed, *, first: int, common: int, is_stream: bool) -> Iterator[int]:
    """The starts of the shared records, and the first start after them."""
    source, size = declared.source, listed.size
    end = None if is_stream else complete_end(listed.url, first=first, size=size)
    chunk = Chunk(
        producer_id=ProducerId(0),
        name=listed.name,
        url=listed.url,
        first=first,
        end=end,
        size=size,
        header=header_of(declared, listed.url),
    )
    # An error that prevents reading the rest is reported when the rest is loaded.
    with suppress(OnceloadError):
        for each in read_parts(chunk, source):
            if each.part.first > common:
                return
            records = read_records(declared, declared.columns, [each])
            found = [*records.rows.column(SEQUENCE).to_pylist(), *(bad.sequence_id for bad in records.bad)]
            yield from (start for start in found if start <= common)
            if each.part.end <= common:
                yield each.part.end
