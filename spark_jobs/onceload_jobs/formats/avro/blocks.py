"""The blocks of an Avro file, which are found by their lengths. The sync marker of the file follows each.

A file is read to its end before any of it is loaded. The bytes of a block are skipped. Blocks are read in groups whose
places depend on nothing but the bytes of the file, so that receipts of any version can be compared with it.
"""

import io
import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import BinaryIO

from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.fingerprints import Fingerprint
from onceload_jobs.files.reading import open_stream, read_at
from onceload_jobs.formats import typed_files
from onceload_jobs.formats.chunks import RowGroup
from onceload_jobs.formats.signatures import AVRO

KIND = "Avro"
damaged, unsupported = partial(typed_files.damaged, kind=KIND), partial(typed_files.unsupported, kind=KIND)
#: A group ends with the first block that reaches this many bytes.
GROUP_BYTES = 2**18
_MARK_BYTES = 16
_SCHEMA, _CODEC = b"avro.schema", b"avro.codec"
#: A larger entry of a header is a damaged length.
_ENTRY_BYTES_MAX = 2**24
_VARINT_BYTES_MAX = 10
#: What the codecs make of nothing takes at most half of it.
_EMPTY_BYTES_MAX = 64
#: No file has so many, and a sum of such counts still is a sequence id.
_ROWS_MAX = 2**60


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the beginning of a file says of its blocks."""

    schema: bytes
    codec: str
    mark: bytes
    #: How many bytes it takes.
    size: int


@dataclass(frozen=True, kw_only=True)
class Block:
    rows: int
    #: As the codec packed it.
    packed: bytes


class DamagedBlock(ValueError):
    """Bytes that are not those of an Avro file, and why."""


@lru_cache(maxsize=16)
def read_blocks(
    url: str,
    fingerprint: Fingerprint,
    version: Hashable,  # noqa: ARG001 - it says of which content they are.
) -> tuple[bytes, tuple[RowGroup, ...]]:
    """The header of a file in this version, and the groups of its blocks; refuse one that is not complete."""
    with open_stream(url) as stream, errors_naming(url):
        try:
            source = _Source(stream)
            header = _header(source)
            raw = read_at(url, offset=0, size=header.size)
            return raw, tuple(_groups(source, header, raw, size=fingerprint.stream.end))
        except DamagedBlock as error:
            raise damaged(url, str(error)) from error


@lru_cache(maxsize=4)
def header_of(raw: bytes) -> Header:
    return _header(_Source(io.BytesIO(raw)))


def blocks_of(raw: bytes, header: Header) -> Iterator[Block]:
    """The blocks of a group."""
    source = _Source(io.BytesIO(raw))
    while source.at < len(raw):
        rows, size = source.count(), source.count()
        yield Block(rows=rows, packed=source.take(size))
        source.check(header.mark)


class _Source:
    """Reads integers and bytes in order."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.at = 0

    def take(self, size: int) -> bytes:
        block = self._stream.read(size)
        self.at += len(block)
        if len(block) < size:
            raise DamagedBlock(f"it ends at byte {self.at}, in the middle of a block")
        return block

    def skip(self, size: int) -> None:
        self.at += size
        self._stream.seek(self.at, os.SEEK_SET)

    def integer(self) -> int:
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
        raise DamagedBlock(f"the integer before byte {self.at} does not end")

    def count(self) -> int:
        count = self.integer()
        if count < 0:
            raise DamagedBlock(f"the count before byte {self.at} is negative")
        return count

    def entry(self) -> bytes:
        size = self.count()
        if size > _ENTRY_BYTES_MAX:
            raise DamagedBlock("its header cannot be read")
        return self.take(size)

    def check(self, mark: bytes) -> None:
        if self.take(len(mark)) != mark:
            raise DamagedBlock(f"the block before byte {self.at} is not followed by the sync marker of the file")


def _header(source: _Source) -> Header:
    if source.take(len(AVRO)) != AVRO:
        raise DamagedBlock("it does not begin like an Avro file")
    facts = dict(_entries(source))
    if _SCHEMA not in facts:
        raise DamagedBlock("its header has no schema")
    codec = facts.get(_CODEC, b"null").decode(errors="backslashreplace")
    return Header(schema=facts[_SCHEMA], codec=codec, mark=source.take(_MARK_BYTES), size=source.at)


def _entries(source: _Source) -> Iterator[tuple[bytes, bytes]]:
    while count := source.integer():
        if count < 0:
            # A size follows, for readers that skip the entries.
            source.count()
        for _ in range(abs(count)):
            yield source.entry(), source.entry()


def _groups(source: _Source, header: Header, raw: bytes, *, size: int) -> Iterator[RowGroup]:
    first_byte, first, rows, number = source.at, 0, 0, 0
    while source.at < size:
        count, length = source.count(), source.count()
        rows += count
        if not count and length > _EMPTY_BYTES_MAX:
            raise DamagedBlock(f"a block without rows has {length} bytes, before byte {source.at}")
        if rows > _ROWS_MAX:
            raise DamagedBlock(f"its blocks have {rows} rows, more than there can be")
        if length > size - source.at:
            raise DamagedBlock(f"it ends at byte {size}, in the middle of a block")
        source.skip(length)
        source.check(header.mark)
        if source.at - first_byte < GROUP_BYTES and source.at < size:
            continue
        if rows > first:
            yield RowGroup(
                number=number,
                first=first,
                end=rows,
                first_byte=first_byte,
                end_byte=source.at,
                footer=raw,
                file_size=size,
            )
            number += 1
        first_byte, first = source.at, rows
    if source.at != size:
        raise DamagedBlock(f"it continues past byte {size}, where it ended when it was planned")


@contextmanager
def decoding(url: str) -> Iterator[None]:
    """Refuse a file that is damaged; a store that fails is reported as such."""
    with typed_files.decoding(url, kind=KIND):
        try:
            yield
        except (EOFError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            # A store without ETags does not show that a file was replaced by one with the same first and last bytes.
            read_blocks.cache_clear()
            raise damaged(url, str(error) or "it ends in the middle of a value") from error
