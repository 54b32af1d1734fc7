"""Remove refused rows from the records, and keep the bytes that they were read from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_core.checks import NAME_BYTES_MAX
from onceload_core.names import ProducerId
from onceload_core.spans import SEQUENCE_END
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.json.documents import elements_of
from onceload_jobs.formats.records import BadRecord, Records
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, ColumnType, Kind, arrow_type
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.read.new_content import lineage_of


def without_rows(records: Records, refused: Mapping[int, str], parts: Sequence[Part]) -> Records:
    """Turn the rows that the server refused, by number, into bad records."""
    if not refused:
        return records
    producers, sequences = lineage_of(records.rows)
    raw_of, bad = _RawBytes(records, parts), []
    for number, reason in refused.items():
        producer_id, sequence_id = ProducerId(int(producers[number])), int(sequences[number])
        raw = raw_of.record(producer_id, sequence_id) or _rendered(records.rows, number)
        bad.append(BadRecord(producer_id=producer_id, sequence_id=sequence_id, raw=raw, reason=reason))
    kept = np.ones(records.rows.num_rows, dtype=bool)
    kept[list(refused)] = False
    return replace(records, rows=records.rows.filter(pa.array(kept)), bad=(*records.bad, *bad))


def without_refused(records: Records, refused: Mapping[tuple[ProducerId, int], str], parts: Sequence[Part]) -> Records:
    """The same, with each row named by its lineage, which may be in other records."""
    if not refused:
        return records
    producers, sequences = lineage_of(records.rows)
    places = {place: number for number, place in enumerate(zip(producers.tolist(), sequences.tolist(), strict=True))}
    return without_rows(records, {places[each]: why for each, why in refused.items() if each in places}, parts)


def _rendered(rows: pa.Table, number: int) -> bytes:
    """Render a record whose bytes cannot be cut out of its file."""
    row = rows.slice(number, 1).drop_columns([PRODUCER_ID, SEQUENCE])
    fields = {field.name: _writable(row.column(field.name)[0].as_py(), field.type) for field in row.schema}
    return json.dumps(fields, ensure_ascii=False).encode()


def _writable(value: object, arrow: pa.DataType) -> object:
    """Convert a value to JSON in the form that its column reads."""
    match value:
        case None | bool() | int() | float():
            return value
        case list():
            return [_writable(each, arrow.value_type) for each in value]
        case bytes():
            return str(UUID(bytes=value)) if arrow == arrow_type(_UUID) else f"\\x{value.hex()}"
        case _:
            return str(value)


_UUID = ColumnType(kind=Kind.UUID)


def without_invalid_ids(records: Records, producer: RecordProducer, parts: Sequence[Part]) -> Records:
    """Reject records with an invalid sequence id, or a producer name that is too long."""
    name, sequence = producer.name, producer.sequence
    ids = records.rows.column(sequence).to_numpy()
    strange = np.flatnonzero((ids < 0) | (ids >= SEQUENCE_END))
    reasons = {
        int(number): f"{sequence}: {ids[number]} is not a sequence id (0 to {SEQUENCE_END - 1})" for number in strange
    }
    sizes = _text_bytes(records.rows.column(name)) + len(producer.prefix.encode())
    reasons |= {
        int(number): f"{name}: {producer.prefix} and the value have {sizes[number]} bytes, and the name of a producer"
        f" has at most {NAME_BYTES_MAX}"
        for number in np.flatnonzero(sizes > NAME_BYTES_MAX)
    }
    return without_rows(records, reasons, parts)


def _text_bytes(values: pa.ChunkedArray) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The length of values as text on the server; numbers, times and similar types are short."""
    if pa.types.is_string(values.type):
        sizes: np.ndarray[tuple[int], np.dtype[np.int64]] = pc.binary_length(values).to_numpy().astype(np.int64)
        return sizes
    if pa.types.is_binary(values.type):
        hexadecimal: np.ndarray[tuple[int], np.dtype[np.int64]] = pc.binary_length(values).to_numpy() * 2 + 2
        return hexadecimal
    return np.zeros(len(values), np.int64)


class _RawBytes:
    """The bytes of single records: each ends where the next one of its part starts."""

    def __init__(self, records: Records, parts: Sequence[Part]) -> None:
        # Ids that count rows do not show the positions of their bytes.
        self._parts = [part for part in parts if len(part.raw) == part.end - part.first]
        # Of the groups of rows, only those of a JSON array have nothing that describes them.
        self._arrays = [part for part in parts if part.row_group is not None and not part.row_group.footer]
        self._starts = {part.producer_id: _starts(records, part.producer_id) for part in self._parts}

    def record(self, producer_id: ProducerId, sequence_id: int) -> bytes:
        """The bytes of a record; empty if unknown."""
        for part in self._arrays:
            if part.producer_id == producer_id and part.first <= sequence_id < part.end:
                return _element(part.raw, sequence_id - part.first)
        for part in self._parts:
            if part.producer_id == producer_id and part.first <= sequence_id < part.end:
                starts = self._starts[producer_id]
                after = int(np.searchsorted(starts, sequence_id, side="right"))
                end = min(part.end, int(starts[after])) if after < len(starts) else part.end
                return part.raw[sequence_id - part.first : end - part.first].rstrip(b"\r\n")
        return b""


def _element(raw: bytes, number: int) -> bytes:
    """One of the elements of a group of a JSON array."""
    begins, ends = elements_of(raw) or ((), ())
    return raw[begins[number] : ends[number]].strip(b" \t\r\n") if number < len(begins) else b""


def _starts(records: Records, producer_id: ProducerId) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    producers, sequences = lineage_of(records.rows)
    bad = [each.sequence_id for each in records.bad if each.producer_id == producer_id]
    return np.sort(np.concatenate([sequences[producers == producer_id], np.array(bad, np.int64)]))
