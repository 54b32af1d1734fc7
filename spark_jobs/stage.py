"""Where the rows of a batch wait until all of them are there: two tables that live as long as the batch.

One holds rows, the other which pieces they came from. A piece and its rows are written in one transaction, while the
delivery is in the hand of whoever reads it. Whoever takes a delivery next deletes what an earlier try has staged of
it, so that all pieces of a delivery are of one try. Both tables are unlogged, so a crash of the server empties both,
and whoever publishes finds that the piece is gone which is there from the start.

A stage goes with the process that opened it, unless a claim names it: then the batch keeps it, for whoever publishes
it, and with it what that has to know. One that an audit refused is kept for a while as well, to be looked at.

Rows that a transform made are no piece that every try makes alike: each try has a table of its own, and Spark decides
whose counts. Those tables are joined to the first by inheritance.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from secrets import token_hex
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import CallAgain, DatabaseLost
from dedup_core.names import ProducerId
from dedup_core.ports import Advance, Claim, QuarantinedRecord
from dedup_core.postgres.commit import hold
from dedup_core.postgres.connection import array, first_line, sqlstate
from dedup_core.replay import Condition
from dedup_core.spans import SpanSet
from spark_jobs.columns import Column
from spark_jobs.copy import is_cast, quoted, run, travels_as
from spark_jobs.declared import Target
from spark_jobs.plan import Note
from spark_jobs.prepare import Prepared
from spark_jobs.sources.records import LINEAGE, PRODUCER_ID, SEQUENCE
from spark_jobs.target import table_name
from spark_jobs.write import Writer

SCHEMA = "onceload_stage"
_HOLD = text("SELECT pg_advisory_lock(hashtextextended('onceload.stage ' || :name, 0))")
_TRY_HOLD = text("SELECT pg_try_advisory_lock(hashtextextended('onceload.stage ' || :name, 0))")
_LET_GO = text("SELECT pg_advisory_unlock(hashtextextended('onceload.stage ' || :name, 0))")
_UNDEFINED_TABLE = "42P01"
#: The delivery of the piece that is there from the start; those that a transform made come behind it.
_OPENED = -(2**31)
_COLUMNS = text(
    "SELECT CAST(attname AS text) FROM pg_attribute"
    " WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"
)
_STAGES = text(
    "SELECT stage, CAST(array_agg(relname) AS text[]) AS tables FROM ("
    "SELECT split_part(relname, ' ', 1) AS stage, CAST(relname AS text) AS relname FROM pg_class"
    f" WHERE relnamespace = to_regnamespace('{SCHEMA}') AND relkind = 'r') AS there"
    " WHERE (CAST(:name AS text) IS NULL OR stage = :name)"
    " AND NOT EXISTS (SELECT FROM onceload.delivery WHERE delivery.stage = there.stage)"
    " AND NOT EXISTS (SELECT FROM onceload.audit WHERE audit.stage = there.stage AND kept_until > clock_timestamp())"
    " GROUP BY stage"
)


@dataclass(eq=False)
class StageLost(CallAgain):
    """The server crashed and emptied the stage, or ended the connection that held it: all has to be staged again."""

    stage: str

    def __str__(self) -> str:
        return (
            f"stage {self.stage} should hold all pieces of its batch until they are published, but the server lost it; "
            "nothing was committed: call again"
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The two tables of one attempt at a batch, as SQL writes them."""

    name: str
    rows: str
    parts: str
    #: The table that its rows go to.
    target: str
    columns: tuple[Column, ...]
    #: Rows know which record they were made from; only a transform may lose that.
    lineage: bool

    @classmethod
    def called(cls, name: str, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> "Stage":
        return cls(
            name=name,
            rows=f"{SCHEMA}.{quoted(name + ' rows')}",
            parts=f"{SCHEMA}.{quoted(name + ' parts')}",
            target=table_name(target),
            columns=columns,
            lineage=lineage,
        )

    def beside(self, name: str) -> str:
        """Another table of the same stage, which goes with it."""
        return self.rows.removesuffix(' rows"') + f' {name}"'

    def made(self, token: str) -> str:
        """The table of one try to make rows, as SQL writes it."""
        return self.beside(f"made {token}")

    @property
    def writer(self) -> Writer:
        return Writer(table=self.rows, target=self.target, columns=self.columns, lineage=self.lineage, is_cast=False)


@dataclass(frozen=True, kw_only=True)
class StagedPart:
    """What a piece of a delivery will prove, once its rows are published."""

    #: Below zero: rows that a transform made, and that prove nothing by themselves.
    delivery: int
    number: int
    is_last: bool
    advances: tuple[Advance, ...]
    rows: int
    quarantined: tuple[QuarantinedRecord, ...]
    bytes: int
    #: How many good records were read; a transform may make more rows of them, or fewer.
    records: int
    #: Of the last of a delivery: what could not be read of it.
    notes: tuple[Note, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        return self.delivery, self.number

    @classmethod
    def of(cls, prepared: Prepared, *, delivery: int, number: int, is_last: bool) -> "StagedPart":
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


@contextmanager
def open_stage(engine: Engine, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> Iterator[Stage]:
    """Two empty tables for as long as the block runs; what processes left behind that were killed goes first."""
    # Of its own for each staging, so that a task of one that was given up finds no table to write to.
    name = token_hex(8)
    stage = Stage.called(name, columns, target, lineage=lineage)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        # Held by the connection, so that a stage whose owner is gone can be told from one in use.
        holder.execute(_HOLD, {"name": name})
        _sweep(holder)
        _create_rows(holder, stage, target)
        run(
            holder,
            f"CREATE UNLOGGED TABLE {stage.parts} (delivery integer, number integer, is_last boolean NOT NULL,"
            " rows bigint NOT NULL, bytes bigint NOT NULL, records bigint NOT NULL, proof text NOT NULL,"
            " PRIMARY KEY (delivery, number))",
        )
        run(holder, f"INSERT INTO {stage.parts} VALUES ({_OPENED}, 0, true, 0, 0, 0, '')")
        try:
            yield stage
        finally:
            drop_stage(engine, name)
            with suppress(DBAPIError):
                holder.execute(_LET_GO, {"name": name})


def drop_stage(engine: Engine, name: str) -> None:
    """Drop a stage, unless somebody keeps it; whoever opens the next one sweeps what could not be dropped now."""
    with suppress(DBAPIError), engine.begin() as connection:
        for _, tables in connection.execute(_STAGES, {"name": name}).all():
            _drop(connection, tables)


def _drop(connection: Connection, tables: Iterable[str]) -> None:
    listed = ", ".join(f"{SCHEMA}.{quoted(table)}" for table in tables)
    run(connection, f"DROP TABLE IF EXISTS {listed} CASCADE")


def _create_rows(holder: Connection, stage: Stage, target: Target) -> None:
    """Like the target, so that what it would refuse is found row by row while there is time to quarantine it."""
    run(
        holder,
        f"CREATE UNLOGGED TABLE {stage.rows} (LIKE {table_name(target)} INCLUDING GENERATED INCLUDING CONSTRAINTS)",
    )
    staged = {*(column.name for column in stage.columns), *(field.name for field in LINEAGE)}
    there = holder.execute(_COLUMNS, {"table": stage.rows}).scalars().all()
    changes = [f"DROP COLUMN {quoted(name)} CASCADE" for name in there if name not in staged]
    changes += [f"ADD COLUMN {field.name} bigint" for field in LINEAGE if field.name not in there]
    for column in stage.columns:
        if is_cast([column]):
            # Not cast yet, so that what is said of its values cannot be checked here.
            of_type = travels_as(column)
            changes += [f"DROP COLUMN {quoted(column.name)} CASCADE", f"ADD COLUMN {quoted(column.name)} {of_type}"]
    if changes:
        run(holder, f"ALTER TABLE {stage.rows} {', '.join(changes)}")


def sweep(engine: Engine) -> int:
    """Drop the stages that nobody holds or keeps: how many."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        return _sweep(holder)


def _sweep(holder: Connection) -> int:
    swept = 0
    for name, _ in holder.execute(_STAGES, {"name": None}).all():
        if holder.execute(_TRY_HOLD, {"name": name}).scalar_one():
            # Asked again, as whoever held it may have let go because it is kept now.
            for _, tables in holder.execute(_STAGES, {"name": name}).all():
                # A worker that has not noticed yet that this stage is given up may hold it: the next sweep drops it.
                with suppress(DBAPIError):
                    _drop(holder, tables)
                    swept += 1
            holder.execute(_LET_GO, {"name": name})
    return swept


def begin_try(engine: Engine, stage: Stage, claim: Claim, *, delivery: int) -> None:
    """Delete what earlier tries have staged of a delivery; from now on they stage nothing more of it."""
    with still_there(stage), engine.begin() as connection:
        hold(connection, claim)
        rest = text(f"DELETE FROM {stage.parts} WHERE delivery = :delivery RETURNING proof")
        proofs = connection.execute(rest, {"delivery": delivery}).scalars().all()
        advances = [_advance(written) for proof in proofs for written in json.loads(proof)["advances"]]
        gone = [(each.producer_id, each.spans) for each in advances if each.rows]
        if gone:
            connection.execute(
                text(
                    f"DELETE FROM {stage.rows} USING unnest(CAST(:producer_ids AS bigint[]),"
                    f" CAST(:spans AS int8multirange[])) AS gone (producer_id, spans)"
                    f" WHERE {PRODUCER_ID} = gone.producer_id AND gone.spans @> {SEQUENCE}"
                ),
                {
                    "producer_ids": array(producer_id for producer_id, _ in gone),
                    "spans": array(spans for _, spans in gone),
                },
            )


def stage_part(engine: Engine, stage: Stage, part: StagedPart, rows: pa.Table, *, writer: Writer, claim: Claim) -> None:
    """Keep a piece and its rows, unless this try has done so already and the answer was lost."""
    with engine.connect() as connection, connection.begin() as transaction:
        if not _keep(connection, stage, part):
            transaction.rollback()
            return
        writer.write(connection, rows)
        hold(connection, claim)


@dataclass(frozen=True)
class Made:
    """What one try at a partition of a transform's rows has written."""

    partition: int
    token: str
    rows: int


def stage_made(engine: Engine, stage: Stage, tables: Iterable[pa.Table], *, partition: int) -> Made | None:
    """Keep what one try makes, whole or not at all, in a table of its own; nothing if there is nothing."""
    token, rows = token_hex(8), 0
    writer = replace(stage.writer, table=stage.made(token))
    with still_there(stage), engine.connect() as connection, connection.begin():
        for table in tables:
            if not rows:
                like = f"(LIKE {stage.rows} INCLUDING GENERATED INCLUDING CONSTRAINTS)"
                run(connection, f"CREATE UNLOGGED TABLE {writer.table} {like}")
            writer.copy(connection, table)
            rows += table.num_rows
    return Made(partition, token, rows) if rows else None


def accept(engine: Engine, stage: Stage, made: Iterable[Made]) -> None:
    """Count what those tries made that Spark says came first, and nothing of any other."""
    with still_there(stage), engine.connect() as connection, connection.begin():
        for each in made:
            part = StagedPart(
                delivery=-1 - each.partition,
                number=0,
                is_last=True,
                advances=(),
                rows=each.rows,
                quarantined=(),
                bytes=0,
                records=0,
            )
            # Asked again after an answer that was lost, it is there already.
            if _keep(connection, stage, part):
                run(connection, f"ALTER TABLE {stage.made(each.token)} INHERIT {stage.rows}")


def note_part(engine: Engine, stage: Stage, part: StagedPart) -> None:
    """Keep what a piece proves while its rows go elsewhere; read again, it must be the same piece."""
    with engine.connect() as connection, connection.begin():
        if not _keep(connection, stage, part):
            rows = _staged_rows(connection, stage)
            (kept,) = (_read(row) for row in rows if (row.delivery, row.number) == part.place)
            if kept != part:
                raise DatabaseLost(f"reading piece {part.place} again", "its file has changed since it was first read")


def _keep(connection: Connection, stage: Stage, part: StagedPart) -> bool:
    # Names of stages are ours, so no colon in them passes for a parameter.
    statement = text(
        f"INSERT INTO {stage.parts} VALUES (:delivery, :number, :is_last, :rows, :bytes, :records, :proof)"
        " ON CONFLICT DO NOTHING"
    )
    binds = {
        "delivery": part.delivery,
        "number": part.number,
        "is_last": part.is_last,
        "rows": part.rows,
        "bytes": part.bytes,
        "records": part.records,
        "proof": _written(part),
    }
    with still_there(stage):
        return connection.execute(statement, binds).rowcount == 1


@contextmanager
def still_there(stage: Stage) -> Iterator[None]:
    """Say of a stage that is gone that it is: another load has swept it, because nobody held it any more."""
    try:
        yield
    except DBAPIError as error:
        # The server says which table; another one that is missing has nothing to do with this.
        if sqlstate(error) != _UNDEFINED_TABLE or SCHEMA not in first_line(error):
            raise
        raise StageLost(stage.parts) from error


def staged_parts(engine: Engine, stage: Stage) -> tuple[StagedPart, ...]:
    """All that was staged, in order."""
    with engine.begin() as connection:
        rows = _staged_rows(connection, stage)
    # Many bad records take long to decode, and the server ends a transaction that is idle meanwhile.
    return tuple(map(_read, rows))


def _staged_rows(connection: Connection, stage: Stage) -> Sequence[Any]:
    with still_there(stage):
        rows = run(connection, f"SELECT * FROM {stage.parts} ORDER BY delivery, number").all()
    if not rows or rows[0].delivery != _OPENED:
        raise StageLost(stage.parts)
    return rows[1:]


def write_word(connection: Connection, stage: Stage, word: str) -> None:
    """Leave word with the stage for whoever publishes it; what empties the one empties the other."""
    with still_there(stage):
        statement = text(f"UPDATE {stage.parts} SET proof = :word WHERE delivery = {_OPENED}")
        if connection.execute(statement, {"word": word}).rowcount != 1:
            raise StageLost(stage.parts)


def read_word(connection: Connection, stage: Stage) -> str:
    with still_there(stage):
        word: str | None = run(
            connection, f"SELECT proof FROM {stage.parts} WHERE delivery = {_OPENED}"
        ).scalar_one_or_none()
    if word is None:
        raise StageLost(stage.parts)
    return word


def check_kept(connection: Connection, stage: Stage, parts: int) -> None:
    """Refuse, inside the commit, a stage that was emptied since its pieces were counted: proof needs its rows."""
    with still_there(stage):
        # A late try at a task stages nothing between this count and the rows that are read after it.
        run(connection, f"LOCK TABLE {stage.parts} IN SHARE MODE")
        kept = run(connection, f"SELECT count(*) FROM {stage.parts}").scalar_one()
    # One more is there from the start.
    if kept != parts + 1:
        raise StageLost(stage.parts)


def is_whole(parts: Sequence[StagedPart], *, deliveries: int) -> bool:
    """Whether every piece of every delivery is there; a delivery's pieces count up to the one that says it is last."""
    numbers: dict[int, list[StagedPart]] = {}
    for part in (part for part in parts if part.delivery >= 0):
        numbers.setdefault(part.delivery, []).append(part)
    are_there = len(numbers) == deliveries and all(
        [each.number for each in some] == list(range(len(some))) and some[-1].is_last for some in numbers.values()
    )
    return are_there and not _overlap(parts)


def _overlap(parts: Iterable[StagedPart]) -> bool:
    seen: dict[ProducerId, SpanSet] = {}
    for advance in (advance for part in parts for advance in part.advances):
        spans = seen.get(advance.producer_id, SpanSet())
        if spans.overlaps(advance.spans):
            return True
        seen[advance.producer_id] = spans | advance.spans
    return False


def _written(part: StagedPart) -> str:
    return json.dumps(
        {
            "advances": [
                [
                    each.producer_id,
                    str(each.spans),
                    each.rows,
                    each.records,
                    _text(each.digest),
                    _text(each.fingerprint),
                    each.size,
                    each.condition,
                ]
                for each in part.advances
            ],
            "quarantined": [
                [each.producer_id, each.sequence_id, _text(each.raw), each.reason, each.column]
                for each in part.quarantined
            ],
            "notes": [asdict(each) for each in part.notes],
        }
    )


def _read(row: Any) -> StagedPart:  # noqa: ANN401 - a row has the types that its statement gives it.
    proof = json.loads(row.proof)
    return StagedPart(
        delivery=row.delivery,
        number=row.number,
        is_last=row.is_last,
        rows=row.rows,
        bytes=row.bytes,
        records=row.records,
        advances=tuple(map(_advance, proof["advances"])),
        quarantined=tuple(
            QuarantinedRecord(
                producer_id=ProducerId(producer_id),
                sequence_id=sequence_id,
                raw=_bytes(raw) or b"",
                reason=reason,
                column=column,
            )
            for producer_id, sequence_id, raw, reason, column in proof["quarantined"]
        ),
        notes=tuple(Note(**each) for each in proof["notes"]),
    )


def _advance(written: Sequence[Any]) -> Advance:
    producer_id, spans, rows, records, digest, fingerprint, size, condition = written
    return Advance(
        producer_id=ProducerId(producer_id),
        spans=SpanSet.parse(spans),
        rows=rows,
        records=records,
        digest=_bytes(digest),
        fingerprint=_bytes(fingerprint),
        size=size,
        condition=Condition(condition),
    )


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()


def _bytes(written: str | None) -> bytes | None:
    return None if written is None else b64decode(written)
