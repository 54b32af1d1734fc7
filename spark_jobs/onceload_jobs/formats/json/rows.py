"""Read the elements of a JSON array like JSON lines: the values of both mean the same."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from onceload_core.ports import QuarantinedRecord
from onceload_jobs.formats.chunks import FileRefused, Part
from onceload_jobs.formats.json.documents import elements_of, read_documents
from onceload_jobs.formats.json.tokens import not_blank
from onceload_jobs.formats.jsonl.rows import read_objects
from onceload_jobs.formats.lines import Lines, too_long
from onceload_jobs.formats.records import Indices, Records
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields


def read_json(
    parts: Sequence[tuple[str, Part]],
    columns: tuple[Column, ...],
    *,
    declared: Collection[str],
    unknown_fields: UnknownFields,
    record_bytes_max: int,
) -> Records:
    """Read the records of all parts, each with the address of its file."""
    whole = [_elements(url, part) for url, part in parts if not part.too_long]
    records = read_objects(
        _joined(whole, record_bytes_max=record_bytes_max), columns, declared=declared, unknown_fields=unknown_fields
    )
    return replace(records, bad=records.bad + _too_long([part for _, part in parts]))


def _elements(url: str, part: Part) -> tuple[Part, Indices, Indices]:
    found = elements_of(part.raw)
    if part.row_group is None:
        # A kept record alone, which may be anything.
        return part, *(found or (np.array([0]), np.array([len(part.raw)])))
    if found is None or len(found[0]) != part.end - part.first:
        # The places of its records are of another content with the same edges.
        read_documents.cache_clear()
        expected = "the records that were in it when the load planned it"
        raise FileRefused(url, expected, "it was rewritten since", "Load again")
    return part, *found


def _joined(parts: Sequence[tuple[Part, Indices, Indices]], *, record_bytes_max: int) -> Lines:
    """The elements of all parts, with a newline instead of the comma behind each."""
    block = bytearray()
    starts, trimmed_ends, separators, sequence_ids, producer_ids = [], [], [], [], []
    for part, begins, ends in parts:
        # Part by part, because it takes many times the memory of its block.
        first, last = _trimmed(part.raw, begins, ends)
        starts.append(first + len(block))
        trimmed_ends.append(last + len(block))
        separators.append(ends + len(block))
        sequence_ids.append(np.arange(len(begins)) + part.first)
        producer_ids.append(np.full(len(begins), part.producer_id, np.int64))
        block += part.raw
        block += b"\n"
    nothing = np.zeros(0, np.int64)
    np.frombuffer(block, np.uint8)[np.concatenate([nothing, *separators])] = ord("\n")
    first, last = np.concatenate([nothing, *starts]), np.concatenate([nothing, *trimmed_ends])
    return Lines(
        block=bytes(block),
        record_bytes_max=record_bytes_max,
        raw_starts=first,
        raw_ends=last,
        starts=first,
        ends=last,
        sequence_ids=np.concatenate([nothing, *sequence_ids]),
        producer_ids=np.concatenate([nothing, *producer_ids]),
    )


def _trimmed(block: bytes, starts: Indices, ends: Indices) -> tuple[Indices, Indices]:
    """The elements without the blanks around them; one of nothing but blanks is empty."""
    filled = np.append(not_blank(block), len(block))
    first = np.minimum(filled[np.searchsorted(filled, starts)], ends)
    last = np.searchsorted(filled, ends) - 1
    return first, np.where(first < ends, filled[np.maximum(last, 0)] + 1, ends)


def _too_long(parts: Sequence[Part]) -> tuple[QuarantinedRecord, ...]:
    return tuple(
        QuarantinedRecord(
            producer_id=part.producer_id,
            sequence_id=part.first,
            raw=part.raw,
            reason=too_long(part.row_group.bytes),
        )
        for part in parts
        if part.too_long and part.row_group is not None
    )
