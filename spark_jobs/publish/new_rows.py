"""Find the new rows of a stage, if the records name their own producer or id.

The server decides this from the staged rows and the consumed sets. The commit checks it again, by the compare-and-set
of the producers and the window of business ids. If another run was first, the decision is repeated.

A transform may make several rows of one record. Of each id, all rows of its first record are kept.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from secrets import token_hex

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import PipelineBusy, SettingRefused
from dedup_core.names import ProducerId
from dedup_core.ports import NAME_BYTES_MAX, Advance
from dedup_core.postgres import PostgresLedger
from dedup_core.postgres.connection import CONCURRENT_CHANGE, translated
from dedup_core.spans import SEQUENCE_END
from dedup_core.verdicts import Order
from spark_jobs.batch.job import Job, TransformRefused
from spark_jobs.batch.stage import Stage, still_there
from spark_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from spark_jobs.pipeline.declared import Declared, MessageId, RecordProducer
from spark_jobs.write.sql import literal, quoted, run
from spark_jobs.write.target import undeclared_columns

_GENERATION = 1
#: A column of the target may have a collation in which different texts are equal.
_BY_BYTES = 'COLLATE pg_catalog."C"'
#: The collation of the ledger's names, which sorts their index.
_AS_IN_THE_LEDGER = 'COLLATE pg_catalog."default"'
#: The file and position of a row, also if its lineage is that of the producer that it names.
_OF_ROWS, _OF_RECORD = (PRODUCER_ID, SEQUENCE), ("_of_file", "_in_file")
#: For sorts and joins of whole batches.
WORK_MEMORY = "SET LOCAL work_mem = '256MB'"


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """The rows to publish, and what they prove besides the files."""

    #: The SQL source to select them from.
    source: str
    count: int
    advances: tuple[Advance, ...]
    #: The table with the advances of producers named by records, quoted for SQL.
    offered: str | None = None
    message_ids: tuple[str, ...] = ()


@contextmanager
def new_rows(engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage) -> Iterator["_Sieve"]:
    """Work in temporary tables that are dropped when the block ends."""
    sieve = _Sieve(engine, ledger, job, stage)
    try:
        yield sieve
    finally:
        # The next stage sweeps what is left.
        with suppress(DBAPIError):
            sieve.clear()


class _Sieve:
    def __init__(self, engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage) -> None:
        self._engine = engine
        self._ledger = ledger
        self._job = job
        self._stage = stage
        self._rows = stage.rows
        # Unique, so that another publisher of the same batch cannot change the tables of this commit.
        token = token_hex(8)
        self._named = stage.beside(f"named {token}")
        self._ids = stage.beside(f"ids {token}")
        self._new_ids = stage.beside(f"new ids {token}")
        self._by_producer = stage.beside(f"by producer {token}")
        self._by_message = stage.beside(f"by message {token}")
        self._offered = stage.beside(f"offered {token}")

    def clear(self) -> None:
        tables = (self._named, self._ids, self._new_ids, self._by_producer, self._by_message, self._offered)
        with self._engine.begin() as connection:
            # A killed audit may have left a view of them.
            run(connection, f"DROP TABLE IF EXISTS {', '.join(tables)} CASCADE")

    def sift(self, advances: Sequence[Advance], *, staged: int) -> NewRows:
        """Leave out rows that are already loaded or repeated in the batch; the first record of each id stays."""
        declared = self._job.declared
        if not self._job.names_records and declared.transform is None:
            return NewRows(source=self._rows, count=staged, advances=tuple(advances))
        with translated(pipeline=declared.name, doing="looking for new rows"), still_there(self._stage):
            return self._sift(declared, advances)

    def _sift(self, declared: Declared, advances: Sequence[Advance]) -> NewRows:
        self.clear()
        if declared.producer is not None:
            if declared.transform is not None:
                self._refuse_strange(declared.producer)
            self._gather(declared.producer)
            self._ledger.register_all(declared.name, self._named, generation=_GENERATION)
            self._refuse_files(advances)
        with self._engine.begin() as connection:
            run(connection, WORK_MEMORY)
            consumed = rows = self._rows
            ids = self._ids
            if declared.producer is not None:
                consumed, ids = self._new_of_producers(connection, declared.producer)
                rows = consumed
            messages: tuple[str, ...] = ()
            if declared.message_id is not None:
                rows = self._new_of_messages(connection, consumed, declared.message_id)
                messages = tuple(run(connection, f"SELECT DISTINCT _message FROM {rows}").scalars())
            if declared.producer is not None:
                # Another record with the same business id is consumed, as a duplicate.
                self._offer(connection, declared.producer, ids, consumed=consumed, rows=rows)
                count = run(connection, f"SELECT CAST(coalesce(sum(rows), 0) AS bigint) FROM {self._offered}")
                return NewRows(
                    source=rows,
                    count=count.scalar_one(),
                    advances=tuple(replace(each, rows=0) for each in advances),
                    offered=self._offered,
                    message_ids=messages,
                )
            rows_of: dict[ProducerId | None, int] = {row[0]: row[1] for row in run(connection, _counts(rows))}
        counted = tuple(replace(each, rows=rows_of.get(each.producer_id, 0)) for each in advances)
        return NewRows(source=rows, count=sum(rows_of.values()), advances=counted, message_ids=messages)

    def _refuse_strange(self, producer: RecordProducer) -> None:
        """Refuse invalid names and ids made by a transform; those of files were checked when read."""
        name, sequence = f"{literal(producer.prefix)} || {_name_of(producer)}", _sequence_of(producer)
        asked = (
            f"SELECT {name}, {sequence} FROM {self._rows} AS staged"
            f" WHERE (octet_length({name}) <= {NAME_BYTES_MAX} AND {sequence} >= 0 AND {sequence} < {SEQUENCE_END})"
            " IS NOT TRUE LIMIT 1"
        )
        with self._engine.begin() as connection:
            found = run(connection, asked).first()
        if found is not None:
            raise TransformRefused(
                self._job.declared.name,
                f"a row has producer {_shown(found[0])} and {producer.sequence} {_shown(found[1])}, but expected is a"
                f" name of at most {NAME_BYTES_MAX} bytes and a sequence id from 0 to {SEQUENCE_END - 1}",
            )

    def _gather(self, producer: RecordProducer) -> None:
        """Collect per producer: the first and last id, the number of records, and the number of different ids.

        Sixty-four ids share a word of bits, so that different ids are counted without sorting the batch.
        """
        sequence = _sequence_of(producer)
        words = (
            f"SELECT {_name_of(producer)} AS called, min({sequence}) AS first, max({sequence}) AS last,"
            " count(*) AS rows,"
            f" bit_count(CAST(bit_or(CAST(1 AS bigint) << CAST({sequence} & 63 AS integer)) AS bit(64))) AS ids"
            f" FROM {self._rows} AS staged GROUP BY 1, {sequence} >> 6"
        )
        with self._engine.begin() as connection:
            run(connection, WORK_MEMORY)
            run(
                connection,
                f"CREATE UNLOGGED TABLE {self._named} AS SELECT called,"
                f" ({literal(producer.prefix)} || called) {_AS_IN_THE_LEDGER} AS name,"
                " min(first) AS first, max(last) AS last, CAST(sum(rows) AS bigint) AS rows,"
                f" CAST(sum(ids) AS bigint) AS ids FROM ({words}) AS words GROUP BY called; ANALYZE {self._named}",
            )

    def _refuse_files(self, advances: Sequence[Advance]) -> None:
        """Refuse a record producer with the name of a file: each would count as consumed by the other."""
        read = ", ".join(str(each.producer_id) for each in advances) or "NULL"
        with self._engine.begin() as connection:
            asked = (
                f"SELECT named.name FROM {self._named} AS named JOIN onceload.producer ON producer.name = named.name"
                f" AND producer.generation = {_GENERATION} JOIN onceload.pipeline"
                " ON pipeline.pipeline_id = producer.pipeline_id"
                f" AND pipeline.name = {literal(self._job.declared.name)}"
                f" WHERE producer.fingerprint IS NOT NULL OR producer.producer_id IN ({read}) ORDER BY 1 LIMIT 1"
            )
            taken = run(connection, asked).scalar_one_or_none()
        if taken is not None:
            found = f"{taken}, which is also the name of a file"
            raise SettingRefused("producer", found, "other names for files (rename it)")

    def _new_of_producers(self, connection: Connection, producer: RecordProducer) -> tuple[str, str]:
        """The new rows and their ids; if all rows are new and unique, as usual, they are not copied."""
        sequence = _sequence_of(producer)
        run(
            connection,
            f"CREATE UNLOGGED TABLE {self._ids} AS SELECT producer.producer_id, producer.consumed, named.called,"
            f" named.first, named.last, named.rows, named.ids FROM {self._named} AS named"
            f" JOIN onceload.producer ON producer.name = named.name AND producer.generation = {_GENERATION}"
            " JOIN onceload.pipeline ON pipeline.pipeline_id = producer.pipeline_id"
            f" AND pipeline.name = {literal(self._job.declared.name)}; ANALYZE {self._ids}",
        )
        forgotten = f"SELECT (SELECT count(*) FROM {self._named}) - (SELECT count(*) FROM {self._ids})"
        if run(connection, forgotten).scalar_one():
            # An idle producer may be deleted right after it was registered; then nothing of it may count as seen.
            raise PipelineBusy(self._job.declared.name, CONCURRENT_CHANGE)
        match producer.order:
            case Order.ANY:
                is_new = f"NOT ends.consumed @> {sequence}"
                all_new = "NOT consumed && int8range(first, last + 1)"
            case Order.ORDERED:
                # With ordered ids, nothing at or below the last loaded one is new, seen or not.
                is_new = f"coalesce({sequence} >= upper(ends.consumed), true)"
                all_new = "coalesce(first >= upper(consumed), true)"
        written = [column.name for column in self._job.written]
        added = undeclared_columns(connection, self._rows, known=written)
        names = [quoted(name) for name in (*written, *(column.name for column in added))]
        columns = ", ".join(f"staged.{name}" for name in names)
        of_record = ", ".join(f"staged.{own} AS {kept}" for own, kept in zip(_OF_ROWS, _OF_RECORD, strict=True))
        renamed = f"{columns}, {of_record}, ends.producer_id AS {PRODUCER_ID}, {sequence} AS {SEQUENCE}"
        joined = f"FROM {self._rows} AS staged JOIN {self._ids} AS ends ON ends.called = {_name_of(producer)}"
        if run(connection, f"SELECT bool_and(rows = ids AND {all_new}) FROM {self._ids}").scalar_one():
            return f"(SELECT {renamed} {joined}) AS records", self._ids
        place = _place_of(f"ends.producer_id, {sequence}", of_record=[f"staged.{name}" for name in _OF_ROWS])
        run(
            connection,
            f"CREATE UNLOGGED TABLE {self._by_producer} AS SELECT {renamed}, {place} AS _position"
            f" {joined} WHERE {is_new}",
        )
        kept = ", ".join((*names, *_OF_RECORD, PRODUCER_ID, SEQUENCE))
        new = f"(SELECT {kept} FROM {self._by_producer} WHERE _position = 1) AS records"
        # Only a transform makes several rows of one id.
        ids = "count(*)" if self._job.declared.transform is None else f"count(DISTINCT {SEQUENCE})"
        run(
            connection,
            f"CREATE UNLOGGED TABLE {self._new_ids} AS SELECT ends.producer_id, ends.consumed, new.first, new.last,"
            f" new.rows, new.ids FROM (SELECT {PRODUCER_ID} AS producer_id, min({SEQUENCE}) AS first,"
            f" max({SEQUENCE}) AS last, count(*) AS rows, {ids} AS ids FROM {new} GROUP BY 1) AS new"
            f" JOIN {self._ids} AS ends USING (producer_id)",
        )
        return new, self._new_ids

    def _offer(self, connection: Connection, producer: RecordProducer, ids: str, *, consumed: str, rows: str) -> None:
        """Collect the advance of each producer; usually its ids are contiguous, and the ends are enough."""
        islands = ""
        match producer.order:
            case Order.ANY:
                islands = (
                    f" LEFT JOIN (SELECT {PRODUCER_ID} AS producer_id,"
                    f" range_agg(int8range({SEQUENCE}, {SEQUENCE} + 1)) AS spans"
                    f" FROM {consumed} JOIN {ids} AS ends ON ends.producer_id = {PRODUCER_ID}"
                    f" WHERE ends.last - ends.first + 1 <> ends.ids GROUP BY {PRODUCER_ID}) AS islands"
                    " USING (producer_id)"
                )
                spans = "coalesce(islands.spans, int8multirange(int8range(first, last + 1)))"
            case Order.ORDERED:
                # Ids that an ordered producer skipped are consumed too, so that they are refused later.
                spans = "int8multirange(int8range(coalesce(upper(ends.consumed), 0), last + 1))"
        counted = f"SELECT producer_id, rows FROM {ids}" if rows == consumed else _counts(rows)
        run(
            connection,
            f"CREATE UNLOGGED TABLE {self._offered} AS SELECT producer_id, {spans} AS spans,"
            f" coalesce(counted.rows, 0) AS rows FROM {ids} AS ends{islands}"
            # In producer order, so that an advance of many reads them page by page.
            f" LEFT JOIN ({counted}) AS counted USING (producer_id) ORDER BY producer_id; ANALYZE {self._offered}",
        )

    def _new_of_messages(self, connection: Connection, source: str, message_id: MessageId) -> str:
        parts = ", ".join(f"CAST({quoted(name)} AS text)" for name in message_id.columns)
        place = _place_of("_message", of_record=_OF_ROWS if self._job.declared.producer is None else _OF_RECORD)
        run(
            connection,
            f"CREATE UNLOGGED TABLE {self._by_message} AS SELECT *, {place} AS _position FROM ("
            f" SELECT *, CAST(json_build_array({parts}) AS text) {_BY_BYTES} AS _message FROM {source}) AS named"
            " WHERE NOT EXISTS (SELECT FROM onceload.message JOIN onceload.pipeline USING (pipeline_id)"
            f" WHERE pipeline.name = {literal(self._job.declared.name)}"
            " AND message.message = sha256(convert_to(_message, 'UTF8'))"
            " AND message.day >= CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) - pipeline.message_keep_days)",
        )
        return f"(SELECT * FROM {self._by_message} WHERE _position = 1) AS records"


def _place_of(ids: str, *, of_record: Sequence[str]) -> str:
    """Which record of its id a row belongs to, from 1."""
    return f"rank() OVER (PARTITION BY {ids} ORDER BY {', '.join(of_record)})"


def _shown(value: object) -> str:
    return "null" if value is None else f"{value!s:.80}"


def _name_of(producer: RecordProducer) -> str:
    return f"CAST(staged.{quoted(producer.name)} AS text) {_BY_BYTES}"


def _sequence_of(producer: RecordProducer) -> str:
    return f"CAST(staged.{quoted(producer.sequence)} AS bigint)"


def _counts(source: str) -> str:
    """Count rows by producer, which may be null after a transform."""
    return f"SELECT {PRODUCER_ID} AS producer_id, count(*) AS rows FROM {source} GROUP BY {PRODUCER_ID}"
