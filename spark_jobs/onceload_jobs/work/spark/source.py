"""The records of files as a data source of Spark: read as a load reads them, and not loaded.

There is one partition for each bundle of chunks. A task proves that each file is still the planned one. It leaves out
what a load leaves out, and logs it. It fails where a load would plan or read a file again.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from logging import WARNING
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from onceload_core.errors import SettingRefused
from onceload_core.events import event, show_events
from onceload_core.names import ProducerId
from onceload_core.ports import QuarantinedRecord
from onceload_jobs.batch.folders import NO_FOLDER
from onceload_jobs.files.addresses import is_of_s3, known_access
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.casts import one_array
from onceload_jobs.pipeline.columns import PRODUCER_ID, Column
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.bundles import Bundle, bundles_of
from onceload_jobs.plan.to_read import FileToRead
from onceload_jobs.work.failures import QueryOutdated
from onceload_jobs.work.read_chunk import Part, Reading, RowForm, blocks_of
from onceload_jobs.work.spark.transform import BATCH_ROWS, for_spark, spark_schema
from onceload_jobs.write.writer import Writer

#: The column with the name of the file; an id is known only once a load has registered the file.
PRODUCER = "_producer"


def source_schema(columns: Sequence[Column]) -> StructType:
    """The declared columns, those of the lineage, and the name of the file."""
    if any(column.name == PRODUCER for column in columns):
        expected = "another name: the data source has the name of the file in this column"
        raise SettingRefused(f"column {PRODUCER}", "a declared column", expected)
    return from_arrow_schema(_arrow_schema(columns), prefer_timestamp_ntz=True)


def _arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return spark_schema(columns).append(pa.field(PRODUCER, pa.string()))


class SourceReader(DataSourceReader):
    """Reads what was planned. It is pickled and sent to each task."""

    def __init__(self, reading: Reading, bundles: Sequence[Bundle]) -> None:
        self._reading, self._bundles = reading, bundles

    @classmethod
    def of(cls, declared: Declared, files: Sequence[FileToRead], known: Mapping[str, ProducerId]) -> "SourceReader":
        """A reader of these files; a file without a known id has a number below zero on the way."""
        ids = {
            (file.listed.name, file.generation): known.get(file.listed.name, ProducerId(-1 - number))
            for number, file in enumerate(files)
        }
        reading = Reading(
            declared=declared,
            columns=declared.columns,
            form=RowForm(writer=Writer.into_target(declared.target, declared.columns)),
            folder=NO_FOLDER,
            access=known_access() if is_of_s3(declared.source.path) else {},
        )
        return cls(reading, tuple(bundles_of(declared, files, ids)))

    def __getstate__(self) -> dict[str, Any]:
        # A task gets its own chunks as its partition, and needs no others.
        return {"_reading": self._reading}

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(bundle) for bundle in self._bundles or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        show_events(os.environ)
        chunks: Bundle = partition.value
        names = {chunk.producer_id: chunk.name for chunk in chunks}
        notes: list[Note] = []
        for rows, new, _ in blocks_of(self._reading, Part(number=0, chunks=chunks, is_last_try=False), notes):
            _log_bad(self._reading.declared, new.quarantined, names)
            yield from self._batches(rows, names)
        for note in notes:
            if note.is_unreadable:
                # Before its last try, a worker raises all other errors of this kind itself.
                raise QueryOutdated(self._reading.declared.name, note.name)
            log_left_out(self._reading.declared, note)

    def _batches(self, rows: pa.Table, names: Mapping[ProducerId, str]) -> Iterator[pa.RecordBatch]:
        columns = self._reading.columns
        schema = _arrow_schema(columns)
        ids = one_array(rows.column(PRODUCER_ID))
        of_file = ids.dictionary_encode()
        files = pa.array([names[producer_id] for producer_id in of_file.dictionary.to_pylist()], pa.string())
        made = rows.append_column(PRODUCER, files.take(of_file.indices))
        known = pc.if_else(pc.less(ids, 0), pa.scalar(None, pa.int64()), ids)
        made = made.set_column(made.schema.get_field_index(PRODUCER_ID), PRODUCER_ID, known)
        # Columns for undeclared fields, which a load may add to its table, are left out.
        yield from for_spark(made.select(schema.names), columns).cast(schema).to_batches(max_chunksize=BATCH_ROWS)


def log_left_out(declared: Declared, note: Note) -> None:
    """Log a file that a load would leave out, or not read to its end."""
    if note.name:
        level = {"level": WARNING} if note.needs_a_person or note.is_unreadable else {}
        event("file_left_out", **level, pipeline=declared.name, file=note.name, reason=note.reason)


def _log_bad(declared: Declared, bad: Sequence[QuarantinedRecord], names: Mapping[ProducerId, str]) -> None:
    for producer_id, count in Counter(each.producer_id for each in bad).items():
        event("bad_records_left_out", level=WARNING, pipeline=declared.name, file=names[producer_id], records=count)
