"""Find the new rows of a stage, if the records name their own producer or id.

The server decides this from the staged rows and the consumed sets. The commit checks it again, by the compare-and-set
of the producers and the window of business ids. If another run was first, the decision is repeated.

A transform may make several rows of one record. All rows of the first record of each id are kept.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from secrets import token_hex

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.ports import Advance
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.stage import Stage, still_there
from onceload_jobs.publish.by_message import ByMessage
from onceload_jobs.publish.by_producer import ByProducer
from onceload_jobs.publish.source import WORK_MEMORY, RowSource, check_rows
from onceload_jobs.write.sql import Sql, run


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """The rows to publish, and what they prove besides the files."""

    #: The SQL source to select them from.
    source: Sql
    count: int
    advances: tuple[Advance, ...]
    #: The tables with the advances of producers that records name, and with business ids, quoted for SQL.
    offered: str | None = None
    offered_messages: str | None = None


@contextmanager
def open_duplicate_filter(
    engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage
) -> Iterator["_DuplicateFilter"]:
    """Work in temporary tables that are dropped when the block ends."""
    duplicate_filter = _DuplicateFilter(engine, ledger, job, stage)
    try:
        yield duplicate_filter
    finally:
        # The next stage sweeps what is left.
        with suppress(DBAPIError):
            duplicate_filter.clear()


class _DuplicateFilter:
    def __init__(self, engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage) -> None:
        self._engine = engine
        self._ledger = ledger
        self._job = job
        self._stage = stage
        # Unique, so that another publisher of the same batch cannot change the tables of this commit.
        token = token_hex(8)
        producer = job.declared.producer
        self._by_producer = None if producer is None else ByProducer(job, stage, producer, token=token)
        self._by_message = ByMessage(job.declared, stage, token=token)

    def clear(self) -> None:
        tables = (*self._by_message.tables, *(self._by_producer.tables if self._by_producer else ()))
        with self._engine.begin() as connection:
            # A killed audit may have left a view of them.
            run(connection, f"DROP TABLE IF EXISTS {', '.join(tables)} CASCADE")

    def select_new(self, advances: Sequence[Advance], *, staged: int) -> NewRows:
        """Leave out rows that are already loaded or repeated in the batch; the first record of each id stays.

        All rows that were staged must be there: one that is missing would count as a duplicate.
        """
        declared = self._job.declared
        if not self._job.records_have_own_ids:
            return NewRows(source=self._stage.rows, count=staged, advances=tuple(advances))
        with translated(pipeline=declared.name, doing="looking for new rows"), still_there(self._stage):
            self.clear()
            with self._engine.begin() as connection:
                check_rows(connection, self._stage, self._stage.rows, rows=staged)
            if self._by_producer is None:
                return self._new_of_files(advances)
            self._by_producer.register(self._engine, self._ledger, advances)
            return self._new_of_producers(self._by_producer, advances)

    def _new_of_files(self, advances: Sequence[Advance]) -> NewRows:
        """The rows are counted for the files that they came from."""
        with self._engine.begin() as connection:
            run(connection, WORK_MEMORY)
            new = self._by_message.select_new(connection, RowSource(rows=self._stage.rows))
            rows_of = Counter({row[0]: row[1] for row in connection.execute(new.counts)})
        return NewRows(
            source=new.rows,
            count=rows_of.total(),
            advances=tuple(replace(each, rows=rows_of[each.producer_id]) for each in advances),
            offered_messages=self._by_message.offered,
        )

    def _new_of_producers(self, by_producer: ByProducer, advances: Sequence[Advance]) -> NewRows:
        """The rows are counted for the producers that they name."""
        with self._engine.begin() as connection:
            run(connection, WORK_MEMORY)
            to_consume = by_producer.select_new(connection)
            # Another record with the same business id is consumed, as a duplicate.
            new = self._by_message.select_new(connection, to_consume.source)
            count = by_producer.offer(connection, to_consume, new)
        return NewRows(
            source=new.rows,
            count=count,
            advances=tuple(replace(each, rows=0) for each in advances),
            offered=by_producer.offered,
            offered_messages=self._by_message.offered,
        )
