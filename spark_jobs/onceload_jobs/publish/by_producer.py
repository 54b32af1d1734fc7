"""The rows that are new by the producer and the sequence id that their record names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, Engine, TextClause

from onceload_core.errors import PipelineBusy
from onceload_core.ports import Advance
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import CONCURRENT_CHANGE, statements
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.named_file import GENERATION
from onceload_jobs.batch.stage import Stage
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.publish.register_named import Naming, register_named
from onceload_jobs.publish.source import RowSource, position_of
from onceload_jobs.write.sql import Sql, filled, listed, quoted
from onceload_jobs.write.target import undeclared_columns

SQL = statements("by_producer.sql", package=__package__)
#: The file and position of a record, because the lineage of its row becomes that of the producer that it names.
_OF_RECORD = ("_of_file", "_in_file")


@dataclass(frozen=True, kw_only=True)
class NewIds:
    """What a commit consumes of producers: rows, and the table of their ids."""

    source: RowSource
    ids: str


class ByProducer:
    def __init__(self, job: Job, stage: Stage, producer: RecordProducer, *, token: str) -> None:
        self._job = job
        self._order = producer.order
        self._naming = Naming(rows=stage.rows, producer=producer)
        self._named = stage.beside(f"named {token}")
        self._ids = stage.beside(f"ids {token}")
        self._new_ids = stage.beside(f"new ids {token}")
        self._by_producer = stage.beside(f"by producer {token}")
        #: The table of the advances that the commit offers, quoted for SQL.
        self.offered = stage.beside(f"offered {token}")

    @property
    def tables(self) -> tuple[str, ...]:
        return self._named, self._ids, self._new_ids, self._by_producer, self.offered

    def register(self, engine: Engine, ledger: PostgresLedger, advances: Sequence[Advance]) -> None:
        """Register the producers, in transactions of their own."""
        register_named(engine, ledger, self._job, self._naming, advances, named=self._named)

    def select_new(self, connection: Connection) -> NewIds:
        """Leave out rows whose id is consumed or repeated; if there are none, as usual, the rows are not copied."""
        self._look_up(connection)
        names = self._names(connection)
        if self._run(connection, "are_all_new", all_new=_all_new(self._order)).scalar_one():
            rows = self._rows(names, is_new="true")
            return NewIds(source=RowSource(rows=rows, of_record=_OF_RECORD), ids=self._ids)
        return self._copied(connection, names)

    def offer(self, connection: Connection, to_consume: NewIds, published: RowSource) -> int:
        """Collect the advance of each producer, and return how many rows they load."""
        is_all = published is to_consume.source
        self._run(
            connection,
            "offer_any" if self._order is Order.ANY else "offer_ordered",
            rows_to_consume=to_consume.source.rows,
            ids_to_consume=to_consume.ids,
            counts=self._filled("counts", ids_to_consume=to_consume.ids) if is_all else published.counts,
        )
        count: int = self._run(connection, "count_offered").scalar_one()
        return count

    def _look_up(self, connection: Connection) -> None:
        self._run(connection, "look_up", {"pipeline": self._job.declared.name, "generation": GENERATION})
        if self._run(connection, "count_forgotten").scalar_one():
            # An idle producer may be deleted right after it was registered; then nothing of it may count as seen.
            raise PipelineBusy(self._job.declared.name, CONCURRENT_CHANGE)

    def _copied(self, connection: Connection, names: Sequence[str]) -> NewIds:
        self._run(
            connection,
            "copy_new",
            rows=self._rows(names, is_new=_is_new(self._order, self._naming.sequence)),
            names=listed((*names, *_OF_RECORD, PRODUCER_ID, SEQUENCE)),
            position=position_of(f"{PRODUCER_ID}, {SEQUENCE}", of_record=_OF_RECORD),
        )
        # Only a transform makes several rows of one id.
        count_of_ids = "count(*)" if self._job.declared.transform is None else f"count(DISTINCT {SEQUENCE})"
        self._run(connection, "count_new", count_of_ids=count_of_ids)
        return NewIds(source=RowSource(rows=self._by_producer, of_record=_OF_RECORD), ids=self._new_ids)

    def _names(self, connection: Connection) -> list[str]:
        """The columns of the rows, with those for undeclared fields."""
        written = [column.name for column in self._job.written]
        added = undeclared_columns(connection, self._naming.rows, known=written)
        return [*written, *(column.name for column in added)]

    def _rows(self, names: Sequence[str], *, is_new: str) -> TextClause:
        return self._filled("rows", staged_names=", ".join(f"staged.{quoted(name)}" for name in names), is_new=is_new)

    def _run(
        self, connection: Connection, statement: str, binds: Mapping[str, object] | None = None, **texts: Sql
    ) -> CursorResult[*tuple[Any, ...]]:
        return connection.execute(self._filled(statement, **texts), binds)

    def _filled(self, statement: str, **texts: Sql) -> TextClause:
        tables = {
            "staged": self._naming.rows,
            "named": self._named,
            "ids": self._ids,
            "new_ids": self._new_ids,
            "by_producer": self._by_producer,
            "offered": self.offered,
        }
        called, sequence = self._naming.called, self._naming.sequence
        return filled(SQL[statement], called=called, sequence=sequence, **tables, **texts)


def _is_new(order: Order, sequence: str) -> str:
    """Whether an id is not consumed, as SQL."""
    match order:
        case Order.ANY:
            return f"NOT ends.consumed @> {sequence}"
        case Order.ORDERED:
            # With ordered ids, nothing at or below the last loaded one is new, seen or not.
            return f"coalesce({sequence} >= upper(ends.consumed), true)"


def _all_new(order: Order) -> str:
    """Whether no id from the first to the last is consumed, as SQL."""
    match order:
        case Order.ANY:
            return "NOT consumed && int8range(first, last + 1)"
        case Order.ORDERED:
            return "coalesce(first >= upper(consumed), true)"
