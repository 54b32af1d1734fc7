"""Which staged rows are new, where the records themselves say who they are.

Decided on the server, on the staged rows and on what took effect before; decided again inside the commit, by the
compare-and-set of the producers and the window of business ids. If another run came first, all of it is done anew.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine

from dedup_core.names import ProducerId
from dedup_core.ports import Advance
from dedup_core.postgres import PostgresLedger
from dedup_core.spans import SpanSet
from dedup_core.verdicts import Order
from spark_jobs.copy import literal, quoted, run
from spark_jobs.declared import MessageId, RecordProducer
from spark_jobs.loading import Job
from spark_jobs.sources.records import PRODUCER_ID, SEQUENCE
from spark_jobs.stage import Stage
from spark_jobs.target import undeclared_columns

_GENERATION = 1


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """The rows to publish, and what they prove besides what was read of the files."""

    #: The table that holds them, as SQL writes it.
    table: str
    count: int
    advances: tuple[Advance, ...]
    message_ids: tuple[str, ...] = ()


@contextmanager
def new_rows(engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage) -> Iterator["_Sieve"]:
    """Work in tables of their own, which go when the block ends."""
    sieve = _Sieve(engine, ledger, job, stage)
    try:
        yield sieve
    finally:
        sieve.clear()


class _Sieve:
    def __init__(self, engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage) -> None:
        self._engine = engine
        self._ledger = ledger
        self._job = job
        self._by_producer = stage.rows.removesuffix(' rows"') + ' of producers"'
        self._by_message = stage.rows.removesuffix(' rows"') + ' of messages"'
        self._rows = stage.rows

    def clear(self) -> None:
        with self._engine.begin() as connection:
            run(connection, f"DROP TABLE IF EXISTS {self._by_producer}, {self._by_message}")

    def sift(self, advances: Sequence[Advance], *, staged: int) -> NewRows:
        """Leave out what took effect before, or stands twice in the batch; the first of each stays."""
        declared = self._job.declared
        if not self._job.names_records and declared.transform is None:
            return NewRows(table=self._rows, count=staged, advances=tuple(advances))
        self.clear()
        table = self._rows
        records: tuple[Advance, ...] = ()
        messages: tuple[str, ...] = ()
        if declared.producer is not None:
            self._register(declared.producer)
            table = self._by_producer
        with self._engine.begin() as connection:
            run(connection, "SET LOCAL work_mem = '256MB'")
            if declared.producer is not None:
                run(connection, self._new_of_producers(connection, declared.producer))
                records = _advances(connection, table, declared.producer.order)
            if declared.message_id is not None:
                run(connection, self._new_of_messages(table, declared.message_id))
                table = self._by_message
                messages = tuple(run(connection, f"SELECT _message FROM {table}").scalars())
            rows = _rows_by_producer(connection, table) if self._job.has_lineage else {}
        counted = tuple(replace(each, rows=rows.get(each.producer_id, 0)) for each in (*advances, *records))
        count = sum(rows.values()) if self._job.has_lineage else staged
        return NewRows(table=table, count=count, advances=counted, message_ids=messages)

    def _register(self, producer: RecordProducer) -> None:
        with self._engine.begin() as connection:
            names = run(connection, f"SELECT DISTINCT {_name_of(producer)} FROM {self._rows} AS staged").scalars()
            named = [(name, _GENERATION) for name in names]
        self._ledger.register(self._job.declared.name, sorted(named))

    def _new_of_producers(self, connection: Connection, producer: RecordProducer) -> str:
        written = [column.name for column in self._job.written]
        added = undeclared_columns(connection, self._rows, known=written)
        sequence = f"staged.{quoted(producer.sequence)}"
        match producer.order:
            case Order.ANY:
                is_new = f"NOT producer.consumed @> CAST({sequence} AS bigint)"
            case Order.ORDERED:
                # At or below the last one that took effect nothing is new, seen or not.
                is_new = f"coalesce({sequence} >= upper(producer.consumed), true)"
        columns = ", ".join(f"staged.{quoted(name)}" for name in (*written, *(column.name for column in added)))
        return (
            f"CREATE UNLOGGED TABLE {self._by_producer} AS"
            f" SELECT DISTINCT ON (producer.producer_id, {sequence}) {columns},"
            f" producer.producer_id AS {PRODUCER_ID}, CAST({sequence} AS bigint) AS {SEQUENCE}"
            f" FROM {self._rows} AS staged JOIN onceload.producer ON producer.name = {_name_of(producer)}"
            f" AND producer.generation = {_GENERATION}"
            f" JOIN onceload.pipeline ON pipeline.pipeline_id = producer.pipeline_id"
            f" AND pipeline.name = {literal(self._job.declared.name)}"
            f" WHERE {is_new}"
            f" ORDER BY producer.producer_id, {sequence}, staged.{PRODUCER_ID}, staged.{SEQUENCE}"
        )

    def _new_of_messages(self, table: str, message_id: MessageId) -> str:
        parts = ", ".join(f"CAST({quoted(name)} AS text)" for name in message_id.columns)
        return (
            f"CREATE UNLOGGED TABLE {self._by_message} AS"
            f" SELECT DISTINCT ON (_message) * FROM ("
            f" SELECT *, CAST(json_build_array({parts}) AS text) AS _message FROM {table}) AS named"
            " WHERE NOT EXISTS (SELECT FROM onceload.message JOIN onceload.pipeline USING (pipeline_id)"
            f" WHERE pipeline.name = {literal(self._job.declared.name)}"
            " AND message.message = sha256(convert_to(_message, 'UTF8'))"
            " AND message.day >= CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) - pipeline.message_keep_days)"
            f" ORDER BY _message, {PRODUCER_ID}, {SEQUENCE}"
        )


def name_prefix(producer: RecordProducer) -> str:
    """Producers that records name are told from files by the column that names them."""
    return f"{producer.name}="


def _name_of(producer: RecordProducer) -> str:
    return f"{literal(name_prefix(producer))} || CAST(staged.{quoted(producer.name)} AS text)"


def _rows_by_producer(connection: Connection, table: str) -> dict[ProducerId, int]:
    rows = run(connection, f"SELECT {PRODUCER_ID}, count(*) FROM {table} GROUP BY {PRODUCER_ID}")
    return {ProducerId(producer_id): count for producer_id, count in rows}


def _advances(connection: Connection, table: str, order: Order) -> tuple[Advance, ...]:
    rows = run(connection, _CONSUMED_BY[order].format(table=table))
    return tuple(Advance(producer_id=ProducerId(row[0]), spans=SpanSet.parse(row[1])) for row in rows)


_CONSUMED_BY = {
    # Most producers' new ids follow one another, and then their ends say it all.
    Order.ANY: f"""
        WITH ends AS (
            SELECT {PRODUCER_ID} AS id, min({SEQUENCE}) AS first, max({SEQUENCE}) AS last, count(*) AS ids
              FROM {{table}} GROUP BY {PRODUCER_ID}
        ), islands AS (
            SELECT ends.id, range_agg(int8range(staged.{SEQUENCE}, staged.{SEQUENCE} + 1)) AS spans
              FROM {{table}} AS staged JOIN ends ON ends.id = staged.{PRODUCER_ID}
             WHERE ends.last - ends.first + 1 <> ends.ids GROUP BY ends.id
        )
        SELECT id, CAST(coalesce(islands.spans, int8multirange(int8range(first, last + 1))) AS text)
          FROM ends LEFT JOIN islands USING (id)""",
    # What an ordered producer jumped over is settled too, so that it is refused should it come later.
    Order.ORDERED: f"""
        SELECT id, CAST(int8multirange(int8range(coalesce(upper(consumed), 0), last + 1)) AS text)
          FROM (SELECT {PRODUCER_ID} AS id, max({SEQUENCE}) AS last FROM {{table}} GROUP BY {PRODUCER_ID}) AS ends
          JOIN onceload.producer ON producer_id = id""",
}
