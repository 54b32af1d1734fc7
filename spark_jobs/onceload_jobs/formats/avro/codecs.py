"""Decompress the blocks of Avro files, never to more than fits into memory."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Mapping

import zstandard

from onceload_jobs.formats import plain_values
from onceload_jobs.formats.avro.blocks import DamagedBlock, unsupported
from onceload_jobs.formats.plain_values import check_size
from onceload_jobs.formats.snappy import size_of_snappy, unpack_snappy

#: A block is held twice while it is decoded: its decompressed bytes, and the Avro array that is made of them.
_TIMES_HELD = 2


def unpack(packed: bytes, codec: str, *, url: str) -> bytes:
    if codec not in _CODECS:
        raise unsupported(url, f"the codec {codec!r}")
    size_max = plain_values.UNFOLDED_BYTES_MAX // _TIMES_HELD
    if codec == "snappy":
        check_size(url, _TIMES_HELD * size_of_snappy(packed))
    try:
        return _CODECS[codec](packed, size_max)
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError) as error:
        raise DamagedBlock(f"a block cannot be decompressed: {error}") from error


def _zstandard(packed: bytes, size_max: int) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read(size_max + 1)


def _snappy(packed: bytes, _: int) -> bytes:
    """Compressed data begins with its decompressed size, and is followed by a checksum of the decompressed bytes."""
    unpacked = unpack_snappy(packed[:-4])
    if zlib.crc32(unpacked) != int.from_bytes(packed[-4:], "big"):
        raise DamagedBlock("the checksum of a block is wrong")
    return unpacked


#: Its highest level needs 65 MiB.
_XZ_BYTES_MAX = 2**27
#: Each unpacks to little more than this size.
_CODECS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "null": lambda packed, _: packed,
    "deflate": lambda packed, size: zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, size + 1),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": lambda packed, size: bz2.BZ2Decompressor().decompress(packed, size + 1),
    "xz": lambda packed, size: lzma.LZMADecompressor(memlimit=_XZ_BYTES_MAX).decompress(packed, size + 1),
}
