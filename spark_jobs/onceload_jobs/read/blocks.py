"""The records of a bundle of chunks: as much at a time as is committed or written together."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from onceload_core.delivery import Mode
from onceload_core.errors import CommitOutcomeUnknown, DatabaseLost, OnceloadError, TooManyQuarantined
from onceload_core.names import ProducerId
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk, FileRefused
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.added_columns import read_adding
from onceload_jobs.read.bad_rows import without_invalid_ids, without_refused
from onceload_jobs.read.board_work import Bundle
from onceload_jobs.read.checked_parts import FileRewritten, ReadPart, TailWentOn, read_parts
from onceload_jobs.read.limits import NothingGood, check_piece
from onceload_jobs.read.parts import piece_bytes_max
from onceload_jobs.read.rows import read_records
from onceload_jobs.write.patience import Answer
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: No row that the server refuses is known.
NOTHING_REFUSED: Mapping[tuple[ProducerId, int], str] = {}


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
        left = [each for each in parts if each.chunk.url not in refused]
        left = [each for each in left if not (each.part.is_tail and each.chunk.url in without_tail)]
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


def pieces_of(
    declared: Declared,
    chunks: Bundle,
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
            if _is_temporary(error) and (not is_last_try or _is_followed(declared, chunks)):
                # Another worker may be able to read it, or later parts must not take effect first.
                raise
            notes.append(Note.of(chunk.name, error))
    yield held, True


def _is_temporary(error: OnceloadError) -> bool:
    """Whether the same bytes may be readable later."""
    return isinstance(error, Unreadable) and not isinstance(error, FileRewritten)


def _is_followed(declared: Declared, chunks: Bundle) -> bool:
    """Whether other bundles are ordered after this one."""
    match declared.delivery.mode:
        case Mode.SHARED:
            return False
        case Mode.KEY_SHARED:
            return not declared.needs_spark and any(chunk.is_followed for chunk in chunks)
        case Mode.ORDERED | Mode.SESSION:
            return not declared.needs_spark and (declared.is_direct or declared.is_published_whole)


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
        records = without_invalid_ids(records, declared.producer, [each.part for each in parts])
    records = without_refused(records, refused, [each.part for each in parts])
    check_piece(declared, records, parts)
    return records, writer


def note_ignored(records: Records, notes: list[Note]) -> None:
    if records.ignored.fields:
        # No file has this name: the note says nothing about what was read of one.
        notes.append(Note(name="", reason="", ignored=records.ignored))
