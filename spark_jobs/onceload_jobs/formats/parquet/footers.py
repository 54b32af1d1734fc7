"""Read and check the footer of a Parquet file before Arrow does.

Arrow ends the whole process when it reads an encrypted column, and trusts a footer that contradicts itself. The result
of this check is safe to read: each row group has as many rows as the file says, each of its columns has values for all
of them, and all of their bytes are inside the file.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any

from onceload_jobs.files.footers import END_BYTES, PARQUET, PARQUET_ENCRYPTED
from onceload_jobs.formats import typed_files
from onceload_jobs.formats.chunks import RowGroup

_REPEATED = 2
_VARINT_BYTES_MAX = 10


class _Of(IntEnum):
    """The ids of the Thrift fields that are used, from parquet.thrift."""

    FILE_SCHEMA = 2
    FILE_ROWS = 3
    FILE_GROUPS = 4
    FILE_WRITER = 6
    FILE_ENCRYPTION = 8
    ELEMENT_TYPE = 1
    ELEMENT_REPETITION = 3
    ELEMENT_NAME = 4
    ELEMENT_CHILDREN = 5
    GROUP_COLUMNS = 1
    GROUP_ROWS = 3
    COLUMN_FILE = 1
    COLUMN_FACTS = 3
    COLUMN_CRYPTO = 8
    COLUMN_ENCRYPTED = 9
    FACTS_VALUES = 5
    FACTS_BYTES = 7
    FACTS_DATA = 9
    FACTS_DICTIONARY = 11


#: Arrow refuses more as damaged. A list has two, and the file itself has one.
_LEVELS_MAX = 100


class _Contradiction(ValueError):
    """A footer that contradicts itself."""


class _TooDeep(ValueError):
    """A schema that is valid, but nested too deeply."""


KIND = "Parquet"
damaged, unsupported = partial(typed_files.damaged, kind=KIND), partial(typed_files.unsupported, kind=KIND)


@lru_cache(maxsize=4)
def read_row_groups(tail: bytes, *, url: str, size: int) -> tuple[RowGroup, ...]:
    """The row groups with rows, from the last bytes of a file, which must include the whole footer."""
    footer = _footer(tail, url=url)
    with _reading(url):
        return tuple(_row_groups(_metadata(footer, url=url), footer=footer, size=size))


def read_names(tail: bytes, *, url: str) -> tuple[str, ...]:
    """The names of the columns of a file, from its last bytes."""
    footer = _footer(tail, url=url)
    with _reading(url):
        return tuple(_names(_metadata(footer, url=url)[_Of.FILE_SCHEMA]))


def _footer(tail: bytes, *, url: str) -> bytes:
    length, magic = int.from_bytes(tail[-END_BYTES:-4], "little"), tail[-4:]
    if magic == PARQUET_ENCRYPTED:
        raise unsupported(url, "encryption")
    if magic != PARQUET or len(tail) < length + END_BYTES:
        raise damaged(url, "it does not end with a Parquet footer")
    return tail[len(tail) - length - END_BYTES :]


def _metadata(footer: bytes, *, url: str) -> dict[int, Any]:
    metadata = _Thrift(footer[:-END_BYTES]).struct()
    if _is_encrypted(metadata):
        raise unsupported(url, "encryption")
    return metadata


@contextmanager
def _reading(url: str) -> Iterator[None]:
    try:
        yield
    except _Contradiction as error:
        raise damaged(url, f"its footer contradicts itself: {error}") from error
    except _TooDeep as error:
        raise unsupported(url, f"a schema that is nested too deeply, in more than {_LEVELS_MAX} levels") from error
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise damaged(url, "its footer cannot be read") from error


def _is_encrypted(metadata: dict[int, Any]) -> bool:
    columns = (column for group in metadata[_Of.FILE_GROUPS] for column in group.get(_Of.GROUP_COLUMNS, ()))
    signs = {_Of.COLUMN_CRYPTO, _Of.COLUMN_ENCRYPTED}
    return _Of.FILE_ENCRYPTION in metadata or any(not signs.isdisjoint(column) for column in columns)


def _row_groups(metadata: dict[int, Any], *, footer: bytes, size: int) -> Iterator[RowGroup]:
    is_single = tuple(_leaves(metadata[_Of.FILE_SCHEMA]))
    rows = [group[_Of.GROUP_ROWS] for group in metadata[_Of.FILE_GROUPS]]
    if min(rows, default=0) < 0 or sum(rows) != metadata[_Of.FILE_ROWS]:
        raise _Contradiction(f"its row groups have {sum(rows)} rows, but its footer says {metadata[_Of.FILE_ROWS]}")
    omitted = _OMITTED_BYTES_MAX if _leaves_bytes_out(metadata.get(_Of.FILE_WRITER, b"")) else 0
    first = 0
    for number, group in enumerate(metadata[_Of.FILE_GROUPS]):
        end = first + rows[number]
        if first < end:
            ranges = [
                _range_of(column, is_single=single, rows=end - first, bytes_end=size - len(footer))
                for column, single in zip(group[_Of.GROUP_COLUMNS], is_single, strict=True)
            ]
            if not ranges:
                raise _Contradiction("rows without any column")
            yield RowGroup(
                number=number,
                first=first,
                end=end,
                first_byte=min(start for start, _ in ranges),
                end_byte=min(size, max(stop for _, stop in ranges) + omitted),
                footer=footer,
                file_size=size,
            )
        first = end


def _leaves_bytes_out(writer: bytes) -> bool:
    """Whether this writer omits the dictionary header from its sizes (PARQUET-816), so Arrow reads further."""
    found = _OLD_WRITER.match(writer)
    return found is not None and tuple(int(each or 0) for each in found.groups()) < (1, 2, 9)


_OLD_WRITER = re.compile(rb"parquet-mr(?: version (\d+)\.(\d+)\.(\d+)|$)")
_OMITTED_BYTES_MAX = 100


def _range_of(column: dict[int, Any], *, is_single: bool, rows: int, bytes_end: int) -> tuple[int, int]:
    """The byte range of the pages of a column."""
    facts = column[_Of.COLUMN_FACTS]
    values = facts[_Of.FACTS_VALUES]
    if values < rows or (is_single and values != rows):
        raise _Contradiction(f"a column has {values} values for {rows} rows")
    start = min(filter(None, (facts.get(_Of.FACTS_DICTIONARY), facts[_Of.FACTS_DATA])))
    end = start + facts[_Of.FACTS_BYTES]
    if _Of.COLUMN_FILE in column or not len(PARQUET) <= start < end <= bytes_end:
        raise _Contradiction("the bytes of a column are outside of the file")
    return start, end


def _names(schema: Sequence[dict[int, Any]]) -> Iterator[str]:
    """The names of the columns, without those inside them."""
    elements = iter(schema)
    for _ in range(next(elements).get(_Of.ELEMENT_CHILDREN, 0)):
        element = next(elements)
        yield element[_Of.ELEMENT_NAME].decode()
        for _ in _leaves_below(element, elements, is_single=True, level=2):
            pass


def _leaves(schema: Sequence[dict[int, Any]]) -> Iterator[bool]:
    """For each column in order, whether a row has exactly one value of it."""
    elements = iter(schema)
    for _ in range(next(elements).get(_Of.ELEMENT_CHILDREN, 0)):
        yield from _leaves_of(elements, is_single=True, level=2)


def _leaves_of(elements: Iterator[dict[int, Any]], *, is_single: bool, level: int) -> Iterator[bool]:
    if level > _LEVELS_MAX:
        raise _TooDeep
    element = next(elements)
    is_single = is_single and element.get(_Of.ELEMENT_REPETITION) != _REPEATED
    if _Of.ELEMENT_TYPE in element:
        yield is_single
    yield from _leaves_below(element, elements, is_single=is_single, level=level)


def _leaves_below(
    element: dict[int, Any], elements: Iterator[dict[int, Any]], *, is_single: bool, level: int
) -> Iterator[bool]:
    for _ in range(element.get(_Of.ELEMENT_CHILDREN, 0)):
        yield from _leaves_of(elements, is_single=is_single, level=level + 1)


@dataclass
class _Thrift:
    """Thrift's compact protocol: a struct is a dict of its values by field id."""

    raw: bytes
    at: int = 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while header := self.byte():
            kind = header & 15
            number = number + (header >> 4) if header >> 4 else self.integer()
            # In a struct, the type of a boolean field is its value.
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind)
        return fields

    def value(self, kind: int) -> Any:  # noqa: ANN401 - any value of a footer.
        return _READ[kind](self)

    def a_list(self) -> list[Any]:
        header = self.byte()
        count = header >> 4 if header >> 4 < 15 else self.varint()
        kind = header & 15
        return [self.value(kind) for _ in range(count)]

    def a_map(self) -> list[tuple[Any, Any]]:
        count = self.varint()
        kinds = self.byte() if count else 0
        return [(self.value(kinds >> 4), self.value(kinds & 15)) for _ in range(count)]

    def byte(self) -> int:
        byte = self.raw[self.at]
        self.at += 1
        return byte

    def next_bytes(self, size: int) -> bytes:
        if size > len(self.raw) - self.at:
            raise ValueError("it ends in the middle of a value")
        self.at += size
        return self.raw[self.at - size : self.at]

    def integer(self) -> int:
        zigzag = self.varint()
        return (zigzag >> 1) ^ -(zigzag & 1)

    def varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("an integer without end")

    def a_double(self) -> bytes:
        return self.next_bytes(8)

    def a_binary(self) -> bytes:
        return self.next_bytes(self.varint())


_TRUE, _FALSE = 1, 2
_READ: dict[int, Callable[[_Thrift], Any]] = {
    **dict.fromkeys((_TRUE, _FALSE, 3), _Thrift.byte),
    **dict.fromkeys((4, 5, 6), _Thrift.integer),
    7: _Thrift.a_double,
    8: _Thrift.a_binary,
    **dict.fromkeys((9, 10), _Thrift.a_list),
    11: _Thrift.a_map,
    12: _Thrift.struct,
}
