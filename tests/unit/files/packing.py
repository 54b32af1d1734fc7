"""Ways to put the same bytes into a file, and how to list the one file that has them."""

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import zstandard

from onceload_jobs.files.listing import Listed, list_files
from tests.laws import examples

#: Every example writes a file: an eighth of the usual number is as long as a person should wait.
ON_DISK = examples(12)

Pack = Callable[[bytes], bytes]

PACKS: dict[str, Pack] = {
    "": bytes,
    ".gz": lambda block: gzip.compress(block, mtime=0),
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
PACKED = tuple(suffix for suffix in PACKS if suffix)


def packed(content: bytes, suffix: str, *, members: int = 1) -> bytes:
    """Pack bytes into so many gzip members or zstd frames, one behind the other."""
    edges = [len(content) * at // members for at in range(members + 1)]
    return b"".join(PACKS[suffix](content[first:end]) for first, end in pairwise(edges))


def listed(path: Path) -> Listed:
    (only,) = list_files(str(path)).files
    return only
