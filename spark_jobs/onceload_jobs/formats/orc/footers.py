"""Read and check the footer of an ORC file, and write a file of one of its stripes.

Arrow reads only whole files. So a stripe whose bytes are in memory is read as a file that holds nothing else.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from itertools import pairwise

from onceload_jobs.files.footers import (
    ORC,
    Message,
    TooManyValues,
    fields_of,
    footer_bytes,
    integers_of,
    orc_postscript,
    written,
)
from onceload_jobs.formats import typed_files
from onceload_jobs.formats.chunks import RowGroup
from onceload_jobs.formats.orc.arrow import read_tail

KIND = "ORC"
damaged, unsupported = partial(typed_files.damaged, kind=KIND), partial(typed_files.unsupported, kind=KIND)


class _Of(IntEnum):
    """The fields of the messages that are used, from orc_proto.proto."""

    TAIL_POSTSCRIPT = 1
    TAIL_FOOTER = 2
    POSTSCRIPT_FOOTER_BYTES = 1
    POSTSCRIPT_COMPRESSION = 2
    POSTSCRIPT_BLOCK_BYTES = 3
    POSTSCRIPT_METADATA_BYTES = 5
    POSTSCRIPT_STATISTICS_BYTES = 7
    POSTSCRIPT_MAGIC = 8000
    FOOTER_HEADER_BYTES = 1
    FOOTER_CONTENT_BYTES = 2
    FOOTER_STRIPES = 3
    FOOTER_TYPES = 4
    FOOTER_ROWS = 6
    FOOTER_INDEX_STRIDE = 8
    FOOTER_WRITER = 9
    FOOTER_ENCRYPTION = 10
    FOOTER_CALENDAR = 11
    FOOTER_SOFTWARE = 12
    STRIPE_OFFSET = 1
    STRIPE_INDEX_BYTES = 2
    STRIPE_DATA_BYTES = 3
    STRIPE_FOOTER_BYTES = 4
    STRIPE_ROWS = 5
    TYPE_KIND = 1
    TYPE_SUBTYPES = 2
    TYPE_NAMES = 3
    TYPE_PRECISION = 5


class TypeKind(IntEnum):
    """The kinds of types that need care."""

    LONG = 4
    TIMESTAMP = 9
    STRUCT = 12
    UNION = 13
    DECIMAL = 14
    TIMESTAMP_INSTANT = 18


TIMES = frozenset({TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_INSTANT})


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a file by their name, each with the kinds of its type and of all types inside it."""

    names: tuple[str, ...]
    kinds: tuple[tuple[int, ...], ...]


#: No file has so many, and each has a sequence id.
_ROWS_MAX = 2**60


@lru_cache(maxsize=4)
def read_row_groups(tail: bytes, *, url: str, size: int) -> tuple[RowGroup, ...]:
    """The stripes with rows, from the last bytes of a file, which must include the whole footer."""
    described = _described(tail, url=url)
    with _reading(url):
        return tuple(_row_groups(described, size=size, bytes_end=size - footer_bytes(tail)))


def read_names(tail: bytes, *, url: str) -> tuple[str, ...]:
    """The names of the columns of a file, from its last bytes."""
    described = _described(tail, url=url)
    with _reading(url):
        return schema_of(described).names


@contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except TooManyValues as error:
        raise unsupported(url, str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise damaged(url, f"its footer contradicts itself: {error}") from error


@lru_cache(maxsize=4)
def _described(tail: bytes, *, url: str) -> bytes:
    """The unpacked footer of a file with its postscript."""
    length = footer_bytes(tail)
    if not orc_postscript(tail) or not len(ORC) < length <= len(tail):
        raise damaged(url, "it does not end with an ORC footer")
    with typed_files.decoding(url, kind=KIND):
        # Arrow expects the first bytes of a file; a footer without stripes is enough.
        described = read_tail(ORC + tail[len(tail) - length :])
    with _reading(url):
        if _footer(described).get(_Of.FOOTER_ENCRYPTION):
            raise unsupported(url, "encryption")
        types = [fields_of(each) for each in _types(described)]
        if number_of(types[0], _Of.TYPE_KIND) != TypeKind.STRUCT:
            raise unsupported(url, "a top-level type that is not a struct")
        if any(number_of(t, _Of.TYPE_KIND) == TypeKind.DECIMAL and not number_of(t, _Of.TYPE_PRECISION) for t in types):
            raise unsupported(url, "decimals without a precision")
        # Each stripe is read by these. A footer in which one cannot be read is refused here.
        schema_of(described), has_julian_days(described), ends_of(described, b"")
    return described


def _message(raw: bytes, field: int) -> bytes:
    """The last value of a field, which is a message."""
    value = fields_of(raw).get(field, [b""])[-1]
    if isinstance(value, int):
        raise TypeError("a number in place of a message")
    return value


def _footer(described: bytes) -> Message:
    return fields_of(_message(described, _Of.TAIL_FOOTER))


def number_of(message: Message, field: int) -> int:
    value = message.get(field, [0])[-1]
    if not isinstance(value, int):
        raise TypeError("a message in place of a number")
    return value


def _row_groups(described: bytes, *, size: int, bytes_end: int) -> Iterator[RowGroup]:
    footer = _footer(described)
    stripes = [fields_of(each) for each in _all_bytes(footer, _Of.FOOTER_STRIPES)]
    rows = [number_of(each, _Of.STRIPE_ROWS) for each in stripes]
    if sum(rows) > _ROWS_MAX:
        raise ValueError(f"its stripes have {sum(rows)} rows, more than there can be")
    if sum(rows) != number_of(footer, _Of.FOOTER_ROWS):
        expected = number_of(footer, _Of.FOOTER_ROWS)
        raise ValueError(f"its stripes have {sum(rows)} rows, but its footer says {expected}")
    ranges = [_range_of(each) for each in stripes]
    edges = [len(ORC), *(edge for each in ranges for edge in each), bytes_end]
    if any(first > end for first, end in pairwise(edges)):
        raise ValueError("a stripe is outside the file or overlaps another stripe")
    first = 0
    for number, (first_byte, end_byte) in enumerate(ranges):
        end = first + rows[number]
        if first < end and first_byte == end_byte:
            raise ValueError(f"a stripe of {rows[number]} rows has no bytes")
        if first < end:
            yield RowGroup(
                number=number,
                first=first,
                end=end,
                first_byte=first_byte,
                end_byte=end_byte,
                footer=described,
                file_size=size,
            )
        first = end


def _range_of(stripe: Message) -> tuple[int, int]:
    lengths = (_Of.STRIPE_INDEX_BYTES, _Of.STRIPE_DATA_BYTES, _Of.STRIPE_FOOTER_BYTES)
    first = number_of(stripe, _Of.STRIPE_OFFSET)
    return first, first + sum(number_of(stripe, each) for each in lengths)


def _all_bytes(message: Message, field: int) -> list[bytes]:
    return [each for each in message.get(field, ()) if isinstance(each, bytes)]


def _types(described: bytes) -> Sequence[bytes]:
    return _all_bytes(_footer(described), _Of.FOOTER_TYPES)


@lru_cache(maxsize=4)
def schema_of(described: bytes) -> Schema:
    """The columns of a file. Types are numbered so that those inside a type follow it."""
    types = [fields_of(each) for each in _types(described)]
    kinds = kinds_of(described)
    starts = [
        number
        for value in types[0].get(_Of.TYPE_SUBTYPES, ())
        for number in (integers_of(value) if isinstance(value, bytes) else [value])
    ]
    names = tuple(each.decode() for each in _all_bytes(types[0], _Of.TYPE_NAMES))
    of_column = tuple(tuple(kinds[first:end]) for first, end in pairwise([*starts, len(types)]))
    if len(names) != len(of_column) or not all(of_column):
        raise ValueError("its columns have no types")
    return Schema(names=names, kinds=of_column)


def stripe_of(group: RowGroup) -> bytes:
    """What the footer of its file says of a stripe."""
    return _all_bytes(_footer(group.footer), _Of.FOOTER_STRIPES)[group.number]


def kinds_of(described: bytes) -> list[int]:
    """The kind of each type, by its number."""
    return [number_of(fields_of(each), _Of.TYPE_KIND) for each in _types(described)]


def has_julian_days(described: bytes) -> bool:
    """Whether days before 1582-10-15 are, or may be, those of the Julian calendar, as Java writes them by default."""
    footer = _footer(described)
    calendar, writer = number_of(footer, _Of.FOOTER_CALENDAR), number_of(footer, _Of.FOOTER_WRITER)
    # The writer in C++ does not name its calendar.
    return calendar != _PROLEPTIC and (calendar != 0 or writer != _CPP)


_PROLEPTIC, _CPP = 2, 1


def codec_of(described: bytes) -> int:
    return number_of(fields_of(_message(described, _Of.TAIL_POSTSCRIPT)), _Of.POSTSCRIPT_COMPRESSION)


def file_of_stripe(
    group: RowGroup, raw: bytes, stripe: bytes | None = None, *, times_as_seconds: bool = False
) -> bytes:
    """An ORC file of this stripe alone; with its times as the seconds that they are stored as."""
    footer = _footer(group.footer)
    stripe = stripe_of(group) if stripe is None else stripe
    types = _types(group.footer)
    if times_as_seconds:
        types = [each + _AS_SECONDS if number_of(fields_of(each), _Of.TYPE_KIND) in TIMES else each for each in types]
    kept = (_Of.FOOTER_INDEX_STRIDE, _Of.FOOTER_WRITER, _Of.FOOTER_CALENDAR, _Of.FOOTER_SOFTWARE)
    fields: list[tuple[int, int | bytes]] = [
        (_Of.FOOTER_HEADER_BYTES, len(ORC)),
        (_Of.FOOTER_CONTENT_BYTES, len(ORC) + len(raw)),
        (_Of.FOOTER_STRIPES, stripe + written(_Of.STRIPE_OFFSET, len(ORC))),
        *((_Of.FOOTER_TYPES, each) for each in types),
        (_Of.FOOTER_ROWS, group.end - group.first),
        *((each, footer[each][-1]) for each in kept if each in footer),
    ]
    return b"".join([ORC, raw, ends_of(group.footer, b"".join(written(*each) for each in fields))])


#: Seconds are stored as integers, so they can be read as a column of integers.
_AS_SECONDS = written(_Of.TYPE_KIND, TypeKind.LONG)


def ends_of(described: bytes, footer: bytes) -> bytes:
    """A footer that is not packed, and its postscript."""
    footer = not_packed(described, footer)
    postscript = _message(described, _Of.TAIL_POSTSCRIPT)
    postscript += b"".join(
        (
            written(_Of.POSTSCRIPT_FOOTER_BYTES, len(footer)),
            written(_Of.POSTSCRIPT_METADATA_BYTES, 0),
            written(_Of.POSTSCRIPT_STATISTICS_BYTES, 0),
            written(_Of.POSTSCRIPT_MAGIC, ORC),
        )
    )
    return footer + postscript + bytes([len(postscript)])


def not_packed(described: bytes, content: bytes) -> bytes:
    """The same content in a file whose content may be packed: each block says whether it is."""
    if not codec_of(described):
        return content
    facts = fields_of(_message(described, _Of.TAIL_POSTSCRIPT))
    size = min(number_of(facts, _Of.POSTSCRIPT_BLOCK_BYTES) or _BLOCK_BYTES_MAX, _BLOCK_BYTES_MAX)
    blocks = [content[at : at + size] for at in range(0, len(content), size)]
    return b"".join((len(each) << 1 | _IS_NOT_PACKED).to_bytes(3, "little") + each for each in blocks)


_BLOCK_BYTES_MAX = 2**18
_IS_NOT_PACKED = 1
