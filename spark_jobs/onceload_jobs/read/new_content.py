"""Turn parts of files into the contents of one commit: rows, bad records, and advances of producers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_core.names import ProducerId
from onceload_core.ports import Advance, QuarantinedRecord
from onceload_core.spans import Span, SpanSet
from onceload_core.verdicts import judge
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.records import BadRecord, Records
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.digests import digest_of


@dataclass(frozen=True, kw_only=True)
class NewContent:
    """The new content of some parts, ready to be committed."""

    advances: tuple[Advance, ...]
    rows: pa.Table
    bad: tuple[BadRecord, ...]
    duplicate: int
    bytes: int

    @property
    def quarantined(self) -> tuple[QuarantinedRecord, ...]:
        return quarantined(self.bad)


def quarantined(bad: Iterable[BadRecord]) -> tuple[QuarantinedRecord, ...]:
    """Bad records as a commit keeps them."""
    return tuple(
        QuarantinedRecord(
            producer_id=each.producer_id,
            sequence_id=each.sequence_id,
            raw=each.raw,
            reason=each.reason,
            column=each.column,
        )
        for each in bad
    )


def leave_out_consumed(
    parts: Sequence[ReadPart], records: Records, *, consumed: Mapping[ProducerId, SpanSet]
) -> NewContent:
    """Leave out what is already loaded; each producer advances by exactly the rest."""
    by_producer: dict[ProducerId, list[ReadPart]] = {}
    for each in parts:
        by_producer.setdefault(each.part.producer_id, []).append(each)
    judged = {
        producer_id: judge(_offered(some), consumed=consumed.get(producer_id, SpanSet()))
        for producer_id, some in by_producer.items()
    }
    new = {producer_id: each.new for producer_id, each in judged.items()}
    rows, bad = records.rows, records.bad
    if any(each.duplicate for each in judged.values()):
        rows = rows.filter(_is_new(rows, new))
        bad = tuple(each for each in bad if each.sequence_id in new[each.producer_id])
    rows_of, bad_of = _rows_by_producer(rows), Counter(each.producer_id for each in bad)
    advances = tuple(
        _advance(producer_id, some, spans=new[producer_id], rows=rows_of.get(producer_id, 0), bad=bad_of[producer_id])
        for producer_id, some in by_producer.items()
        if new[producer_id] or not _offered(some)
    )
    left_out = records.count - rows.num_rows - len(bad)
    return NewContent(advances=advances, rows=rows, bad=bad, duplicate=left_out, bytes=_bytes_of(parts, new))


def _bytes_of(parts: Sequence[ReadPart], new: Mapping[ProducerId, SpanSet]) -> int:
    """How many new bytes were read; where ids count rows, a part is new completely or not at all."""
    return sum(len(each.part.raw) for each in parts if new[each.part.producer_id].overlaps(_offered([each])))


def _offered(parts: Iterable[ReadPart]) -> SpanSet:
    return SpanSet(Span(each.part.first, each.part.end) for each in parts if each.part.first < each.part.end)


def _is_new(rows: pa.Table, new: Mapping[ProducerId, SpanSet]) -> pa.Array:
    producers, sequences = lineage_of(rows)
    kept = np.zeros(len(sequences), dtype=bool)
    for producer_id, spans in new.items():
        of_it = producers == producer_id
        for span in spans:
            kept |= of_it & (sequences >= span.first) & (sequences < span.end)
    return pa.array(kept)


def lineage_of(rows: pa.Table) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", ...]:
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
    """One digest per span, so that each can be compared with the file alone."""
    raw = memoryview(part.raw)
    if not raw:
        return
    whole = Span(part.first, part.end)
    if len(raw) != len(whole):
        # Ids that count rows do not show the positions of their bytes.
        yield digest_of(whole, raw)
        return
    for span in spans & SpanSet([whole]):
        yield digest_of(span, raw[span.first - part.first : span.end - part.first])
