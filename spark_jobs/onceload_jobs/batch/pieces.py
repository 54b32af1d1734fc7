"""The staged pieces, and what each proves when it is published."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, CursorResult, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import DatabaseLost
from onceload_core.names import ProducerId
from onceload_core.ports import Advance, Claim, QuarantinedRecord
from onceload_core.postgres.commit import check_held
from onceload_core.postgres.connection import array, sqlstate, statements
from onceload_core.spans import SpanSet
from onceload_jobs.batch.named_file import KnownProducers, NamedFile, NeedsTable, known_producers, read_named_file
from onceload_jobs.batch.spool import read_file, write_file
from onceload_jobs.batch.stage import OPENED, Stage, StageLost, still_there
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.read.new_content import NewContent
from onceload_jobs.write.binary_copy import copy_encoded, encoded
from onceload_jobs.write.codec import decode, encode
from onceload_jobs.write.find_refused import ENCODED_WRONGLY
from onceload_jobs.write.sql import filled
from onceload_jobs.write.writer import Writer

SQL = statements("pieces.sql", package=__package__)


@dataclass(frozen=True, kw_only=True)
class MadeOf:
    """How many rows of a transform name a file, how many of its records they name, and the first and last of these."""

    producer_id: ProducerId
    rows: int
    records: int
    #: 0 if it names none.
    first: int = 0
    last: int = 0


@dataclass(frozen=True, kw_only=True)
class StagedPiece:
    """What a piece of a delivery proves once its rows are published."""

    #: Negative for rows that a transform made, which prove nothing by themselves.
    delivery: int
    number: int
    is_last: bool
    advances: tuple[Advance, ...]
    rows: int
    quarantined: tuple[QuarantinedRecord, ...]
    bytes: int
    #: How many good records were read; a transform may make more or fewer rows of them.
    records: int
    #: In the last piece of a delivery: the files that could not be read.
    notes: tuple[Note, ...] = ()
    #: The file with its rows, if they are not in the table of the stage.
    file: str | None = None
    #: The records that the rows of a transform in that file name.
    made_of: tuple[MadeOf, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        return self.delivery, self.number

    @classmethod
    def of(cls, prepared: NewContent, *, delivery: int, number: int, is_last: bool) -> "StagedPiece":
        return cls(
            delivery=delivery,
            number=number,
            is_last=is_last,
            advances=prepared.advances,
            rows=prepared.rows.num_rows,
            records=prepared.rows.num_rows,
            quarantined=prepared.quarantined,
            bytes=prepared.bytes,
        )


def begin_try(engine: Engine, stage: Stage, claim: Claim, *, delivery: int) -> None:
    """Delete what earlier tries staged of a delivery, and fence them off."""
    with still_there(stage), engine.begin() as connection:
        check_held(connection, claim)
        proofs = _run(connection, stage, "delete_pieces", {"delivery": delivery}).scalars().all()
        advances = [advance for proof in proofs for advance in decode(_Proof, proof).advances]
        gone = [(each.producer_id, each.spans) for each in advances if each.rows]
        if gone:
            producer_ids, spans = map(array, zip(*gone, strict=True))
            _run(connection, stage, "delete_rows", {"producer_ids": producer_ids, "spans": spans})


def stage_piece(
    engine: Engine, stage: Stage, piece: StagedPiece, rows: pa.Table, *, writer: Writer, claim: Claim
) -> None:
    """Stage a piece and its rows, unless this try already did and the answer was lost."""
    if stage.producer is None:
        file = written_file(stage, rows, writer)
    else:
        file = _written_named_file(engine, stage, rows, writer, stage.producer, pipeline=claim.session.pipeline)
    piece = replace(piece, file=file)
    with engine.connect() as connection, connection.begin() as transaction:
        if not insert_piece(connection, stage, piece):
            transaction.rollback()
            return
        if piece.file is None and writer.write(connection, rows) != rows.num_rows:
            raise StageLost(stage.rows)
        check_held(connection, claim)


def written_file(stage: Stage, rows: pa.Table, writer: Writer, *, known: KnownProducers | None = None) -> str | None:
    """Write rows to a file; None if they go to the table.

    That is for added columns, for rows that the server has to decide about, or if the disk is full.
    """
    if stage.spool is None or not rows.num_rows or writer.added:
        return None
    with suppress(OSError, NeedsTable):
        if known is None:
            return write_file(stage.spool, encoded(rows, writer.columns, names=stage.in_files))
        return write_file(stage.spool, NamedFile.of(rows, known).encoded())
    return None


def _written_named_file(
    engine: Engine, stage: Stage, rows: pa.Table, writer: Writer, producer: RecordProducer, *, pipeline: str
) -> str | None:
    """Write rows that name their producer to a file, unless rows of other pieces already need the table."""
    with still_there(stage), engine.begin() as connection:
        if _run(connection, stage, "is_in_table").scalar_one():
            return None
    return written_file(stage, rows, writer, known=known_producers(engine, pipeline, stage, producer))


def move_to_table(engine: Engine, stage: Stage, file: str) -> None:
    """Copy the rows of a file into the table of the stage, unless they are already there, or the piece was deleted."""
    with still_there(stage), still_in_files(stage), engine.begin() as connection:
        # Another try of this delivery waits for this transaction, and then deletes these rows.
        rows = _run(connection, stage, "forget_file", {"file": file}).scalar_one_or_none()
        if rows is not None and _copy_to_table(connection, stage, file) != rows:
            raise StageLost(stage.rows)


def _copy_to_table(connection: Connection, stage: Stage, file: str) -> int:
    folder = stage.spool or ""
    if stage.producer is not None:
        return stage.writer.write(connection, read_named_file(folder, file).rows)
    return copy_encoded(connection, read_file(folder, file), table=stage.rows, names=stage.in_files)


@contextmanager
def still_in_files(stage: Stage) -> Iterator[None]:
    """Raise StageLost if a file of rows is gone or cut, as a cleaner of temporary files or a disk may leave it."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise StageLost(stage.name) from error
    except DBAPIError as error:
        if sqlstate(error) != ENCODED_WRONGLY:
            raise
        raise StageLost(stage.name) from error


def stage_proof(engine: Engine, stage: Stage, piece: StagedPiece) -> None:
    """Stage the proof of a piece whose rows are written elsewhere; a repeated read must give the same piece."""
    with engine.connect() as connection, connection.begin():
        if not insert_piece(connection, stage, piece):
            rows = _staged_rows(connection, stage)
            (kept,) = (_read(row) for row in rows if (row.delivery, row.number) == piece.place)
            if kept != piece:
                raise DatabaseLost(f"reading piece {piece.place} again", "its file changed after it was first read")


def insert_piece(connection: Connection, stage: Stage, piece: StagedPiece) -> bool:
    binds = {
        "delivery": piece.delivery,
        "number": piece.number,
        "is_last": piece.is_last,
        "rows": piece.rows,
        "bytes": piece.bytes,
        "records": piece.records,
        "proof": encode(
            _Proof(advances=piece.advances, quarantined=piece.quarantined, notes=piece.notes, made_of=piece.made_of)
        ),
        "file": piece.file,
    }
    with still_there(stage):
        return _run(connection, stage, "insert_piece", binds).rowcount == 1


def staged_pieces(engine: Engine, stage: Stage) -> tuple[StagedPiece, ...]:
    """Return all staged pieces in order."""
    with engine.begin() as connection:
        rows = _staged_rows(connection, stage)
    # Decoding many bad records takes long, and the server ends transactions that are idle for that time.
    return tuple(map(_read, rows))


def _staged_rows(connection: Connection, stage: Stage) -> Sequence[Any]:
    with still_there(stage):
        rows = _run(connection, stage, "pieces").all()
    if not rows or rows[0].delivery != OPENED:
        raise StageLost(stage.pieces)
    return rows[1:]


def staged_files(connection: Connection, stage: Stage) -> dict[str | None, int]:
    """The files of the currently staged pieces with their rows, and None if some rows are in the table."""
    return {row.file: row.rows for row in _run(connection, stage, "files")}


def write_publish_input(connection: Connection, stage: Stage, encoded: str) -> None:
    """Store what publishing needs in the stage itself, so that a crash that empties the stage removes it too."""
    with still_there(stage):
        if _run(connection, stage, "write_publish_input", {"encoded": encoded}).rowcount != 1:
            raise StageLost(stage.pieces)


def read_publish_input(connection: Connection, stage: Stage) -> str:
    with still_there(stage):
        encoded: str | None = _run(connection, stage, "read_publish_input").scalar_one_or_none()
    if encoded is None:
        raise StageLost(stage.pieces)
    return encoded


def check_kept(connection: Connection, stage: Stage, pieces: int) -> None:
    """Refuse, inside the commit, a stage that lost pieces since they were counted: a proof needs its rows."""
    with still_there(stage):
        # Lock, so that a late try stages nothing between this count and the read of the rows.
        _run(connection, stage, "lock_pieces")
        kept = _run(connection, stage, "count_pieces").scalar_one()
    # Every stage starts with one extra piece.
    if kept != pieces + 1:
        raise StageLost(stage.pieces)


def is_whole(pieces: Sequence[StagedPiece], *, deliveries: int) -> bool:
    """Whether each delivery has all of its pieces, from 0 to the one marked as last."""
    numbers: dict[int, list[StagedPiece]] = {}
    for piece in (piece for piece in pieces if piece.delivery >= 0):
        numbers.setdefault(piece.delivery, []).append(piece)
    are_there = len(numbers) == deliveries and all(
        [each.number for each in some] == list(range(len(some))) and some[-1].is_last for some in numbers.values()
    )
    return are_there and not _overlap(pieces)


def _overlap(pieces: Iterable[StagedPiece]) -> bool:
    seen: dict[ProducerId, SpanSet] = {}
    for advance in (advance for piece in pieces for advance in piece.advances):
        spans = seen.get(advance.producer_id, SpanSet())
        if spans.overlaps(advance.spans):
            return True
        seen[advance.producer_id] = spans | advance.spans
    return False


def advances_of(pieces: Sequence[StagedPiece]) -> tuple[Advance, ...]:
    """One advance per producer, with the proofs of its pieces in order."""
    in_order = sorted(
        (advance for piece in pieces for advance in piece.advances),
        key=lambda advance: (advance.producer_id, advance.spans.end if advance.spans else -1),
    )
    return tuple(_joined(list(some)) for _, some in groupby(in_order, key=lambda advance: advance.producer_id))


def _joined(advances: list[Advance]) -> Advance:
    spans = SpanSet(span for advance in advances for span in advance.spans)
    digest = b"".join(advance.digest or b"" for advance in advances)
    rows, records = sum(advance.rows for advance in advances), sum(advance.records for advance in advances)
    return replace(advances[-1], spans=spans, rows=rows, records=records, digest=digest)


def _run(
    connection: Connection, stage: Stage, statement: str, binds: Mapping[str, object] | None = None
) -> CursorResult[*tuple[Any, ...]]:
    whole = filled(SQL[statement], pieces=stage.pieces, rows=stage.rows, opened=str(OPENED))
    return connection.execute(whole, binds)


@dataclass(frozen=True, kw_only=True)
class _Proof:
    """What the table of pieces stores of one besides its own columns."""

    advances: tuple[Advance, ...]
    quarantined: tuple[QuarantinedRecord, ...]
    notes: tuple[Note, ...]
    made_of: tuple[MadeOf, ...] = ()


def _read(row: Any) -> StagedPiece:  # noqa: ANN401 - a row has the types that its statement gives it.
    proof = decode(_Proof, row.proof)
    return StagedPiece(
        delivery=row.delivery,
        number=row.number,
        is_last=row.is_last,
        rows=row.rows,
        bytes=row.bytes,
        records=row.records,
        advances=proof.advances,
        quarantined=proof.quarantined,
        notes=proof.notes,
        file=row.file,
        made_of=proof.made_of,
    )
