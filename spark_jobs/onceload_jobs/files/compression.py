"""Read compressed files, member by member."""

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO, cast

import zstandard

from onceload_core.errors import CallAgain, NeedsAPerson, OnceloadError
from onceload_jobs.files.addresses import errors_naming, shown

_PACKED_BYTES = 64 * 2**10


_UNPACKED_BYTES = 2**20


#: Four bytes of zstd may expand to 128 KiB, so a larger step could expand without bound.
_ZSTD_BYTES = 512
#: As much as the command zstd takes by default.
_ZSTD_WINDOW_MAX = 2**27
#: How zstd says that a window is larger.
_TOO_LARGE = "too much memory"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"

    @classmethod
    def of(cls, name: str) -> "Compression":
        """Decide by the last suffix of the name, as gzip and zstd do."""
        if name.endswith(".gz"):
            return cls.GZIP
        return cls.ZSTD if name.endswith(".zst") else cls.NONE


def is_compressed(name: str) -> bool:
    return Compression.of(name) is not Compression.NONE


@dataclass(eq=False)
class Incomplete(CallAgain):
    url: str
    #: How many bytes could be unpacked.
    end: int

    def __str__(self) -> str:
        return (
            f"{shown(self.url)} is incomplete: its compressed data breaks off after {self.end} unpacked bytes, as in a "
            "file that is still being written. Load again when it is complete."
        )

    def in_sealed_file(self) -> "Damaged":
        """The same in a file that counts as complete: no later load finds more of it."""
        return Damaged(self.url, self.end, "it breaks off, although source.sealed says that it is complete")


@dataclass(eq=False)
class Damaged(NeedsAPerson):
    url: str
    #: How many bytes could be unpacked.
    end: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{shown(self.url)} is damaged after {self.end} unpacked bytes ({self.reason}). Only whole records before "
            "that are loaded. Replace the file with an intact copy."
        )


@dataclass(eq=False)
class WindowTooLarge(Damaged):
    """A part of a valid file that takes more memory to unpack than is allowed."""

    def __str__(self) -> str:
        return (
            f"{shown(self.url)} cannot be unpacked after {self.end} unpacked bytes: it was written with a zstd window "
            f"of more than {_ZSTD_WINDOW_MAX / 2**20:g} MiB, which would take too much memory. Only whole records "
            "before that are loaded. Compress it again with a smaller window: `zstd -dc --long=31 OLD | zstd -o NEW`."
        )


def unpacked(url: str, opened: BinaryIO) -> BinaryIO:
    """The unpacked content of an opened file."""
    match Compression.of(url):
        case Compression.NONE:
            return opened
        case Compression.GZIP:
            stream = _Unpacked(url, opened, _gunzip(opened))
        case Compression.ZSTD:
            stream = _Unpacked(url, opened, _unzstd(opened))
    # The typing module accepts only classes that open() returns as BinaryIO.
    return cast("BinaryIO", stream)


class _BreaksOff(Exception):
    """The packed bytes end before their content does."""


class _Unpacked(io.RawIOBase):
    """The content of a compressed file; a failure is raised only after all content before it was read."""

    def __init__(self, url: str, packed: BinaryIO, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._url, self._packed, self._blocks = url, packed, blocks
        self._block, self._at, self._end = b"", 0, 0
        self._failure: OnceloadError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        taken: list[bytes] = []
        while size and self._has_more():
            taken.append(self._block[self._at : self._at + size])
            self._at += len(taken[-1])
            size -= len(taken[-1])
        if self._failure and size and not taken:
            raise self._failure
        return b"".join(taken)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - the standard library's type for it is its own.
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._packed.close()
        super().close()

    def _has_more(self) -> bool:
        if self._at == len(self._block) and self._failure is None:
            self._block, self._at = self._next_block(), 0
            self._end += len(self._block)
        return self._at < len(self._block)

    def _next_block(self) -> bytes:
        try:
            with errors_naming(self._url):
                return self._unpack()
        except OnceloadError as failure:
            self._failure = failure
        return b""

    def _unpack(self) -> bytes:
        try:
            return next(self._blocks, b"")
        except _BreaksOff:
            raise Incomplete(self._url, self._end) from None
        except (zlib.error, zstandard.ZstdError) as error:
            what = WindowTooLarge if _TOO_LARGE in str(error) else Damaged
            raise what(self._url, self._end, str(error)) from error


def _gunzip(packed: BinaryIO) -> Iterator[bytes]:
    """Unpack member by member; like gzip, skip zero padding after them."""
    member, rest = None, packed.read(_PACKED_BYTES)
    while rest:
        member = member or zlib.decompressobj(wbits=31)
        if unpacked := member.decompress(rest, _UNPACKED_BYTES):
            yield unpacked
        rest = member.unconsumed_tail or member.unused_data
        if member.eof:
            member, rest = None, rest.lstrip(b"\0")
            while not rest and (rest := packed.read(_PACKED_BYTES)):
                rest = rest.lstrip(b"\0")
        else:
            rest = rest or packed.read(_PACKED_BYTES)
    if member:
        yield from filter(None, [member.flush()])
        if not member.eof:
            raise _BreaksOff


def _unzstd(packed: BinaryIO) -> Iterator[bytes]:
    """Unpack frame by frame."""
    unpacker, frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX), None
    while block := packed.read(_PACKED_BYTES):
        for at in range(0, len(block), _ZSTD_BYTES):
            step = block[at : at + _ZSTD_BYTES]
            while step:
                # A buffer of the default size would be mapped again for every step.
                frame = frame or unpacker.decompressobj(write_size=_PACKED_BYTES)
                if unpacked := frame.decompress(step):
                    yield unpacked
                step, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise _BreaksOff
