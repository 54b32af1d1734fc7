"""Bad records: the rows that are refused, with the bytes that they were read from, and how many a commit may have.

Without a limit in the pipeline file, any share of a file may be bad, but not all of it. A file without a good record
is refused, and nothing that was read together of it is loaded or quarantined.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_core.checks import NAME_BYTES_MAX
from onceload_core.errors import NeedsAPerson, TooManyQuarantined
from onceload_core.names import ProducerId
from onceload_core.ports import QuarantinedRecord
from onceload_core.postgres.quarantine import kind_of
from onceload_core.spans import SEQUENCE_END
from onceload_jobs.files.addresses import shown
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.json.documents import elements_of
from onceload_jobs.formats.records import Indices, Records
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, ColumnType, Kind, arrow_type
from onceload_jobs.pipeline.declared import Declared, RecordProducer
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.rows import lineage_of

#: Fewer bad records may be accidents, so they are quarantined even if no other record is good.
NOTHING_GOOD_MIN = 10


def without_refused(
    records: Records, refused: Mapping[tuple[ProducerId, int], str], parts: Sequence[ReadPart]
) -> Records:
    """Turn the rows that the server refused, named by their lineage, into bad records; some may be in other records."""
    if not refused:
        return records
    producers, sequences = lineage_of(records.rows)
    places = {place: number for number, place in enumerate(zip(producers.tolist(), sequences.tolist(), strict=True))}
    return _without_rows(records, {places[each]: why for each, why in refused.items() if each in places}, parts)


def without_invalid_ids(records: Records, producer: RecordProducer, parts: Sequence[ReadPart]) -> Records:
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
    return _without_rows(records, reasons, parts)


def _text_bytes(values: pa.ChunkedArray) -> Indices:
    """The length of values as text on the server; numbers, times and similar types are short."""
    is_text = pa.types.is_string(values.type)
    if not (is_text or pa.types.is_binary(values.type)):
        return np.zeros(len(values), np.int64)
    sizes: Indices = pc.binary_length(values).to_numpy().astype(np.int64)
    return sizes if is_text else sizes * 2 + 2


def _without_rows(records: Records, refused: Mapping[int, str], parts: Sequence[ReadPart]) -> Records:
    """Turn rows, given by their numbers, into bad records."""
    if not refused:
        return records
    producers, sequences = lineage_of(records.rows)
    raw_of, bad = _RawBytes(records, [each.part for each in parts]), []
    for number, reason in refused.items():
        producer_id, sequence_id = ProducerId(int(producers[number])), int(sequences[number])
        raw = raw_of.record(producer_id, sequence_id) or _rendered(records.rows, number)
        bad.append(QuarantinedRecord(producer_id=producer_id, sequence_id=sequence_id, raw=raw, reason=reason))
    kept = np.ones(records.rows.num_rows, dtype=bool)
    kept[list(refused)] = False
    return replace(records, rows=records.rows.filter(pa.array(kept)), bad=(*records.bad, *bad))


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
                (begins, ends), number = elements_of(part.raw) or ((), ()), sequence_id - part.first
                return part.raw[begins[number] : ends[number]].strip(b" \t\r\n") if number < len(begins) else b""
        for part in self._parts:
            if part.producer_id == producer_id and part.first <= sequence_id < part.end:
                starts = self._starts[producer_id]
                after = int(np.searchsorted(starts, sequence_id, side="right"))
                end = min(part.end, int(starts[after])) if after < len(starts) else part.end
                return part.raw[sequence_id - part.first : end - part.first].rstrip(b"\r\n")
        return b""


def _starts(records: Records, producer_id: ProducerId) -> Indices:
    producers, sequences = lineage_of(records.rows)
    bad = [each.sequence_id for each in records.bad if each.producer_id == producer_id]
    return np.sort(np.concatenate([sequences[producers == producer_id], np.array(bad, np.int64)]))


@dataclass(eq=False)
class NothingGood(NeedsAPerson):
    """Every record of these files is bad: the format, the columns or the whole file is wrong."""

    #: The reason, for each file's address.
    refused: Mapping[str, str]

    def __str__(self) -> str:
        return "; ".join(f"{shown(url)} has no good record: {reason}" for url, reason in self.refused.items())


def check_piece(declared: Declared, records: Records, parts: Sequence[ReadPart]) -> None:
    """Refuse a piece of files as soon as it must fail: by the declared limit, or files without a good record.

    These are refused each with many records, or all if they have many together.
    """
    if declared.quarantine_limit.is_declared:
        check_limit(declared, records)
        return
    if len(records.bad) < NOTHING_GOOD_MIN:
        return
    bad_of = defaultdict[ProducerId, list[QuarantinedRecord]](list)
    for each in records.bad:
        bad_of[each.producer_id].append(each)
    good = set(pc.unique(records.rows.column(PRODUCER_ID)).to_pylist())
    least = NOTHING_GOOD_MIN if good else 1
    url_of = {each.part.producer_id: each.chunk.url for each in parts}
    refused = {
        url_of[file]: _why_refused(declared, bad, parts, together=len(records.bad))
        for file, bad in bad_of.items()
        if file not in good and len(bad) >= least
    }
    if refused:
        raise NothingGood(refused)


def _why_refused(
    declared: Declared, bad: Sequence[QuarantinedRecord], parts: Sequence[ReadPart], *, together: int
) -> str:
    kinds = [(each.column, kind_of(each.reason)) for each in bad]
    (most_common, count), *_ = Counter(kinds).most_common(1)
    example = bad[kinds.index(most_common)]
    all_of_it = "the only record read from it is" if len(bad) == 1 else f"all {len(bad):,} records read from it are"
    is_of_few = len(bad) < NOTHING_GOOD_MIN
    others = f", and so are all {together:,} records of the files read with it" if is_of_few else ""
    column = f"{example.column}: " if example.column else ""
    return (
        f"{all_of_it} bad{others}; {count:,} of them like {_place(declared, example, parts)}: {column}"
        f"{example.reason}. None of them was loaded or quarantined. Fix the file, or source.format, source.options or "
        "columns in the pipeline file, and load again. To quarantine such records instead, set quality.quarantined_max"
    )


def _place(declared: Declared, record: QuarantinedRecord, parts: Sequence[ReadPart]) -> str:
    if declared.source.format.is_whole:
        return f"row {record.sequence_id}"
    begun = next((each.part for each in parts if each.part.producer_id == record.producer_id), None)
    if begun is None or begun.first or record.sequence_id >= begun.end:
        return f"byte {record.sequence_id}"
    line = 1 + begun.raw.count(b"\n", 0, record.sequence_id)
    return f"line {line} (byte {record.sequence_id})"


def check_limit(declared: Declared, records: Records) -> None:
    """Refuse a piece with more bad records than the limit, if it decides about them.

    For a batch published as a whole, a share is known only at its end.
    """
    if declared.is_direct or declared.quarantine_limit.share is None:
        check_quarantine(declared, records.bad, records=records.count)


def check_quarantine(declared: Declared, bad: Sequence[QuarantinedRecord], *, records: int) -> None:
    """Refuse everything if more is bad than the pipeline allows: then the source is wrong."""
    limit = declared.quarantine_limit
    if limit.is_passed(quarantined=len(bad), records=records):
        raise TooManyQuarantined(declared.name, len(bad), records, str(limit), bad[0].reason)


def bad_allowed(declared: Declared, *, bad: int, records: int) -> int | None:
    """How many more records of a piece may be bad before it is refused; None if the piece cannot decide."""
    limit = declared.quarantine_limit
    if limit.records is not None:
        return limit.records - bad
    if limit.share is not None and declared.is_direct:
        return int(limit.share * records) - bad
    return None


def note_nothing_good(declared: Declared, bad: Mapping[str, int]) -> tuple[Note, ...]:
    """Report files with only bad records, each time too few to refuse the file."""
    is_judged = declared.quarantine_limit.is_declared or declared.producer is not None
    if is_judged or sum(bad.values()) < NOTHING_GOOD_MIN:
        return ()
    return tuple(
        Note(
            name=name,
            reason=_NOTHING_GOOD.format(count, f"--file={quote(name)} --pipeline {quote(declared.name)}"),
            needs_a_person=True,
        )
        for name, count in bad.items()
    )


_NOTHING_GOOD = (
    "all {:,} records that this load read from it are bad and in quarantine. See `onceload quarantine list {}`. "
    "`quarantine show` with an id of that list prints what can be done. If such records are normal, set "
    "quality.quarantined_max"
)
