"""What a worker does with parts of files: it reads them, and compares their bytes with the digests of receipts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from os import SEEK_END

import pyarrow as pa

from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_core.spans import Span
from onceload_jobs.files.addresses import errors_naming, use_access
from onceload_jobs.files.compression import Incomplete, is_compressed
from onceload_jobs.files.reading import look_at, open_stream
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.declared import Source
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.read.digests import Digests, possible_digests
from onceload_jobs.verify.findings import Difference, Kind

_BLOCK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything that a worker needs; it is pickled and sent to it."""

    source: Source
    #: Credentials for the object store of the files.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a file, with the digests of its bytes in order. A file that cannot be cut is one part."""

    #: The number of the file among those that are compared together, and the number of this part in the file.
    number: int
    part: int = 0
    producer_id: ProducerId
    name: str
    url: str
    digests: tuple[tuple[Span, bytes], ...]
    #: The size of the file as last recorded, if it was read to its end.
    size: int | None
    is_last: bool = True

    @property
    def bytes(self) -> int:
        return sum(len(span) for span, _ in self.digests)

    def cut(self, *, bytes_max: int) -> Iterator["Stretch"]:
        """The same in parts, cut where no digest overlaps the cut, so that they are compared as the whole would be."""
        some: list[tuple[Span, bytes]] = []
        part, size, end = 0, 0, 0
        for span, digest in self.digests:
            if size >= bytes_max and span.first >= end:
                yield replace(self, part=part, digests=tuple(some), is_last=False)
                part, some, size = part + 1, [], 0
            some.append((span, digest))
            size, end = size + len(span), max(end, span.end)
        yield replace(self, part=part, digests=tuple(some))


@dataclass(kw_only=True)
class Found:
    """The result for a part of a file."""

    #: How many bytes were compared.
    bytes: int = 0
    changed: list[Difference] = field(default_factory=list)
    #: Why nothing more could be compared.
    ended: tuple[Kind, str] | None = None
    #: With the last part: the size of the file, and the end of its records if all of it was read.
    size: int = 0
    end: int | None = None


def compare_bytes(reading: Reading, stretches: Sequence[Stretch]) -> list[Found]:
    """Compare each part. No error is raised for a file: it is a result too."""
    use_access(reading.access)
    return [_compared(reading.source, each) for each in stretches]


def _compared(source: Source, stretch: Stretch) -> Found:
    found = Found()
    try:
        if source.format.is_whole:
            _compare_row_groups(source, stretch, found)
        else:
            _compare_stream(stretch, found)
    except Incomplete as error:
        found.ended = (Kind.FILE_SHORTER, f"it breaks off after {error.end} unpacked bytes")
    except (OnceloadError, OSError, pa.ArrowException) as error:
        is_gone = isinstance(error.__cause__ or error, FileNotFoundError)
        found.ended = (Kind.FILE_MISSING, "no such file") if is_gone else (Kind.FILE_UNREADABLE, str(error))
    return found


def _compare_stream(stretch: Stretch, found: Found) -> None:
    url = stretch.url
    with open_stream(url) as stream:
        end = 0
        if not is_compressed(url) and stretch.digests:
            with errors_naming(url):
                end = min(stretch.digests[0][0].first, stream.seek(0, SEEK_END))
                stream.seek(end)
        checks, settled = [_Check(span, digest) for span, digest in stretch.digests], 0
        while settled < len(checks):
            with errors_naming(url):
                block = memoryview(stream.read(_BLOCK_BYTES))
            if not block:
                found.ended = (Kind.FILE_SHORTER, f"it ends at {end}")
                return
            for check in islice(checks, settled, None):
                if check.span.first >= end + len(block):
                    break
                check.feed(block, at=end)
            end += len(block)
            while settled < len(checks) and checks[settled].span.end <= end:
                found.bytes += len(checks[settled].span)
                found.changed += checks[settled].differences(stretch.name)
                settled += 1
        if not stretch.is_last:
            return
        found.size = look_at(url).size
        if is_compressed(url) and stretch.size == found.size:
            while block := memoryview(stream.read(_BLOCK_BYTES)):
                end += len(block)
            found.end = end


def _compare_row_groups(source: Source, stretch: Stretch, found: Found) -> None:
    """Compare row groups; their ids count rows, so only the file's footer locates their bytes."""
    expected, url = dict(stretch.digests), stretch.url
    found.size = look_at(url).size
    if stretch.size is not None and found.size < stretch.size:
        found.ended = (Kind.FILE_SHORTER, f"{found.size} instead of {stretch.size} bytes")
        return
    chunk = Chunk(producer_id=stretch.producer_id, name=stretch.name, url=url, first=0, end=None, size=found.size)
    end = 0
    for part in read_parts(chunk, source):
        raw, end = part.part.raw, part.part.end
        if not raw:
            continue
        span = Span(part.part.first, end)
        if (digest := expected.pop(span, None)) is not None:
            found.bytes += len(raw)
            found.changed += _changed(stretch.name, span, digest, possible_digests(raw))
    found.changed += (
        _bytes_changed(stretch.name, span, digest, "no row group with exactly these rows")
        for span, digest in expected.items()
    )
    found.end = end


class _Check:
    """One digest of a receipt, and that of the current bytes."""

    def __init__(self, span: Span, expected: bytes) -> None:
        self.span = span
        self._expected = expected
        self._seen = Digests()

    def feed(self, block: memoryview, *, at: int) -> None:
        self._seen.feed(block[max(0, self.span.first - at) : max(0, self.span.end - at)])

    def differences(self, name: str) -> Iterator[Difference]:
        yield from _changed(name, self.span, self._expected, self._seen.possible())


def _changed(name: str, span: Span, expected: bytes, found: Sequence[bytes]) -> Iterator[Difference]:
    if expected not in found:
        yield _bytes_changed(name, span, expected, f"digest {found[0].hex()}")


def _bytes_changed(name: str, span: Span, expected: bytes, found: str) -> Difference:
    return Difference(
        producer=name,
        kind=Kind.BYTES_CHANGED,
        span=str(span),
        expected=f"digest {expected.hex()}",
        found=found,
    )
