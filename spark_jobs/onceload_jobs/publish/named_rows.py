"""Rows in files, with the ids of the producers that the records name, and what these producers consume."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection

from onceload_core.names import ProducerId
from onceload_core.pipeline import Guarantee
from onceload_core.postgres.connection import statements
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.named_file import NeedsTable, Runs, read_named_file
from onceload_jobs.batch.stage import Stage
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.publish.source import WORK_MEMORY
from onceload_jobs.write.binary_copy import copy_in, encoded
from onceload_jobs.write.sql import filled, run
from onceload_jobs.write.writer import Writer

SQL = statements("named_rows.sql", package=__package__)
_RUNS = tuple(Column(name=name, type=ColumnType(kind=Kind.BIGINT)) for name in ("producer_id", "first", "end"))
#: It pays off only if files are copied while other deliveries are staged.
DELIVERIES_MIN = 2
#: For other types, the text of a value on the server may differ from that in Arrow.
_NAME_KINDS = frozenset({Kind.TEXT, Kind.VARCHAR})
#: How many runs are kept before those that follow each other are joined, which also finds repeated ids.
_RUNS_MAX = 500_000
#: Joining needs several copies of them.
_RUNS_IN_MEMORY_MAX = 8_000_000


def may_name_in_files(job: Job, *, deliveries: int) -> bool:
    """Whether sessions may give the rows of a batch the ids of the producers that their records name."""
    declared = job.declared
    if deliveries < DELIVERIES_MIN:
        return False
    if declared.producer is None or declared.producer.order is Order.ORDERED or declared.transform is not None:
        return False
    # With it, the commit does not refuse ids that another load consumed after the sessions looked up the producers.
    if declared.pipeline.guarantee is Guarantee.AT_LEAST_ONCE:
        return False
    (named,) = (column.type for column in job.written if column.name == declared.producer.name)
    return named.kind in _NAME_KINDS and not named.is_array


class NamedRows:
    """The rows of one batch, and what they consume."""

    def __init__(self, job: Job, stage: Stage, producer: RecordProducer) -> None:
        self._stage, self._sequence = stage, producer.sequence
        self._target = Writer.into_target(job.declared.target, job.written)
        self._consumed: list[Runs] = []
        self._runs_max = _RUNS_MAX

    def encoded(self, file: str) -> Iterator[bytes]:
        """The rows of a file in the format of COPY; each file once."""
        content = read_named_file(self._stage.spool or "", file)
        self._consumed.append(content.runs)
        if sum(map(len, self._consumed)) > self._runs_max:
            self._consumed = [Runs.of_all(self._consumed)]
            self._runs_max = max(_RUNS_MAX, 2 * len(self._consumed[0]))
            if self._runs_max > _RUNS_IN_MEMORY_MAX:
                raise NeedsTable
        rows, sequence = content.rows, content.rows.column(self._sequence).cast(pa.int64())
        for name, values in ((PRODUCER_ID, content.ids), (SEQUENCE, sequence)):
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
        return encoded(rows, self._target.columns, names=self._target.names)

    def offer(self, connection: Connection, *, rows: int, files: Sequence[ProducerId]) -> str:
        """Write the advances of all producers to a table, and return its name, quoted for SQL."""
        if not self._consumed:
            raise NeedsTable
        runs = Runs.of_all(self._consumed)
        # Each row consumes one id of the producer that it names. That producer must not be one of the batch's files.
        if np.sum(runs.ends - runs.firsts) != rows or np.isin(runs.producers, np.array(files, np.int64)).any():
            raise NeedsTable
        are_single = not np.any(runs.producers[1:] == runs.producers[:-1])
        columns = pa.table([runs.producers, runs.firsts, runs.ends], names=[column.name for column in _RUNS])
        table, offered = self._stage.beside("runs"), self._stage.beside("offered early")
        run(connection, WORK_MEMORY)
        connection.execute(filled(SQL["create_runs"], runs=table))
        if copy_in(connection, columns, table=table, names=columns.column_names, columns=_RUNS) != len(runs):
            raise NeedsTable
        connection.execute(filled(SQL["offer_single" if are_single else "offer"], runs=table, offered=offered))
        connection.execute(filled(SQL["analyze"], offered=offered))
        return offered
