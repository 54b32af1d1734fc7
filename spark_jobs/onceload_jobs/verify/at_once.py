"""Compare the rows of all files at once: a merge, or records that name themselves, may have their rows of any file.

Workers parse the files, and write the rows as COPY takes them. The command copies them into one temporary table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import TextClause

from onceload_core.errors import CallAgain
from onceload_core.names import ProducerId
from onceload_core.postgres.audit import AuditView
from onceload_core.postgres.connection import array
from onceload_jobs.batch.piece import BlockLost, Piece
from onceload_jobs.batch.stage_folder import BlockWriter, StageFolder, content_of, open_folder, written
from onceload_jobs.executor.executor import Executor
from onceload_jobs.files.addresses import is_of_s3, known_access, use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared, RecordProducer
from onceload_jobs.verify.bundles import Deadly, over_bundles
from onceload_jobs.verify.differing_rows import SHOWN_CHARACTERS, DifferingRows, RowsReread, asked, row_of
from onceload_jobs.verify.findings import Findings, Kind
from onceload_jobs.verify.questions import NamedQuestions, Questions
from onceload_jobs.verify.ranges import Range, shared
from onceload_jobs.verify.reread import reread
from onceload_jobs.write.binary_copy import encoded
from onceload_jobs.write.sql import table_name
from onceload_jobs.write.target import columns_in


@dataclass(frozen=True, kw_only=True)
class Rereading:
    """Everything that a worker needs; it is pickled and sent to it."""

    declared: Declared
    columns: tuple[Column, ...]
    folder: StageFolder
    #: Credentials for the object store of the files.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(eq=False)
class RowsLost(CallAgain):
    """Rows that were read again are gone from the folder of this call."""

    folder: str

    def __str__(self) -> str:
        return (
            f"rows that were read again are gone from {self.folder}, or were changed there. Their values were not "
            "compared, and nothing was changed. Verify again."
        )


def read_again(rereading: Rereading, ranges: Sequence[Range]) -> Piece:
    """Read the records of some ranges, and write their rows to the folder."""
    use_access(rereading.access)
    return written(rereading.folder, partial(_write, rereading, ranges))


def _write(rereading: Rereading, ranges: Sequence[Range], writer: BlockWriter) -> Piece:
    for each in ranges:
        for rows, dropped in reread(rereading.declared, rereading.columns, each.records):
            as_copied = encoded(rows, rereading.columns + dropped, names=rows.column_names)
            writer.write(as_copied, rows=rows.num_rows, added=dropped)
    count = sum(block.rows for block in writer.blocks)
    return Piece(number=0, rows=count, file=writer.file, blocks=tuple(writer.blocks))


@dataclass(kw_only=True)
class AtOnce:
    """Compares the rows of all files that can be read."""

    declared: Declared
    view: AuditView
    findings: Findings
    #: All rows that a load wrote name a record.
    is_of_records: bool
    #: The files whose values are not compared.
    left_out: set[ProducerId]
    _found: DifferingRows = field(default_factory=DifferingRows)

    def compare(self, executor: Executor, ranges: Iterable[Range]) -> DifferingRows:
        rows = RowsReread(self.view.connection, columns_in(self.view.connection, self.declared))
        self._read(executor, ranges, rows)
        rows.analyze()
        if self.declared.producer is None:
            self._compare_by_key(rows)
        else:
            self._compare_named(self.declared.producer, rows)
        return self._found

    def _read(self, executor: Executor, ranges: Iterable[Range], rows: RowsReread) -> None:
        source = self.declared.source
        access = known_access() if is_of_s3(source.path) else {}
        with open_folder() as folder:
            how = Rereading(declared=self.declared, columns=rows.columns, folder=folder, access=access)
            bundles = shared(source, ranges, bytes_max=source.chunk_bytes)
            read = over_bundles(executor, partial(read_again, how), bundles, pipeline=self.declared.name)
            for bundle, result in read:
                if isinstance(result, Deadly):
                    self._found.deadly[bundle[0].records.name] = result.reason
                    self.left_out.add(bundle[0].records.producer_id)
                else:
                    self._copy(rows, folder, result)

    def _copy(self, rows: RowsReread, folder: StageFolder, piece: Piece) -> None:
        self._found.compared += piece.rows
        try:
            for block in piece.blocks:
                rows.copy_encoded(content_of(folder, piece, block), block.added)
        except BlockLost as error:
            raise RowsLost(folder.path) from error

    def _compare_by_key(self, rows: RowsReread) -> None:
        questions = Questions(self.declared, rows.columns, rows.dropped, is_of_records=self.is_of_records)
        self._ask(questions.changed, Kind.VALUE_CHANGED)
        # A missing row may be a duplicate by business id, or overwritten by a file that has changed.
        if self.declared.message_id is None and not self.left_out:
            self._ask(questions.missing, Kind.ROW_MISSING)
        if self.declared.target.lineage or not self.left_out:
            self._ask(questions.surplus, Kind.ROW_FROM_NOWHERE)
        else:
            self._note(
                "rows without a record are not searched for: without lineage, any row may be of a file whose "
                "values were not compared"
            )

    def _ask(self, question: TextClause, kind: Kind) -> None:
        binds = {
            "pipeline_id": self.view.pipeline_id,
            "left_out": array(self.left_out),
            "differing": array(()),
            "at_most": asked(self.findings, kind),
        }
        self._found.ask(self.view.connection, question, kind, binds)

    def _compare_named(self, producer: RecordProducer, rows: RowsReread) -> None:
        questions = NamedQuestions(self.declared.target, producer, rows.columns, rows.dropped)
        kinds = {True: Kind.VALUE_CHANGED, False: Kind.ROW_FROM_NOWHERE}
        of_pipeline = {"pipeline_id": self.view.pipeline_id}
        at_most = max(asked(self.findings, kind) for kind in kinds.values())
        binds = {**of_pipeline, "left_out": array(()), "shown": SHOWN_CHARACTERS, "at_most": at_most}
        wrong = self.view.connection.execute(questions.wrong, binds).all()
        counted = {row.is_known: row.counted for row in wrong}
        self._found.compared = self.view.connection.execute(questions.count, of_pipeline).scalar_one()
        if self.left_out and wrong:
            self._found.compared -= sum(counted.values())
            self._note(
                f"the values of {sum(counted.values()):,} rows were not compared: they equal no record of the files "
                f"that were compared, and {len(self.left_out):,} other files may have brought them"
            )
            return
        for is_known, count in counted.items():
            some = [row_of(row) for row in wrong if row.is_known is is_known]
            named = {(row.producer_id, row.sequence_id) for row in some}
            self._found.add(kinds[is_known], some, count=count + len(some) - len(named))

    def _note(self, reason: str) -> None:
        self.findings.notes.append(Note(name=table_name(self.declared.target), reason=reason))
