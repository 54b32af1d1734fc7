"""Read quarantined records again: the fields as they were stored, with the types and rules that are declared now."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from onceload_core.names import ProducerId
from onceload_core.postgres.quarantine import Fix, KeptRecord, QuarantineId, Refusal
from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.chunks import KEPT_BYTES, Chunk, Part
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.records import Records
from onceload_jobs.formats.values import from_kept
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column
from onceload_jobs.pipeline.declared import Declared, Source
from onceload_jobs.read.bad_records import without_invalid_ids
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.rows import joined, read_adding, read_records
from onceload_jobs.recover.stored_fields import Fields, StoredFields, find_unmapped
from onceload_jobs.write.writer import ColumnsDiffer


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The records that are good now, with their rows in the same order, and the reasons of the others."""

    good: tuple[KeptRecord, ...]
    rows: pa.Table
    refusals: Mapping[QuarantineId, Refusal]
    #: The files of refused records whose fields are not where the pipeline file says now.
    laid_out_otherwise: tuple[str, ...]
    #: Undeclared fields for which the target gets columns …
    added: tuple[Column, ...]
    #: … and those that are not loaded.
    ignored: Ignored


@dataclass(frozen=True, kw_only=True)
class StoredRecords:
    """Records as they were stored, or as a person has fixed them."""

    declared: Declared
    columns: tuple[Column, ...]
    fields: StoredFields
    fixed: Mapping[QuarantineId, Fix] = field(default_factory=dict)

    def text_of(self, record: KeptRecord) -> bytes:
        fix = self.fixed.get(record.quarantine_id)
        return record.raw if fix is None else fix.raw

    def read(
        self,
        records: Sequence[KeptRecord],
        *,
        refused: Mapping[QuarantineId, Refusal],
        differing: ColumnsDiffer | None,
    ) -> Reading:
        """Read each record as a producer of its own, to detect a text with no record, or with two."""
        found = [self.fields.of(record) for record in records]
        refusals = {
            number: refusal
            for number, record in enumerate(records)
            if (refusal := refused.get(record.quarantine_id) or self._unreadable(record, found[number]))
        }
        otherwise = {number for number, refusal in refusals.items() if refusal is found[number]}
        there = {
            number: fields
            for number, fields in enumerate(found)
            if isinstance(fields, Fields) and number not in refusals
        }
        read, added = self._read(records, there, differing)
        for number, refusal in _refusals_of(read, there).items():
            refusals[number] = _explained(refusal, there[number])
            if there[number].differences:
                otherwise.add(number)
        numbers = read.rows.column(PRODUCER_ID).to_numpy()
        is_good = ~np.isin(numbers, list(refusals))
        good = tuple(records[number] for number in numbers[is_good].tolist())
        return Reading(
            good=good,
            rows=_under_own_ids(read.rows.filter(pa.array(is_good)), good),
            refusals={records[number].quarantine_id: refusal for number, refusal in refusals.items()},
            laid_out_otherwise=tuple(sorted({records[number].file for number in otherwise})),
            added=added,
            ignored=read.ignored,
        )

    def _read(
        self, records: Sequence[KeptRecord], there: Mapping[int, Fields], differing: ColumnsDiffer | None
    ) -> tuple[Records, tuple[Column, ...]]:
        """Records with the same layout are read together."""

        def read_all(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
            by_source: dict[Source, list[ReadPart]] = {declared.source: []}
            for each in parts:
                by_source.setdefault(there[each.part.producer_id].source, []).append(each)
            return joined(
                _read_as(replace(declared, source=source), columns, some) for source, some in by_source.items()
            )

        parts = [self._part(number, records[number], fields) for number, fields in there.items()]
        added: tuple[Column, ...] = ()
        if self.declared.transform is None:
            read, added = read_adding(self.declared, self.columns, parts, differing, read=read_all)
        else:
            # A transform sees the declared columns, and makes the written ones.
            read = read_all(self.declared, self.columns, parts)
        if self.declared.producer is not None:
            read = without_invalid_ids(read, self.declared.producer, parts)
        return read, added

    def _unreadable(self, record: KeptRecord, fields: Fields | Refusal) -> Refusal | None:
        """Why a record cannot be tried at all."""
        if record.is_replaced:
            return Refusal(reason="its file was replaced by a later generation, so its rows must not be loaded again")
        if record.raw_bytes == KEPT_BYTES and record.quarantine_id not in self.fixed:
            # The kept beginning of an oversized record might look like a whole one.
            return Refusal(reason=record.reason, column=record.column)
        if isinstance(fields, Refusal):
            return fields
        if fields.source.format.is_typed:
            text = self.text_of(record)
            return find_unmapped(self.declared, fields.layout, text, is_edited=text != record.raw)
        return None

    def _part(self, number: int, record: KeptRecord, fields: Fields) -> ReadPart:
        raw = self.text_of(record)
        first, end, reader_id = record.sequence_id, record.sequence_id + len(raw), ProducerId(number)
        chunk = Chunk(producer_id=reader_id, name=record.file, url="", first=first, end=end, header=fields.header)
        return ReadPart(chunk=chunk, part=Part(producer_id=reader_id, first=first, end=end, raw=raw), fingerprint=b"")


def _explained(refusal: Refusal, fields: Fields) -> Refusal:
    """A value may look wrong because its field is not where the pipeline file says now."""
    if not fields.differences:
        return refusal
    changed = " and ".join(fields.differences)
    return replace(refusal, reason=f"{refusal.reason} (read with the {changed} declared when it was quarantined)")


def _under_own_ids(rows: pa.Table, records: Sequence[KeptRecord]) -> pa.Table:
    for name, ids in (
        (PRODUCER_ID, [record.producer_id for record in records]),
        (SEQUENCE, [record.sequence_id for record in records]),
    ):
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(ids, pa.int64()))
    return rows


def _read_as(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
    """A row of values with types is kept as a line of JSON; other records are kept unchanged."""
    if not declared.source.format.is_typed:
        return read_records(declared, columns, parts)
    return read_jsonl(
        [each.part for each in parts],
        columns,
        declared=declared.field_names,
        unknown_fields=declared.unknown_fields,
        record_bytes_max=declared.source.record_bytes_max,
        read_value=from_kept,
    )


def _refusals_of(read: Records, tried: Collection[int]) -> dict[int, Refusal]:
    """The reasons of records that are still bad, by their number."""
    counts = dict.fromkeys(tried, 0)
    for number in read.rows.column(PRODUCER_ID).to_pylist():
        counts[number] += 1
    refusals: dict[int, Refusal] = {}
    for bad in read.bad:
        counts[bad.producer_id] += 1
        refusals[bad.producer_id] = Refusal(reason=bad.reason, column=bad.column)
    several = {number: count for number, count in counts.items() if count != 1}
    return refusals | {
        number: Refusal(reason=f"its text contains {count} records instead of one") for number, count in several.items()
    }
