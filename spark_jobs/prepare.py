"""Parts of files become what one commit holds: rows, bad records, and how far each producer advances."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup_core.names import ProducerId
from dedup_core.ports import NAME_BYTES_MAX, Advance, QuarantinedRecord
from dedup_core.replay import Condition
from dedup_core.spans import SEQUENCE_END, Span, SpanSet
from spark_jobs.columns import ColumnType, Kind, arrow_type
from spark_jobs.declared import RecordProducer
from spark_jobs.sources.pieces import KEPT_BYTES
from spark_jobs.sources.records import PRODUCER_ID, SEQUENCE, BadRecord, Chunk, Part, Records

#: Sixteen bytes of SHA-256, which processors compute by themselves.
_DIGEST = Struct(">QQ16s")


@dataclass(frozen=True, kw_only=True)
class ReadPart:
    """A part as it was read, and what its commit notes of the file."""

    chunk: Chunk
    part: Part
    fingerprint: bytes
    #: The file's size as it was listed; only where nothing of the file is left to read.
    size: int | None = None
    condition: Condition = Condition.OPEN


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What of some parts is new, ready to be committed."""

    advances: tuple[Advance, ...]
    rows: pa.Table
    bad: tuple[BadRecord, ...]
    duplicate: int
    bytes: int

    @property
    def quarantined(self) -> tuple[QuarantinedRecord, ...]:
        return tuple(
            QuarantinedRecord(
                producer_id=each.producer_id,
                sequence_id=each.sequence_id,
                raw=each.raw,
                reason=each.reason,
                column=each.column,
            )
            for each in self.bad
        )


def prepare(parts: Sequence[ReadPart], records: Records, *, consumed: Mapping[ProducerId, SpanSet]) -> Prepared:
    """Leave out what took effect before; what is left advances its producers by just that."""
    by_producer: dict[ProducerId, list[ReadPart]] = {}
    for each in parts:
        by_producer.setdefault(each.part.producer_id, []).append(each)
    new = {
        producer_id: _offered(some) - consumed.get(producer_id, SpanSet()) for producer_id, some in by_producer.items()
    }
    rows, bad = records.rows, records.bad
    if any(consumed.get(producer_id, SpanSet()).overlaps(_offered(some)) for producer_id, some in by_producer.items()):
        rows = rows.filter(_is_new(rows, new))
        bad = tuple(each for each in bad if each.sequence_id in new[each.producer_id])
    rows_of, bad_of = _rows_by_producer(rows), Counter(each.producer_id for each in bad)
    advances = tuple(
        _advance(producer_id, some, spans=new[producer_id], rows=rows_of.get(producer_id, 0), bad=bad_of[producer_id])
        for producer_id, some in by_producer.items()
        if new[producer_id] or not _offered(some)
    )
    left_out = records.count - rows.num_rows - len(bad)
    return Prepared(advances=advances, rows=rows, bad=bad, duplicate=left_out, bytes=_bytes_of(parts, new))


def _bytes_of(parts: Sequence[ReadPart], new: Mapping[ProducerId, SpanSet]) -> int:
    """How much was read of what is new; where ids count rows, a part is new as a whole or not at all."""
    return sum(len(each.part.raw) for each in parts if new[each.part.producer_id].overlaps(_offered([each])))


def _offered(parts: Iterable[ReadPart]) -> SpanSet:
    return SpanSet(Span(each.part.first, each.part.end) for each in parts if each.part.first < each.part.end)


def _is_new(rows: pa.Table, new: Mapping[ProducerId, SpanSet]) -> pa.Array:
    producers, sequences = _lineage(rows)
    kept = np.zeros(len(sequences), dtype=bool)
    for producer_id, spans in new.items():
        of_it = producers == producer_id
        for span in spans:
            kept |= of_it & (sequences >= span.first) & (sequences < span.end)
    return pa.array(kept)


def _lineage(rows: pa.Table) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", ...]:
    return tuple(rows.column(name).to_numpy() for name in (PRODUCER_ID, SEQUENCE))


def _rows_by_producer(rows: pa.Table) -> dict[ProducerId, int]:
    counted = pc.value_counts(rows.column(PRODUCER_ID))
    return dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))


def _advance(producer_id: ProducerId, parts: Sequence[ReadPart], *, spans: SpanSet, rows: int, bad: int) -> Advance:
    last = parts[-1]
    return Advance(
        producer_id=producer_id,
        spans=spans,
        rows=rows,
        records=rows + bad,
        digest=b"".join(digest for each in parts for digest in _digests(each.part, spans)),
        fingerprint=last.fingerprint,
        size=last.size,
        condition=last.condition,
    )


def _digests(part: Part, spans: SpanSet) -> Iterable[bytes]:
    """Span by span, so that any of them can be compared with the file alone."""
    raw = memoryview(part.raw)
    if not raw:
        return
    whole = Span(part.first, part.end)
    if len(raw) != len(whole):
        # Ids that count rows do not tell where their bytes are.
        yield digest_of(whole, raw)
        return
    for span in spans & SpanSet([whole]):
        yield digest_of(span, raw[span.first - part.first : span.end - part.first])


def digest_of(span: Span, raw: bytes | memoryview) -> bytes:
    """A span and the digest of its bytes."""
    return _DIGEST.pack(span.first, span.end, shortened(hashlib.sha256(raw)))


class Digests:
    """The digests that a receipt may hold of the bytes of a span: of a record that was too long, its beginning's."""

    def __init__(self) -> None:
        self._seen = hashlib.sha256()
        self._fed = 0
        self._beginning: tuple[bytes, ...] = ()

    def feed(self, block: bytes | memoryview) -> None:
        head = block[: max(0, KEPT_BYTES - self._fed)]
        self._seen.update(head)
        if self._fed + len(head) == KEPT_BYTES and len(head):
            self._beginning = (shortened(self._seen),)
        self._seen.update(block[len(head) :])
        self._fed += len(block)

    def possible(self) -> tuple[bytes, ...]:
        return shortened(self._seen), *self._beginning

    def of(self, span: Span) -> bytes:
        """A span and the digest of its bytes, which are all that was fed."""
        return _DIGEST.pack(span.first, span.end, shortened(self._seen))


def shortened(digest: "hashlib._Hash") -> bytes:
    """A digest as receipts keep it."""
    return digest.digest()[:16]


def digests_in(stored: bytes) -> tuple[tuple[Span, bytes], ...]:
    """The spans and digests of a receipt."""
    return tuple((Span(first, end), digest) for first, end, digest in _DIGEST.iter_unpack(stored))


def digests_up_to(stored: bytes, *, end: int) -> bytes:
    """Those of a receipt whose spans end before a sequence id."""
    return b"".join(_DIGEST.pack(span.first, span.end, each) for span, each in digests_in(stored) if span.end <= end)


def without_rows(records: Records, refused: Mapping[int, str], parts: Sequence[Part]) -> Records:
    """Turn rows that the server refused, by their number, into bad records."""
    if not refused:
        return records
    producers, sequences = _lineage(records.rows)
    raw_of, bad = _RawBytes(records, parts), []
    for number, reason in refused.items():
        producer_id, sequence_id = ProducerId(int(producers[number])), int(sequences[number])
        raw = raw_of.record(producer_id, sequence_id) or _rendered(records.rows, number)
        bad.append(BadRecord(producer_id=producer_id, sequence_id=sequence_id, raw=raw, reason=reason))
    kept = np.ones(records.rows.num_rows, dtype=bool)
    kept[list(refused)] = False
    return replace(records, rows=records.rows.filter(pa.array(kept)), bad=(*records.bad, *bad))


def _rendered(rows: pa.Table, number: int) -> bytes:
    """A record whose bytes nobody can cut out of its file."""
    row = rows.slice(number, 1).drop_columns([PRODUCER_ID, SEQUENCE])
    fields = {field.name: _writable(row.column(field.name)[0].as_py(), field.type) for field in row.schema}
    return json.dumps(fields, ensure_ascii=False).encode()


def _writable(value: object, arrow: pa.DataType) -> object:
    """A value as JSON takes it, and as its column reads it."""
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


def without_strange_ids(records: Records, producer: RecordProducer, parts: Sequence[Part]) -> Records:
    """A record whose own sequence id cannot be one is bad, and so is one whose producer's name cannot be kept."""
    name, sequence = producer.name, producer.sequence
    ids = records.rows.column(sequence).to_numpy()
    strange = np.flatnonzero((ids < 0) | (ids >= SEQUENCE_END))
    reasons = {
        int(number): f"{sequence}: {ids[number]} is no sequence id (0 to {SEQUENCE_END - 1})" for number in strange
    }
    sizes = _text_bytes(records.rows.column(name)) + len(producer.prefix.encode())
    reasons |= {
        int(number): f"{name}: {producer.prefix} and the value are {sizes[number]} bytes, and the name of a producer"
        f" has at most {NAME_BYTES_MAX}"
        for number in np.flatnonzero(sizes > NAME_BYTES_MAX)
    }
    return without_rows(records, reasons, parts)


def _text_bytes(values: pa.ChunkedArray) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """How long the server's texts of some values are; those of numbers, times and their like are short."""
    if pa.types.is_string(values.type):
        sizes: np.ndarray[tuple[int], np.dtype[np.int64]] = pc.binary_length(values).to_numpy().astype(np.int64)
        return sizes
    if pa.types.is_binary(values.type):
        hexadecimal: np.ndarray[tuple[int], np.dtype[np.int64]] = pc.binary_length(values).to_numpy() * 2 + 2
        return hexadecimal
    return np.zeros(len(values), np.int64)


class _RawBytes:
    """The bytes of single records: each goes up to where the next one of its part starts."""

    def __init__(self, records: Records, parts: Sequence[Part]) -> None:
        # Ids that count rows do not tell where their bytes are.
        self._parts = [part for part in parts if len(part.raw) == part.end - part.first]
        self._starts = {part.producer_id: _starts(records, part.producer_id) for part in self._parts}

    def record(self, producer_id: ProducerId, sequence_id: int) -> bytes:
        """What a record was read of; empty where nobody can tell."""
        for part in self._parts:
            if part.producer_id == producer_id and part.first <= sequence_id < part.end:
                starts = self._starts[producer_id]
                after = int(np.searchsorted(starts, sequence_id, side="right"))
                end = min(part.end, int(starts[after])) if after < len(starts) else part.end
                return part.raw[sequence_id - part.first : end - part.first].rstrip(b"\r\n")
        return b""


def _starts(records: Records, producer_id: ProducerId) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    producers, sequences = _lineage(records.rows)
    bad = [each.sequence_id for each in records.bad if each.producer_id == producer_id]
    return np.sort(np.concatenate([sequences[producers == producer_id], np.array(bad, np.int64)]))
