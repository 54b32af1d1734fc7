"""The footers at the ends of Parquet and ORC files: how to recognise them, and how long they are."""

from collections.abc import Mapping

#: The end of a Parquet file: the length of the footer, and the magic bytes.
END_BYTES = 8
PARQUET, PARQUET_ENCRYPTED = b"PAR1", b"PARE"
#: The first bytes of an ORC file, and the last of its postscript, which ends with its own length.
ORC = b"ORC"
_LOOK_BYTES = 256
#: A longer footer is a damaged length.
_BYTES_MAX = 2**30
#: The fields of the postscript that are lengths: of the footer, of its metadata, and of statistics of stripes.
_ORC_LENGTHS = (1, 5, 7)

#: The values of a message of Protocol Buffers by their field: integers, or the bytes of anything else.
Message = Mapping[int, list[int | bytes]]


def footer_bytes(ends: bytes) -> int:
    """The length of the footer of a file with these last bytes; 0 if it has none."""
    if ends[-4:] in (PARQUET, PARQUET_ENCRYPTED):
        return int.from_bytes(ends[-END_BYTES:-4], "little") + END_BYTES
    postscript = orc_postscript(ends)
    try:
        lengths = [value for field in _ORC_LENGTHS for value in fields_of(postscript).get(field, ())[-1:]]
    except ValueError:
        return 0
    length = sum(each for each in lengths if isinstance(each, int)) + len(postscript) + 1
    return length if postscript and length <= _BYTES_MAX else 0


def look_bytes(size: int) -> int:
    """How many of the last bytes of a file say how long its footer is."""
    return min(size, _LOOK_BYTES)


def orc_postscript(ends: bytes) -> bytes:
    """The postscript of an ORC file; nothing if these are not the last bytes of one."""
    if ends[-1 - len(ORC) : -1] != ORC or len(ends) <= ends[-1]:
        return b""
    return ends[-1 - ends[-1] : -1]


class TooManyValues(ValueError):
    """A message that may be valid, and would take too long to read."""


def fields_of(message: bytes) -> Message:
    """Take a message of Protocol Buffers apart; raises ValueError if it is none."""
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    for _ in range(_VALUES_MAX):
        if at >= len(message):
            return fields
        key, at = _varint(message, at)
        value: int | bytes
        if key & 7 == _VARINT:
            value, at = _varint(message, at)
        else:
            size, at = (_FIXED[key & 7], at) if key & 7 in _FIXED else _length(message, at, key)
            if size > len(message) - at:
                raise ValueError("it ends in the middle of a value")
            value, at = message[at : at + size], at + size
        fields.setdefault(key >> 3, []).append(value)
    raise TooManyValues(f"a footer with more than {_VALUES_MAX:,} entries")


def integers_of(packed: bytes) -> list[int]:
    """Repeated integers that are written together."""
    found, at = list[int](), 0
    while at < len(packed):
        value, at = _varint(packed, at)
        found.append(value)
    return found


#: An entry of a footer is a stripe or a column. A file with more is made to take time.
_VALUES_MAX = 2**18
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_VARINT_BYTES_MAX = 10


def _length(message: bytes, at: int, key: int) -> tuple[int, int]:
    if key & 7 != _BYTES:
        raise ValueError("a value of unknown type")
    return _varint(message, at)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(message[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, at + shift + 1
    raise ValueError("an integer without end")


def written(field: int, value: int | bytes) -> bytes:
    """A field of a message; of a field that is there twice, the last one counts."""
    if isinstance(value, int):
        return varint(field << 3 | _VARINT) + varint(value)
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def varint(number: int) -> bytes:
    """An integer in as many bytes as it needs."""
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes([*octets, number])
