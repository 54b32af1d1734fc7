"""Files that are still being copied: so far they only contain the beginning of another file.

Whether such a file is a copy is known when it is complete or continues differently. Until then it waits. If it were
loaded as a file of its own, everything after its beginning would be loaded twice.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import BinaryIO

from onceload_core.errors import OnceloadError
from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.compression import Incomplete
from onceload_jobs.files.fingerprints import EDGE_BYTES
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import open_stream

_READ_BYTES = 2**20


def copies_under_way(new: Collection[Listed], known: Sequence[Listed]) -> dict[Listed, Listed]:
    """Find the new files that wait, each with the file whose beginning it is.

    If files have equal content, only the oldest is loaded. The next load finds that the others are copies.
    """
    heads = {each: _head(each) for each in new}
    by_head: dict[bytes, list[Listed]] = {}
    for each, head in heads.items():
        by_head.setdefault(head, []).append(each)
    # An empty file begins all others, and is a copy of none.
    by_head.pop(b"", None)
    in_order = sorted(by_head)
    waiting: dict[Listed, Listed] = {}
    for other in (*known, *new) if in_order else ():
        is_new = other in new
        head = heads[other] if is_new else _head(other)
        for each in (each for begin in _beginnings(head, among=in_order) for each in by_head[begin]):
            if each is not other and each not in waiting and _goes_first(other, each, is_new=is_new):
                waiting[each] = other
    return waiting


def _head(listed: Listed) -> bytes:
    with suppress(OnceloadError), errors_naming(listed.url), open_stream(listed.url) as stream:
        return stream.read(EDGE_BYTES)
    return b""


def _beginnings(head: bytes, *, among: Sequence[bytes]) -> Iterator[bytes]:
    """Those of some sorted texts that this one begins with.

    All texts sorted between a beginning and the text itself have the same beginning, so each step skips them.
    """
    while at := bisect_right(among, head):
        before = among[at - 1]
        if head.startswith(before):
            yield before
            head = before[:-1]
        else:
            head = _common_beginning(before, head)


def _common_beginning(one: bytes, other: bytes) -> bytes:
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))]


def _goes_first(other: Listed, each: Listed, *, is_new: bool) -> bool:
    """Whether another file contains all of this one and is loaded first: it is known, longer or older."""
    with (
        suppress(OnceloadError),
        errors_naming(each.url),
        open_stream(each.url) as stream,
        open_stream(other.url) as whole,
    ):
        for block in _blocks(stream):
            if whole.read(len(block)) != block:
                return False
        return not is_new or _age(other) < _age(each) or bool(whole.read(1))
    return False


def _age(listed: Listed) -> tuple[float, str]:
    return listed.modified_at or 0, listed.name


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The blocks of a file, as far as it is complete."""
    with suppress(Incomplete):
        while block := stream.read(_READ_BYTES):
            yield block
