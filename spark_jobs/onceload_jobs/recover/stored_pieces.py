"""Quarantined records as a piece of a batch, so that their rows take the same roads as those of files."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from sqlalchemy import Engine

from onceload_core.postgres.connection import translated
from onceload_core.postgres.quarantine import KeptRecord, QuarantineId, Refusal
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Block, Piece, Refused
from onceload_jobs.batch.stage_folder import BlockWriter, StageFolder, content_of, written
from onceload_jobs.batch.used_ids import messages_block, used_ids_block
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.recover.new_records import NewRecords, new_records
from onceload_jobs.recover.stored_records import Reading, StoredRecords
from onceload_jobs.work.bucket import without_places
from onceload_jobs.work.row_form import RowForm
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.writer import ColumnsDiffer


class StoredPieces:
    """The records that are good now, as one piece."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        stored: StoredRecords,
        records: Sequence[KeptRecord],
        *,
        form: RowForm,
        folder: StageFolder,
        refused: Mapping[QuarantineId, Refusal],
        differing: ColumnsDiffer | None,
    ) -> None:
        self._engine, self._job, self._stored, self._records = engine, job, stored, records
        self._form, self._folder, self._differing = form, folder, differing
        #: Those that the server refused.
        self.refused = dict(refused)
        self._found: NewRecords
        self.piece = self._read()

    @property
    def reading(self) -> Reading:
        """The records that are good, and why the others are not."""
        return self._found.reading

    def each(self) -> Iterator[Piece]:
        yield self.piece

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        return content_of(self._folder, piece, block)

    def again(self, piece: Piece) -> Piece:
        del piece
        return self._read()

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> Piece:
        del piece
        self._differing = differing
        return self._read()

    def without(self, piece: Piece, refused: Refused) -> Piece:
        del piece
        by_place = {(record.producer_id, record.sequence_id): record.quarantine_id for record in self._records}
        self.refused |= {by_place[place]: Refusal(reason=reason) for place, reason in refused.items()}
        return self._read()

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        del piece
        yield self._found.rows, self.reading.added

    def _read(self) -> Piece:
        reading = self._stored.read(self._records, refused=self.refused, differing=self._differing)
        self._found = until_answered(partial(self._find_new, reading))
        self.piece = written(self._folder, self._piece)
        return self.piece

    def _find_new(self, reading: Reading) -> NewRecords:
        if not self._job.records_have_own_ids:
            return NewRecords(reading=reading, rows=reading.rows)
        doing = translated(pipeline=self._job.declared.name, doing="looking for new records")
        with doing, self._engine.begin() as connection:
            return new_records(connection, self._job, reading)

    def _piece(self, into: BlockWriter) -> Piece:
        found, good = self._found, self._found.reading.good
        self._form.write(into, without_places(found.rows), found.reading.added)
        of_rows = len(into.blocks)
        if found.producers is not None:
            used_ids_block(into, found.producers.used_ids(counts_rows=self._job.declared.transform is None))
        of_ids = len(into.blocks)
        if found.hashes is not None:
            messages_block(into, found.hashes)
        return Piece(
            number=0,
            rows=len(good),
            records=len(good),
            bytes=sum(len(self._stored.text_of(record)) for record in good),
            file=into.file,
            blocks=tuple(into.blocks[:of_rows]),
            ids=tuple(into.blocks[of_rows:of_ids]),
            messages=tuple(into.blocks[of_ids:]),
            settled={(record.producer_id, record.sequence_id): record.digest for record in good},
        )
