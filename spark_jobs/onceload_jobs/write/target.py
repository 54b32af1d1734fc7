"""The target table: create it if it is missing, else check it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import NotFound, SettingRefused
from onceload_core.ports import Ledger
from onceload_core.postgres.connection import Record, sqlstate, statements, transaction, translated
from onceload_core.postgres.loaded_tables import how_recorded, record_table
from onceload_jobs.pipeline.columns import PRODUCER_ID, RESERVED, SEQUENCE, Column, parse_column
from onceload_jobs.pipeline.declared import Declared, Target, UnknownFields, Write
from onceload_jobs.write.binary_copy import needs_cast
from onceload_jobs.write.differences import Change, differing, settled_by, types_of
from onceload_jobs.write.rights import refuse_full_schema, refuse_lacking_rights
from onceload_jobs.write.sql import filled, quoted, run, table_name

SQL = statements("target.sql", package=__package__)


def ensure_target(
    engine: Engine, declared: Declared, *, columns: Sequence[Column], is_recorded: bool, replaces: bool = False
) -> None:
    """Create the table, or refuse one that cannot hold the declared rows, or with `replaces` get rid of old ones."""
    target, table = declared.target, table_name(declared.target)
    if reserved := [column.name for column in columns if column.name in RESERVED]:
        raise SettingRefused(f"target {table}", ", ".join(reserved), f"columns not called {', '.join(RESERVED)}")
    with translated(pipeline=declared.name, doing=f"looking at {table}"), engine.begin() as connection:
        there = _columns_of(connection, table)
        if not there:
            connection.execute(SQL["lock"], {"table": table})
            there = _columns_of(connection, table)
        if not there:
            _create(connection, target, columns)
            return
        wanted = types_of(columns, lineage=target.lineage)
        _check_columns(table, wanted, {name: str(row.type) for name, row in there.items()})
        _refuse_generated(table, wanted, [name for name, row in there.items() if row.is_generated])
        unfilled = [name for name, row in there.items() if row.is_not_null and not row.is_filled and name not in wanted]
        if unfilled:
            found = f"{', '.join(unfilled)} (not null, without a default and not declared)"
            raise SettingRefused(f"target {table}", found, "only columns that are declared, nullable or have a default")
        if target.write is Write.MERGE:
            _check_key(connection, target)
        if not is_recorded:
            record_table(connection, table)
        refuse_lacking_rights(connection, declared, replaces=replaces)


def _columns_of(connection: Connection, table: str) -> dict[str, Record]:
    return {row.name: row for row in connection.execute(SQL["columns"], {"table": table})}


def check_target(engine: Engine, ledger: Ledger[Any], declared: Declared) -> bool:
    """Refuse a table that holds or shows other rows than those committed, and a table that no longer exists.

    Return whether it is recorded as a table that files were loaded into.
    """
    table = table_name(declared.target)
    with translated(pipeline=declared.name, doing=f"looking at {table}"), engine.begin() as connection:
        there = _fit(connection, table)
        if there is not None and PRODUCER_ID in there.types:
            return _refuse_lost_ledger(connection, table)
    if there is None:
        _refuse_lost_table(ledger, declared, table)
    return False


def count_written(
    connection: Connection, table: str, write: Callable[[], int], *, columns: Sequence[Column], lineage: bool
) -> int:
    """How many rows a statement leaves in the target: those written, minus those that triggers deleted again."""
    written = Written.counting(connection, table, columns=columns, lineage=lineage)
    return written.remaining(connection, write())


@dataclass(frozen=True, kw_only=True)
class Written:
    """Counts what remains in the target of the rows that a transaction writes.

    The table is checked again, because it may have been altered since the load began: before the write, so that no rows
    count as bad because of another kind of table or column; and after it, because the partitions are not locked, as the
    columns are.
    """

    table: str
    columns: Sequence[Column]
    lineage: bool
    #: As it was before the write.
    before: "_Fit"

    @classmethod
    def counting(cls, connection: Connection, table: str, *, columns: Sequence[Column], lineage: bool) -> "Written":
        before = refuse_altered(connection, table, columns=columns, lineage=lineage)
        return cls(table=table, columns=columns, lineage=lineage, before=before)

    def remaining(self, connection: Connection, rows: int) -> int:
        """How many of the written rows triggers have not deleted again."""
        after = self._now(connection)
        if after.has_triggers:
            if not after.is_counted:
                found = f"off, and {self.table} has triggers, which may delete rows"
                raise CommitRefused("track_counts", found, _COUNTED)
            # Run triggers that are deferred to the commit.
            run(connection, "SET CONSTRAINTS ALL IMMEDIATE")
            after = self._now(connection)
        return rows - (after.deleted - self.before.deleted)

    def _now(self, connection: Connection) -> "_Fit":
        return _unaltered(connection, self.table, columns=self.columns, lineage=self.lineage)


_COUNTED = "on, so that each commit counts the rows that triggers delete (ALTER ROLE <loader> RESET track_counts)"


@dataclass(eq=False)
class CommitRefused(SettingRefused):
    """The target fitted when the load began, and does not when rows are written."""

    def __str__(self) -> str:
        kept = "This commit was rolled back, and the rows of earlier ones stay"
        return f"{self.setting}: found {self.found}. {kept}. Expected {self.expected}."


def refuse_altered(connection: Connection, table: str, *, columns: Sequence[Column], lineage: bool) -> "_Fit":
    """Refuse a table whose columns no longer have the types in which the values are written, and keep it as it is.

    Binary COPY would store the bytes of one type as another type of the same size, and INSERT would cast or round them.
    """
    _lock(connection, table)
    return _unaltered(connection, table, columns=columns, lineage=lineage)


def _lock(connection: Connection, table: str) -> None:
    """Let no other transaction alter the columns before the end of this one. A write takes the same lock, but later.

    LOCK TABLE would need a right on the whole table, and to plan an insert needs one on any of its columns.
    """
    try:
        run(connection, f"EXPLAIN INSERT INTO {table} DEFAULT VALUES")
    except DBAPIError as error:
        if sqlstate(error) not in _NO_TABLE:
            raise
        found = f"{table}, which {_NO_TABLE[sqlstate(error)]}"
        raise CommitRefused("target.table", found, f"{table} (rename or restore it)") from error


#: By the server's code: there is none of this name, or it is something else.
_NO_TABLE = {"42P01": "no longer exists", "55000": "is no longer a table"}


def _unaltered(connection: Connection, table: str, *, columns: Sequence[Column], lineage: bool) -> "_Fit":
    try:
        fit = _fit(connection, table)
        if fit is not None:
            wanted = types_of(columns, lineage=lineage)
            _check_columns(table, wanted, fit.types)
            _refuse_generated(table, wanted, fit.generated)
            return fit
    except SettingRefused as error:
        raise CommitRefused(error.setting, error.found, error.expected) from error
    raise CommitRefused("target.table", f"{table}, which {_NO_TABLE['42P01']}", f"{table} (rename or restore it)")


def _refuse_generated(table: str, wanted: Mapping[str, str], generated: Iterable[str]) -> None:
    if names := [name for name in generated if name in wanted]:
        found = f"{', '.join(names)}, which the table generates (GENERATED ALWAYS)"
        expected = (
            "declared columns that accept written values. Remove these from `columns`, or alter the table (DROP "
            "EXPRESSION, or for an identity SET GENERATED BY DEFAULT)"
        )
        raise SettingRefused(f"target {table}", found, expected)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """A table whose rows a commit controls, with its partitions."""

    types: Mapping[str, str]
    generated: Sequence[str]
    #: How many rows the transaction has deleted, and whether triggers may delete more.
    deleted: int
    has_triggers: bool
    #: Whether the server counts them.
    is_counted: bool


def _fit(connection: Connection, table: str) -> _Fit | None:
    """The table, if it exists; refused if a commit does not fully control its rows."""
    there = connection.execute(SQL["fit"], {"table": table}).all()
    for row in there:
        if why := _why_unfit(row):
            raise SettingRefused("target.table", f"{row.name}, {why}", _FIT)
    target = next((row for row in there if row.is_target), None)
    if target is None:
        return None
    return _Fit(
        types=target.types or {},
        generated=target.generated or (),
        deleted=sum(row.deleted for row in there),
        has_triggers=any(row.has_triggers for row in there),
        is_counted=target.is_counted,
    )


_FIT = "a permanent table, or a partitioned one whose partitions are permanent tables of this database"
_KINDS = {
    "f": "a foreign table, whose rows another server commits: after a crash they could be duplicated",
    "v": "a view",
    "m": "a materialized view",
    "S": "a sequence",
    "c": "a composite type",
    "i": "an index",
    "I": "an index",
}


def _why_unfit(row: Record) -> str | None:
    if row.kind not in ("r", "p"):
        return _KINDS.get(row.kind, "which is not a table")
    if row.persistence != "p":
        return "an unlogged table, whose rows are lost when the server crashes"
    if row.rule is not None:
        return f"whose rule {row.rule!r} changes what is written to it (drop the rule, or make it a trigger)"
    if row.has_row_security:
        return "whose row-level security hides rows from this role (load as its owner, or as a role with BYPASSRLS)"
    return None


def _refuse_lost_table(ledger: Ledger[Any], declared: Declared, table: str) -> None:
    """Refuse a missing table that a load created before: it was dropped, or another name is set now.

    A new table would lack what was loaded before, because that is consumed.
    """
    try:
        loaded = len(ledger.states(declared.name).states) if ledger.position(declared.name) else 0
    except NotFound:
        # Planned before the first load.
        return
    if loaded:
        found = f"{table}, which does not exist, although this pipeline loaded {loaded:,} producers"
        expected = (
            "the table that rows were loaded into before (restore it, give that table this name, or delete its rows "
            f"with `onceload recover rewind {PIPELINE_FILE} --position 0` and load them again)"
        )
        raise SettingRefused("target.table", found, expected)


def _refuse_lost_ledger(connection: Connection, table: str) -> bool:
    """Refuse rows that were loaded, in a database that knows of no load into this table.

    Its schema `onceload` was lost, or the table was restored without it: all files would be loaded again.
    Return whether the table is recorded as it is.
    """
    is_known, is_as_it_is = how_recorded(connection, table)
    known = is_known or connection.execute(SQL["is_known"], {"table": table}).scalar()
    if not known and connection.execute(filled(SQL["has_loaded_rows"], table=table)).scalar():
        found = f"{table} with rows that Onceload loaded, but no record of these loads in this database"
        as_own_rows = f"UPDATE {table} SET {PRODUCER_ID} = NULL"  # noqa: S608 - a person may run it.
        expected = (
            "the receipts of these rows, because without them their files would be loaded a second time. Restore the "
            "schema onceload from the same backup as the table, or empty the table and load all files again. To keep "
            f"the rows although their files are then loaded beside them, as duplicates, run `{as_own_rows}`"
        )
        raise SettingRefused("target.table", found, expected)
    return is_as_it_is


def columns_to_read(engine: Engine, declared: Declared) -> tuple[Column, ...]:
    """The declared columns, and those that the target got for undeclared fields."""
    with transaction(engine, declared.name, doing=f"looking at {table_name(declared.target)}") as connection:
        return columns_in(connection, declared)


def columns_in(connection: Connection, declared: Declared) -> tuple[Column, ...]:
    """The same, as a transaction sees the target."""
    return declared.columns_as_read + added_columns(connection, declared)


def added_columns(connection: Connection, declared: Declared) -> tuple[Column, ...]:
    """The columns that the target got for undeclared fields, if the pipeline adds such columns."""
    if declared.unknown_fields is not UnknownFields.ADD:
        return ()
    # A field that other columns are read from is declared too.
    known = [*declared.column_names, *declared.field_names]
    return undeclared_columns(connection, table_name(declared.target), known=known)


def undeclared_columns(connection: Connection, table: str, *, known: Sequence[str]) -> tuple[Column, ...]:
    """The columns that a table got for undeclared fields, without those that the table fills itself."""
    there = columns_there(connection, table)
    names = there.keys() - {*known, *RESERVED}
    return tuple(column for name, column in there.items() if isinstance(column, Column) and name in names)


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A column that an undeclared field cannot be written to, and why."""

    name: str
    why: str


def columns_there(connection: Connection, table: str) -> dict[str, Column | Closed]:
    """The columns of a table, as targets of undeclared fields."""
    return {row.name: _open_or_closed(row) for row in connection.execute(SQL["columns"], {"table": table})}


def _open_or_closed(row: Record) -> Column | Closed:
    if row.is_filled:
        return Closed(name=row.name, why=f"{row.type}, which the table fills itself")
    try:
        column = parse_column(row.name, row.type)
    except SettingRefused:
        return Closed(name=row.name, why=row.type)
    return Closed(name=row.name, why=row.type) if needs_cast([column]) else column


def places_taken(connection: Connection, table: str) -> int:
    """How many columns a table has ever had."""
    return int(connection.execute(SQL["places"], {"table": table}).scalar_one())


def _create(connection: Connection, target: Target, columns: Sequence[Column]) -> None:
    not_null = {column.name for column in columns if column.not_null}
    lines = [
        f"{quoted(name)} {of_type}{' NOT NULL' if name in not_null else ''}"
        for name, of_type in types_of(columns, lineage=target.lineage).items()
    ]
    if target.write is Write.MERGE:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, target.key))})")
    refuse_full_schema(connection, target)
    schema = connection.execute(SQL["schema"], {"schema": target.schema}).one()
    if not schema.is_there:
        if not schema.may_make:
            found = f"a table in schema {target.schema}, which does not exist and which {schema.user} cannot create"
            expected = f"an existing schema: CREATE SCHEMA {quoted(target.schema)} AUTHORIZATION {quoted(schema.user)}"
            raise SettingRefused("target.table", found, expected)
        run(connection, f"CREATE SCHEMA IF NOT EXISTS {quoted(target.schema)}")
    run(connection, f"CREATE TABLE {table_name(target)} ({', '.join(lines)})")
    record_table(connection, table_name(target), is_new=True)


def _check_columns(table: str, wanted: Mapping[str, str], there: Mapping[str, str]) -> None:
    changes = list(differing(wanted, there))
    if changes:
        faults = "; ".join(each.fault for each in changes[:5])
        expected = f"the columns that the pipeline declares: {settled_by(table, changes)}"
        if there.keys().isdisjoint(_OF_LINEAGE) and not wanted.keys().isdisjoint(_OF_LINEAGE):
            expected = f"{expected}; or set target.lineage: false, so that rows have no {PRODUCER_ID} and {SEQUENCE}"
        raise SettingRefused(f"target {table}", faults, expected)


_OF_LINEAGE = (PRODUCER_ID, SEQUENCE)


def differing_columns(connection: Connection, declared: Declared) -> list[Change]:
    """The columns of the target that differ from the declared ones."""
    target = declared.target
    there = types_there(connection, table_name(target))
    return list(differing(types_of(declared.columns, lineage=target.lineage), there))


def check_copy(connection: Connection, target: Target, copy: str, *, columns: Sequence[Column]) -> None:
    """Refuse an empty copy of the target that was made after a column was altered."""
    wanted = types_of(columns, lineage=target.lineage)
    _check_columns(table_name(target), wanted, types_there(connection, copy))


def types_there(connection: Connection, table: str) -> dict[str, str]:
    """The columns of a table with their types, as Postgres writes them."""
    return {row.name: str(row.type) for row in connection.execute(SQL["columns"], {"table": table})}


def _check_key(connection: Connection, target: Target) -> None:
    keys = [frozenset(row.names) for row in connection.execute(SQL["keys"], {"table": table_name(target)})]
    if frozenset(target.key) not in keys:
        expected = f"a unique index on its key ({', '.join(target.key)})"
        raise SettingRefused(f"target {table_name(target)}", "none on exactly these columns", expected)
