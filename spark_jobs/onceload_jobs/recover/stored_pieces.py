"""Quarantined records as a piece of a batch, so that their rows take the same roads as those of files.

Where records name themselves, by their producers or by business ids, only the new ones are in it. The others stay in
quarantine, with the reason: a record with their id is loaded already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine

from onceload_core.postgres.connection import translated
from onceload_core.postgres.quarantine import KeptRecord, QuarantineId, Refusal
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Block, Piece, Refused, RowsInMemory
from onceload_jobs.batch.stage_folder import BlockWriter, StageFolder, content_of, written
from onceload_jobs.batch.used_ids import messages_block, used_ids_block
from onceload_jobs.formats.records import Mask
from onceload_jobs.recover.stored_records import Reading, StoredRecords
from onceload_jobs.work.by_message import new_messages
from onceload_jobs.work.by_producer import NewOfProducers, new_of_producers
from onceload_jobs.work.dedup import Records, with_columns, without_places
from onceload_jobs.work.read_chunk import RowForm
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.writer import ColumnsDiffer

_ID_IS_LOADED = "its producer has loaded a record with this sequence id already"
_ID_IS_PASSED = (
    "its producer has loaded this sequence id or a later one already (order: ordered). Load the record with a separate "
    "pipeline file that declares order: any, or discard it"
)
_MESSAGE_IS_LOADED = "a record with this business id is loaded already"


class StoredPieces(RowsInMemory):
    """The records that are good now, as one piece. Its rows wait in a folder, in the form that their road takes."""

    def __init__(self, engine: Engine, job: Job, stored: StoredRecords, *, form: RowForm, folder: StageFolder) -> None:
        super().__init__(form.writer)
        self._engine, self._job, self._stored = engine, job, stored
        self._form, self._folder = form, folder
        self._records: Sequence[KeptRecord] = ()
        self._refused_records: dict[QuarantineId, Refusal] = {}
        #: The records that are good, and why the others are not.
        self.reading: Reading
        self.piece: Piece

    def read(self, records: Sequence[KeptRecord]) -> Piece:
        """Read the records that are held now. What the server said of some before stays known."""
        self._records = records
        return self._read(0)

    def note_columns(self, differing: ColumnsDiffer) -> None:
        self._differing = differing.after(self._differing)

    def each(self) -> Iterator[Piece]:
        yield self.piece

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        return content_of(self._folder, piece, block)

    def without(self, piece: Piece, refused: Refused) -> Piece:
        by_place = {(record.producer_id, record.sequence_id): record.quarantine_id for record in self._records}
        self._refused_records |= {by_place[place]: Refusal(reason=reason) for place, reason in refused.items()}
        return self._read(piece.number)

    def _read(self, number: int) -> Piece:
        reading = self._stored.read(self._records, refused=self._refused_records, differing=self._differing)
        found = until_answered(partial(self._find_new, reading))
        self.reading, self._rows = found.reading, (found.reading.rows, found.reading.added)
        write = partial(self._piece, number, found)
        # Spark may work on other machines, which do not see what this one writes.
        self.piece = write(BlockWriter()) if self._form.as_arrow else written(self._folder, write)
        return self.piece

    def _find_new(self, reading: Reading) -> "_NewRecords":
        if not self._job.records_have_own_ids:
            return _NewRecords(reading=reading)
        doing = translated(pipeline=self._job.declared.name, doing="looking for new records")
        with doing, self._engine.begin() as connection:
            return _new_records(connection, self._job, reading)

    def _piece(self, number: int, found: "_NewRecords", into: BlockWriter) -> Piece:
        good = found.reading.good
        self._form.write(into, without_places(found.reading.rows), found.reading.added)
        of_rows = len(into.blocks)
        if found.producers is not None:
            used_ids_block(into, found.producers.used_ids(counts_rows=self._job.declared.transform is None))
        of_ids = len(into.blocks)
        if found.hashes is not None:
            messages_block(into, found.hashes)
        return Piece(
            number=number,
            rows=len(good),
            records=len(good),
            bytes=sum(len(self._stored.text_of(record)) for record in good),
            file=into.file,
            blocks=tuple(into.blocks[:of_rows]),
            ids=tuple(into.blocks[of_rows:of_ids]),
            messages=tuple(into.blocks[of_ids:]),
            settled={(record.producer_id, record.sequence_id): record.digest for record in good},
        )


@dataclass(frozen=True, kw_only=True)
class _NewRecords:
    """The new records of a reading, under the ids of the producers that they name, and the ids that they use up."""

    reading: Reading
    producers: NewOfProducers | None = None
    hashes: NDArray[np.bytes_] | None = None


def _new_records(connection: Connection, job: Job, reading: Reading) -> _NewRecords:
    """Leave out the records whose id is loaded, or is that of another record of this retry."""
    producers, hashes = None, None
    if job.declared.producer is not None and reading.good:
        records = Records(parts=[(reading.rows, reading.added)])
        # Whether one of these is called like a file, only a load of files can ask.
        found = new_of_producers(connection, job.declared.producer, job, records, files=())
        why = _ID_IS_PASSED if found.order is Order.ORDERED else _ID_IS_LOADED
        named = replace(reading, rows=with_columns(reading.rows, found.columns))
        reading, producers = _among(named, found.new.rows, why=why), found.among(found.new.rows)
    if job.declared.message_id is not None and reading.good:
        records = Records(parts=[(reading.rows, reading.added)])
        messages = new_messages(connection, job.declared.message_id, job, records)
        reading, hashes = _among(reading, messages.rows, why=_MESSAGE_IS_LOADED), messages.hashes
        producers = producers and producers.among(messages.rows)
    return _NewRecords(reading=reading, producers=producers, hashes=hashes)


def _among(reading: Reading, is_new: Mask, *, why: str) -> Reading:
    """The new records of a reading; the others are refused."""
    judged = list(zip(reading.good, is_new.tolist(), strict=True))
    old = [record.quarantine_id for record, new in judged if not new]
    return replace(
        reading,
        good=tuple(record for record, new in judged if new),
        rows=reading.rows.filter(pa.array(is_new)),
        refusals={**reading.refusals, **dict.fromkeys(old, Refusal(reason=why))},
    )
