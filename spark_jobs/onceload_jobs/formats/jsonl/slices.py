"""Take many lines of JSON apart at once, into the raw values of their fields.

This reads only strict JSON: lines with `NaN`, unpaired surrogates or very deep nesting are left to the slow tier.
It keeps only the last value of a name that occurs twice, and drops fields that have no name here. Both leave more
colons in the line than it finds in values and behind names.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceload_jobs.formats.records import Indices, Mask

_NO_NAME = msgspec.Raw(b"")
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_REFUSED = (msgspec.MsgspecError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class RawValues:
    """The raw values of one field in many lines, in sequence; a missing one is empty."""

    block: bytes
    #: Where each value starts, and the end of the last one.
    offsets: Indices

    @property
    def octets(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.block, np.uint8)

    @property
    def present(self) -> Mask:
        return np.diff(self.offsets) > 0

    @cached_property
    def firsts(self) -> npt.NDArray[np.uint8]:
        """The first byte of each value, or zero."""
        found = np.zeros(len(self.offsets) - 1, np.uint8)
        found[self.present] = self.octets[self.offsets[:-1][self.present]]
        return found

    @property
    def nulls(self) -> Mask:
        """The values that are missing or null."""
        nulls: Mask = (self.firsts == 0) | (self.firsts == ord("n"))
        return nulls

    def counts(self, octet: bytes) -> Indices:
        """How often a byte occurs in each value."""
        return counts_between(self.offsets, self.octets == octet[0]) if octet in self.block else _zeros(self)

    def texts(self, nulls: Mask) -> pa.Array:
        return texts_from(self.block, self.offsets, nulls)


def _zeros(values: RawValues) -> Indices:
    return np.zeros(len(values.offsets) - 1, np.int64)


def counts_between(offsets: Indices, found: Mask) -> Indices:
    """How many of the found bytes are between each offset and the next one."""
    return np.diff(np.searchsorted(np.flatnonzero(found), offsets))


def texts_from(block: bytes, offsets: Indices, nulls: Mask) -> pa.Array:
    lengths = np.diff(offsets)
    if lengths[nulls].any():
        # A null must not keep the bytes of the value that it stands for.
        block = np.frombuffer(block, np.uint8)[np.repeat(~nulls, lengths)].tobytes()
        offsets = np.concatenate([[0], np.cumsum(np.where(nulls, 0, lengths))])
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    return pa.StringArray.from_buffers(len(nulls), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(block), valid)


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Many lines, taken apart."""

    values: Mapping[str, RawValues]
    #: The lines of which each field is there, and none twice.
    whole: Mask


def has_slices(name: str) -> bool:
    """Whether fields of this name can be taken apart."""
    try:
        return not any(octet < 0x20 or octet in b'"\\' for octet in name.encode())
    except UnicodeEncodeError:
        return False


class Slicer:
    """Takes lines apart into fields of these names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        fields = {f"f{at}": name for at, name in enumerate(names)}
        row = msgspec.defstruct("Row", [(each, msgspec.Raw, _NO_NAME) for each in fields], rename=fields, gc=False)
        self._columns = {name: attrgetter(each) for each, name in fields.items()}
        self._decode = msgspec.json.Decoder(row).decode
        self._nothing = row()

    def slices(self, lines: Sequence[bytes]) -> Slices:
        rows, is_read = self._rows(lines)
        values = {name: _joined(list(map(column, rows))) for name, column in self._columns.items()}
        kept = np.zeros(len(lines), np.int64)
        for each in values.values():
            kept += each.present + each.counts(b":")
        return Slices(values=values, whole=is_read & (kept == [line.count(b":") for line in lines]))

    def _rows(self, lines: Sequence[bytes]) -> tuple[list[msgspec.Struct], Mask]:
        rows, is_read, decode = list[msgspec.Struct](), np.ones(len(lines), np.bool_), self._decode
        for at, line in enumerate(lines):
            try:
                rows.append(decode(line))
            except _REFUSED:
                rows.append(self._nothing)
                is_read[at] = False
        return rows, is_read


def _joined(raws: list[msgspec.Raw]) -> RawValues:
    offsets = np.zeros(len(raws) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, raws), np.int64, len(raws)), out=offsets[1:])
    return RawValues(block=b"".join(raws), offsets=offsets)


def names_in(lines: Sequence[bytes]) -> Counter[str]:
    """The names of all fields in these lines, and in how many of them each is."""
    return Counter(name for line in lines for name in raw_fields(line))


def raw_fields(line: bytes) -> Mapping[str, msgspec.Raw]:
    """The raw values of all fields, the last one of each name; none if it is not one object of strict JSON."""
    try:
        return _fields_of(line)
    except (*_REFUSED, UnicodeDecodeError):
        return {}


def has_each_name_once(line: bytes) -> bool:
    fields = raw_fields(line)
    return bool(fields) and len(fields) + sum(bytes(raw).count(b":") for raw in fields.values()) == line.count(b":")
