"""Unpack blocks of Snappy, which begin with the size of what they hold."""

import pyarrow as pa

_SIZE_BYTES_MAX = 5


def size_of_snappy(packed: bytes) -> int:
    size = 0
    for shift, byte in enumerate(packed[:_SIZE_BYTES_MAX]):
        size |= (byte & 127) << 7 * shift
        if byte < 128:
            return size
    raise ValueError("a block cannot be decompressed: it has no size")


def unpack_snappy(packed: bytes) -> bytes:
    unpacked: bytes = pa.decompress(packed, decompressed_size=size_of_snappy(packed), codec="snappy", asbytes=True)
    return unpacked
