"""The records of text formats, which are mostly lines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceload_core.ports import QuarantinedRecord
from onceload_jobs.formats.chunks import KEPT_BYTES, Part
from onceload_jobs.formats.records import Indices, Mask, Origins, RecordRefused


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The records of some parts in one block of bytes, without blank ones."""

    block: bytes
    record_bytes_max: int
    #: Each record without its newline …
    raw_starts: Indices
    raw_ends: Indices
    #: … and without a byte order mark and surrounding blanks.
    starts: Indices
    ends: Indices
    producer_ids: Indices
    sequence_ids: Indices

    @property
    def count(self) -> int:
        return len(self.starts)

    @cached_property
    def too_long(self) -> Mask:
        """The records longer than record_bytes_max, including their newlines."""
        if len(self.block) < self.record_bytes_max:
            return np.zeros(self.count, np.bool_)
        too_long: Mask = self.raw_ends - self.raw_starts >= self.record_bytes_max
        return too_long

    def check_length(self, index: int) -> None:
        if self.too_long[index]:
            raise RecordRefused(too_long(int(self.raw_ends[index] - self.raw_starts[index]) + 1))

    @property
    def octets(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.block, np.uint8)

    @cached_property
    def firsts(self) -> npt.NDArray[np.uint8]:
        """The first byte of each record."""
        return self.octets[self.starts]

    @cached_property
    def lasts(self) -> npt.NDArray[np.uint8]:
        return self.octets[self.ends - 1]

    def only(self, kept: Mask) -> "Lines":
        count = int(np.count_nonzero(kept))
        if count == self.count:
            return self
        # Usually only the end of the block is cut off, and nothing is copied.
        chosen = slice(count) if kept[:count].all() else kept
        arrays = {
            each.name: getattr(self, each.name)[chosen] for each in fields(self) if each.name not in _OF_ALL_LINES
        }
        return replace(self, **arrays)

    def raw(self, index: int) -> bytes:
        raw = self.block[self.raw_starts[index] : self.raw_ends[index]]
        return raw[:KEPT_BYTES] if self.too_long[index] else raw

    def content(self, index: int) -> bytes:
        return self.block[self.starts[index] : self.ends[index]]

    def contents(self, group: Indices, *, without: Mask) -> list[bytes]:
        """The bytes of many records; nothing of some of them."""
        block, starts = self.block, self.starts[group]
        ends = np.where(without[group], starts, self.ends[group])
        return [block[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def text(self, index: int) -> str:
        try:
            return self.content(index).decode()
        except UnicodeDecodeError as error:
            at = int(self.starts[index] - self.raw_starts[index]) + error.start
            raise RecordRefused(f"invalid UTF-8 at byte {at} of the record") from None

    def together(self, group: Indices) -> pa.Buffer:
        """The bytes of a group of records, without a copy if they are contiguous."""
        first, end = int(self.starts[group[0]]), int(self.raw_ends[group[-1]]) + 1
        # At the end of all bytes, Arrow takes an empty last value for a quoted one if the value before it was quoted;
        # a final newline prevents that.
        if group[-1] - group[0] + 1 == len(group) and end <= len(self.block):
            return pa.py_buffer(self.block).slice(first, end - first)
        return pa.py_buffer(b"".join(self.content(index) + b"\n" for index in group.tolist()))

    def origins(self) -> Origins:
        return Origins(producer_ids=self.producer_ids, sequence_ids=self.sequence_ids, raw=self.raw)

    def within(self, octet_positions: Indices) -> Mask:
        """The records that contain one of these positions of the block."""
        found = np.zeros(self.count, np.bool_)
        at = np.searchsorted(self.starts, octet_positions, "right") - 1
        inside = (at >= 0) & (octet_positions < self.ends[at]) if self.count else np.zeros(len(at), np.bool_)
        found[at[inside]] = True
        return found


_OF_ALL_LINES = {"block", "record_bytes_max"}


def lines_of(
    parts: Sequence[Part],
    *,
    blanks: bytes,
    record_bytes_max: int,
    record_ends: Callable[[Part], Indices] | None = None,
) -> Lines:
    """Join parts, because thousands of small ones are cheap only together, and find their records.

    A record ends at every newline, unless `record_ends` returns the ends in a part.
    """
    block = parts[0].raw if len(parts) == 1 else b"\n".join(part.raw for part in parts)
    part_starts = np.cumsum([0, *(len(part.raw) + 1 for part in parts)])
    newlines = positions_of(b"\n", block) if record_ends is None else _found_by(record_ends, parts, part_starts)
    starts = np.concatenate([[0], newlines + 1])
    counts = np.diff(np.searchsorted(starts, part_starts))
    # After the last part there is nothing.
    starts, ends = starts[: counts.sum()], np.append(newlines, len(block))[: counts.sum()]
    shifts = np.array([part.first for part in parts], np.int64) - part_starts[:-1]
    found = Lines(
        block=block,
        record_bytes_max=record_bytes_max,
        raw_starts=starts,
        raw_ends=ends,
        starts=starts,
        ends=ends,
        sequence_ids=starts + np.repeat(shifts, counts),
        producer_ids=np.repeat(np.array([part.producer_id for part in parts], np.int64), counts),
    )
    return _trimmed(found.only(starts < ends), blanks)


def _found_by(record_ends: Callable[[Part], Indices], parts: Sequence[Part], part_starts: Indices) -> Indices:
    """The newlines that end records, and the one after each part."""
    within = (
        np.append(record_ends(part), len(part.raw)) + start
        for part, start in zip(parts, part_starts.tolist(), strict=False)
    )
    return np.concatenate([np.zeros(0, np.int64), *within])


def positions_of(octet: bytes, block: bytes) -> Indices:
    """The positions of a byte."""
    octets = np.frombuffer(block, np.uint8)
    # A slab and its intermediate results fit into the processor's cache.
    slabs = range(0, len(octets), _SLAB_BYTES)
    found = (np.flatnonzero(octets[at : at + _SLAB_BYTES] == octet[0]) + at for at in slabs)
    return np.concatenate([np.zeros(0, np.int64), *found])


_SLAB_BYTES = 2**19


BOM = b"\xef\xbb\xbf"


def _trimmed(lines: Lines, blanks: bytes) -> Lines:
    """Remove byte order marks and the blanks around lines, and then the blank lines."""
    # A carriage return is removed from all lines at once, more blanks from each line that has them.
    trimmed = _without_blanks(_without_returns(lines), blanks)
    # Usually there is nothing to remove.
    return lines if trimmed is lines else trimmed.only(trimmed.starts < trimmed.ends)


def _without_returns(lines: Lines) -> Lines:
    """Remove one carriage return from the end of each line that has one."""
    returns = lines.lasts == ord("\r")
    return replace(lines, ends=lines.ends - returns) if returns.any() else lines


def _without_blanks(lines: Lines, blanks: bytes) -> Lines:
    """Remove a byte order mark from the start of a file, and all blanks around lines."""
    is_blank = np.zeros(256, np.bool_)
    is_blank[list(blanks)] = True
    marked = [at for at in np.flatnonzero(lines.sequence_ids == 0) if lines.block.startswith(BOM, lines.starts[at])]
    padded = is_blank[lines.firsts] | is_blank[lines.lasts]
    padded[marked] = True
    if not padded.any():
        return lines
    starts, ends = lines.starts.copy(), lines.ends.copy()
    for at in np.flatnonzero(padded & (starts < ends)).tolist():
        line = lines.block[starts[at] : ends[at]].removeprefix(BOM if at in marked else b"")
        starts[at] = ends[at] - len(line.lstrip(blanks))
        ends[at] = starts[at] + len(line.strip(blanks))
    return replace(lines, starts=starts, ends=ends)


def bad_of_too_long(parts: Sequence[Part]) -> tuple[QuarantinedRecord, ...]:
    return tuple(
        QuarantinedRecord(
            producer_id=part.producer_id,
            sequence_id=part.first,
            raw=part.raw.removesuffix(b"\n"),
            reason=too_long(part.end - part.first),
        )
        for part in parts
        if part.too_long
    )


def too_long(size: int) -> str:
    kept = "; only the beginning is kept" if size > KEPT_BYTES else ""
    return f"{size} bytes are more than record_bytes_max{kept}"


def not_utf8(lines: Lines) -> Mask:
    """The records that are not valid UTF-8."""
    broken = np.zeros(lines.count, np.bool_)
    if lines.block.isascii() or _is_utf8(lines.block):
        return broken
    for index in np.flatnonzero(lines.within(np.flatnonzero(lines.octets >= 0x80))).tolist():
        try:
            lines.content(index).decode()
        except UnicodeDecodeError:
            broken[index] = True
    return broken


def _is_utf8(block: bytes) -> bool:
    offsets = pa.py_buffer(np.array([0, len(block)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(block)]).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True
