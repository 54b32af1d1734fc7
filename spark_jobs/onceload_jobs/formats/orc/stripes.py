"""The streams of a stripe of ORC, and a stripe in which all times have zero seconds."""

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

import zstandard

from onceload_jobs.files.footers import Message, fields_of, written
from onceload_jobs.formats.chunks import RowGroup
from onceload_jobs.formats.orc.footers import (
    TIMES,
    codec_of,
    kinds_of,
    not_packed,
    number_of,
    stripe_of,
    unsupported,
)
from onceload_jobs.formats.snappy import size_of_snappy, unpack_snappy


class _Of(IntEnum):
    """The fields of the messages that are used, from orc_proto.proto."""

    STRIPE_INDEX_BYTES = 2
    STRIPE_DATA_BYTES = 3
    STRIPE_FOOTER_BYTES = 4
    FOOTER_STREAMS = 1
    FOOTER_ENCODINGS = 2
    FOOTER_ZONE = 3
    STREAM_KIND = 1
    STREAM_COLUMN = 2
    STREAM_BYTES = 3
    ENCODING_KIND = 1


class _Codec(IntEnum):
    NONE = 0
    ZLIB = 1
    SNAPPY = 2
    LZ4 = 4
    ZSTD = 5


_DATA = 1
_DIRECT_V2 = 2
_HEADER_BYTES = 3
#: No block of a stripe's footer is larger.
_BLOCK_BYTES_MAX = 2**24


@dataclass(frozen=True, kw_only=True)
class StripeFooter:
    message: Message
    #: The time zone of the writer.
    zone: str


def footer_of_stripe(group: RowGroup, raw: bytes, *, url: str) -> StripeFooter:
    size = number_of(fields_of(stripe_of(group)), _Of.STRIPE_FOOTER_BYTES)
    codec = codec_of(group.footer)
    if codec not in set(_Codec):
        raise unsupported(url, "timestamps in LZO-compressed files")
    message = fields_of(_unpacked(raw[len(raw) - size :], _Codec(codec)))
    (zone,) = message.get(_Of.FOOTER_ZONE, [b""])[-1:]
    return StripeFooter(message=message, zone=zone.decode() if isinstance(zone, bytes) else "")


def without_seconds(group: RowGroup, raw: bytes, footer: StripeFooter, *, values: int) -> tuple[bytes, bytes]:
    """The stripe with zero for the seconds of its times, and what describes it in the footer of its file."""
    kinds = kinds_of(group.footer)
    encodings = [fields_of(each) for each in _messages(footer, _Of.FOOTER_ENCODINGS)]
    content, streams, at = list[bytes](), list[bytes](), 0
    for stream in _messages(footer, _Of.FOOTER_STREAMS):
        facts = fields_of(stream)
        column, size = number_of(facts, _Of.STREAM_COLUMN), number_of(facts, _Of.STREAM_BYTES)
        octets, at = raw[at : at + size], at + size
        if number_of(facts, _Of.STREAM_KIND) == _DATA and kinds[column] in TIMES:
            is_v2 = number_of(encodings[column], _Of.ENCODING_KIND) == _DIRECT_V2
            octets = not_packed(group.footer, _zeros(values, is_v2=is_v2))
        content.append(octets)
        streams.append(stream + written(_Of.STREAM_BYTES, len(octets)))
    changed = [written(_Of.FOOTER_STREAMS, each) for each in streams]
    changed += [written(_Of.FOOTER_ENCODINGS, each) for each in _messages(footer, _Of.FOOTER_ENCODINGS)]
    described = not_packed(group.footer, b"".join([*changed, written(_Of.FOOTER_ZONE, b"GMT")]))
    stripe = stripe_of(group)
    index_bytes = number_of(fields_of(stripe), _Of.STRIPE_INDEX_BYTES)
    data_bytes = sum(map(len, content)) - index_bytes
    stripe += written(_Of.STRIPE_DATA_BYTES, data_bytes) + written(_Of.STRIPE_FOOTER_BYTES, len(described))
    return b"".join([*content, described]), stripe


def _messages(footer: StripeFooter, field: int) -> list[bytes]:
    return [each for each in footer.message.get(field, ()) if isinstance(each, bytes)]


def _zeros(count: int, *, is_v2: bool) -> bytes:
    """At least so many integers of zero, in runs of the longest length."""
    if is_v2:
        # A run of differences, which are all zero.
        return b"\xc1\xff\0\0" * (count // 512 + 1)
    return b"\x7f\0\0" * (count // 130 + 1)


def _unpacked(packed: bytes, codec: _Codec) -> bytes:
    if codec is _Codec.NONE:
        return packed
    blocks, at = list[bytes](), 0
    while at < len(packed):
        header = int.from_bytes(packed[at : at + _HEADER_BYTES], "little")
        first, at = at + _HEADER_BYTES, at + _HEADER_BYTES + (header >> 1)
        block = packed[first:at]
        blocks.append(block if header & 1 else _block(block, codec))
        _check_length(len(blocks[-1]))
    return b"".join(blocks)


def _check_length(of_block: int) -> None:
    if of_block > _BLOCK_BYTES_MAX:
        raise ValueError(f"a block has more than {_BLOCK_BYTES_MAX:,} bytes")


def _block(packed: bytes, codec: _Codec) -> bytes:
    match codec:
        case _Codec.ZLIB:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, _BLOCK_BYTES_MAX + 1)
        case _Codec.ZSTD:
            return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read(_BLOCK_BYTES_MAX + 1)
        case _Codec.SNAPPY:
            _check_length(size_of_snappy(packed))
            return unpack_snappy(packed)
        case _:
            return _lz4(packed)


def _lz4(packed: bytes) -> bytes:
    """A block of LZ4, which does not say how long it is."""
    found, octets = bytearray(), iter(packed)
    for token in octets:
        _check_length(len(found) + (literals := _length(token >> 4, octets)))
        found += bytes(islice(octets, literals))
        # The last sequence has literals only.
        for low, high in zip(islice(octets, 1), islice(octets, 1), strict=True):
            back = low | high << 8
            copied = _length(token & 15, octets) + 4
            _check_length(len(found) + copied)
            for _ in range(copied):
                found.append(found[-back])
    return bytes(found)


def _length(first: int, octets: Iterator[int]) -> int:
    """A length of 15 continues in the next byte, and so does each byte of 255."""
    total = last = first
    if first == 15:
        last = 255
    while last == 255:
        last = next(octets, 0)
        total += last
    return total
