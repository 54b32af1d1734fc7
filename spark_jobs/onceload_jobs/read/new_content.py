"""The new content of a bundle of chunks: as much at a time as is committed or written together."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_core.delivery import Mode
from onceload_core.errors import CommitOutcomeUnknown, DatabaseLost, OnceloadError, TooManyQuarantined
from onceload_core.names import ProducerId
from onceload_core.ports import Advance, QuarantinedRecord
from onceload_core.spans import Span, SpanSet
from onceload_core.verdicts import judge
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk, FileRefused, Part
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import PRODUCER_ID, Column
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.bad_records import NothingGood, check_piece, without_invalid_ids, without_refused
from onceload_jobs.read.checked_parts import FileRewritten, ReadPart, TailWentOn, read_parts
from onceload_jobs.read.digests import digest_of
from onceload_jobs.read.parts import piece_bytes_max
from onceload_jobs.read.rows import lineage_of, read_adding, read_records
from onceload_jobs.write.patience import Answer
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: No row that the server refuses is known.
NOTHING_REFUSED: Mapping[tuple[ProducerId, int], str] = {}


def pieces_of(
    declared: Declared,
    chunks: Sequence[Chunk],
    notes: list[Note],
    *,
    is_last_try: bool,
    on_chunk: Callable[[Chunk], None] | None = None,
) -> Iterator[tuple[list[ReadPart], bool]]:
    """The parts to commit together: one, or small ones up to the size of a chunk; and whether they are the last."""
    held: list[ReadPart] = []
    held_bytes = 0
    bytes_max = piece_bytes_max(declared.source)
    for chunk in chunks:
        if on_chunk is not None:
            if held:
                yield held, False
                held, held_bytes = [], 0
            on_chunk(chunk)
        try:
            for part in read_parts(chunk, declared.source):
                if held and held_bytes + len(part.part.raw) > bytes_max:
                    yield held, False
                    held, held_bytes = [], 0
                held.append(part)
                held_bytes += len(part.part.raw)
        except OnceloadError as error:
            if isinstance(error, DatabaseLost | CommitOutcomeUnknown | TooManyQuarantined):
                raise
            # Whether the same bytes may be readable later.
            is_temporary = isinstance(error, Unreadable) and not isinstance(error, FileRewritten)
            if is_temporary and (not is_last_try or _is_followed(declared, chunks)):
                # Another worker may be able to read it, or later parts must not take effect first.
                raise
            notes.append(Note.of(chunk.name, error))
    yield held, True


def _is_followed(declared: Declared, chunks: Sequence[Chunk]) -> bool:
    """Whether other bundles are ordered after this one."""
    match declared.delivery.mode:
        case Mode.SHARED:
            return False
        case Mode.KEY_SHARED:
            return not declared.needs_spark and any(chunk.is_followed for chunk in chunks)
        case Mode.ORDERED | Mode.SESSION:
            return not declared.needs_spark and (declared.is_direct or declared.is_published_whole)


def without_refused_files(
    process: Callable[[list[ReadPart]], Answer],
    parts: list[ReadPart],
    *,
    refused: set[str],
    notes: list[Note],
    by_file: bool = False,
) -> Answer:
    """Process a piece without the files that turn out to be unreadable when they are decoded."""
    without_tail: set[str] = set()
    while True:
        left = [
            each
            for each in parts
            if each.chunk.url not in refused and not (each.part.is_tail and each.chunk.url in without_tail)
        ]
        try:
            return process(left)
        except TailWentOn as error:
            without_tail.add(error.url)
            notes += [
                Note.of(name, error) for name in {each.chunk.name for each in left if each.chunk.url == error.url}
            ]
        except (FileRefused, NothingGood) as error:
            names = {each.chunk.url: each.chunk.name for each in left if each.chunk.url in error.refused}
            if not names:
                raise
            refused.update(names)
            notes += [Note(name=name, reason=error.refused[url], needs_a_person=True) for url, name in names.items()]
        except TooManyQuarantined as error:
            # A single file says nothing about the others, which would have been judged together with it.
            if not by_file or not left:
                raise
            refused.update(each.chunk.url for each in left)
            notes += [Note.of(name, error) for name in dict.fromkeys(each.chunk.name for each in left)]


def records_of(
    declared: Declared,
    columns: tuple[Column, ...],
    parts: Sequence[ReadPart],
    writer: Writer,
    *,
    differing: ColumnsDiffer | None = None,
    refused: Mapping[tuple[ProducerId, int], str] = NOTHING_REFUSED,
) -> tuple[Records, Writer]:
    """Read parts, and decide how to write their rows: with added columns for undeclared fields, if any."""
    if declared.transform is None:
        records, added = read_adding(declared, columns, parts, differing)
        writer = writer.adding(added)
    else:
        # A transform sees the declared columns, and makes the written ones.
        records = read_records(declared, columns, parts)
    if declared.producer is not None:
        records = without_invalid_ids(records, declared.producer, parts)
    records = without_refused(records, refused, parts)
    check_piece(declared, records, parts)
    return records, writer


def note_ignored(records: Records, notes: list[Note]) -> None:
    if records.ignored.fields:
        # No file has this name: the note says nothing about what was read of one.
        notes.append(Note(name="", reason="", ignored=records.ignored))


@dataclass(frozen=True, kw_only=True)
class NewContent:
    """The new content of some parts, ready to be committed."""

    advances: tuple[Advance, ...]
    rows: pa.Table
    quarantined: tuple[QuarantinedRecord, ...]
    duplicate: int
    bytes: int


def leave_out_consumed(
    parts: Sequence[ReadPart], records: Records, *, consumed: Mapping[ProducerId, SpanSet]
) -> NewContent:
    """Leave out what is already loaded; each producer advances by exactly the rest."""
    by_producer = defaultdict[ProducerId, list[ReadPart]](list)
    for each in parts:
        by_producer[each.part.producer_id].append(each)
    new, has_duplicates = dict[ProducerId, SpanSet](), False
    for producer_id, some in by_producer.items():
        judged = judge(_ids_of(some), consumed=consumed.get(producer_id, SpanSet()))
        new[producer_id], has_duplicates = judged.new, has_duplicates or bool(judged.duplicate)
    rows, bad = records.rows, records.bad
    if has_duplicates:
        rows = rows.filter(_is_new(rows, new))
        bad = tuple(each for each in bad if each.sequence_id in new[each.producer_id])
    counted = pc.value_counts(rows.column(PRODUCER_ID))
    rows_of = dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))
    bad_of = Counter(each.producer_id for each in bad)
    return NewContent(
        advances=tuple(
            _advance(each, some, new[each], rows=rows_of.get(each, 0), bad=bad_of[each])
            for each, some in by_producer.items()
            if new[each] or not _ids_of(some)
        ),
        rows=rows,
        quarantined=bad,
        duplicate=records.count - rows.num_rows - len(bad),
        # Where ids count rows, a part is new completely or not at all.
        bytes=sum(len(each.part.raw) for each in parts if new[each.part.producer_id].overlaps(_ids_of([each]))),
    )


def _ids_of(parts: Iterable[ReadPart]) -> SpanSet:
    return SpanSet(Span(each.part.first, each.part.end) for each in parts if each.part.first < each.part.end)


def _is_new(rows: pa.Table, new: Mapping[ProducerId, SpanSet]) -> pa.Array:
    producers, sequences = lineage_of(rows)
    kept = np.zeros(len(sequences), dtype=bool)
    for producer_id, spans in new.items():
        of_it = producers == producer_id
        for span in spans:
            kept |= of_it & (sequences >= span.first) & (sequences < span.end)
    return pa.array(kept)


def _advance(producer_id: ProducerId, parts: Sequence[ReadPart], spans: SpanSet, *, rows: int, bad: int) -> Advance:
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
