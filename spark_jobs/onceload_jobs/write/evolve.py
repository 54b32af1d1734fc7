"""Find the changes of a target table that the declared columns need, and make those that lose nothing.

A change is made before the load, in a transaction of its own, and not in the commit that first needs it: ALTER TABLE
locks out every reader until its transaction ends, and a commit may write for minutes. By itself it takes milliseconds.
Nothing is lost by that: a column of nulls and a wider type change no row. If the load dies after the change, the next
load finds the table as it needs it. Two loads at once make a change once, because they take a lock for it. A load of
an earlier version of the pipeline file makes none.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import CallAgain, PipelineBusy, SettingRefused
from onceload_core.events import event
from onceload_core.ports import Session
from onceload_core.postgres.connection import array, change, first_line, is_lost, sqlstate, statements, transaction
from onceload_core.postgres.pipeline_row import lock_pipeline_of
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column
from onceload_jobs.pipeline.declared import Declared, OnNewColumn, Target
from onceload_jobs.write.differences import Change, Cost, alter_table, differing, types_of
from onceload_jobs.write.sql import quoted, run, table_name
from onceload_jobs.write.target import types_there

SQL = statements("evolve.sql", package=__package__)
#: How long it tries to lock the table, between the transactions of others.
_PATIENCE_S = 60.0
_PAUSE_S = 0.5
#: Others who need the table wait behind us. This is shorter than Postgres's deadlock_timeout (1 s), so no commit that
#: holds the table and waits for the pipeline, which we hold, fails with a deadlock.
_LOCK_TIMEOUT_MS = 500
#: Errors that say nothing about the table: a lock, a deadlock, a concurrent change, a cancelled query, rights.
_MAY_PASS = ("55P03", "40P01", "40001", "57014")


@dataclass(eq=False)
class TableHeld(CallAgain):
    """Other sessions hold the target, so that no column can be added to it."""

    pipeline: str
    statement: str
    seconds: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        held = ", ".join(self.holders) or "sessions that have ended since"
        return (
            f"pipeline {self.pipeline}: the target table could not be changed within {self.seconds} s, because "
            f"other transactions use it: {held}. Nothing was changed or loaded. Retry when they have ended, end them "
            f"with `SELECT pg_terminate_backend(<pid>)`, or make the change yourself: {self.statement}"
        )


def evolve_target(
    engine: Engine, declared: Declared, session: Session, *, columns: Sequence[Column]
) -> tuple[Change, ...]:
    """Add the columns that the table lacks, and widen types, if the pipeline allows it; return what was changed."""
    if declared.on_new_column is not OnNewColumn.ADD:
        return ()
    give_up_at, see = time.monotonic() + _PATIENCE_S, f"onceload plan {PIPELINE_FILE}"
    interrupts, has_interrupted = False, False
    while True:
        try:
            with change(engine, declared.name, doing="changing the target table", see=see) as connection:
                changes = _evolve(connection, declared, session, columns, interrupts=interrupts)
        except PipelineBusy as error:
            if time.monotonic() > give_up_at:
                raise _held(engine, declared, columns) from error
        else:
            if changes:
                statement = alter_table(table_name(declared.target), changes)
                event("target_altered", pipeline=declared.name, statement=statement)
            return changes
        has_interrupted |= interrupts
        # Once: an autovacuum that Postgres does not cancel would block the table again and again.
        interrupts = not has_interrupted and _is_vacuumed(engine, declared)
        time.sleep(_PAUSE_S)


def _evolve(
    connection: Connection, declared: Declared, session: Session, columns: Sequence[Column], *, interrupts: bool
) -> tuple[Change, ...]:
    # A change that is refused must not lock the table.
    if not _allowed(connection, declared.target, columns):
        return ()
    table = table_name(declared.target)
    if interrupts:
        _interrupt_autovacuum(connection, table)
    connection.execute(SQL["lock_timeout"], {"timeout": f"{_LOCK_TIMEOUT_MS}ms"})
    connection.execute(SQL["one_at_a_time"], {"table": table})
    # Until this transaction ends, no other version of the pipeline file is in force.
    lock_pipeline_of(connection, session)
    changes = _allowed(connection, declared.target, columns)
    if changes:
        _alter(connection, table, alter_table(table, changes))
    return changes


def _is_vacuumed(engine: Engine, declared: Declared) -> bool:
    # A transaction of its own, because it locks partitions to list them.
    with transaction(engine, declared.name, doing="looking for an autovacuum") as connection:
        return bool(connection.execute(SQL["is_vacuumed"], {"table": table_name(declared.target)}).scalar_one())


def _interrupt_autovacuum(connection: Connection, table: str) -> None:
    """Wait for the table long enough that Postgres cancels its autovacuum.

    The table is locked before the pipeline: with the pipeline locked, nothing may wait that long.
    """
    connection.execute(SQL["wait_for_deadlock_check"])
    run(connection, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")


def _needed(connection: Connection, target: Target, columns: Sequence[Column]) -> tuple[Change, ...]:
    """The changes, if the table then fits and none of them costs anything; a table that is missing is created whole."""
    there = types_there(connection, table_name(target))
    found = tuple(differing(types_of(columns, lineage=target.lineage), there)) if there else ()
    # A column of the key needs a unique index too, and rows without lineage are not told apart later.
    kept = {*target.key, PRODUCER_ID, SEQUENCE}
    return () if any(each.cost is not Cost.NONE or each.name in kept for each in found) else found


def _allowed(connection: Connection, target: Target, columns: Sequence[Column]) -> tuple[Change, ...]:
    """The changes that are needed; refused if this role cannot make them, or if they are not free after all."""
    changes, table = _needed(connection, target, columns), table_name(target)
    if changes:
        statement = alter_table(table, changes)
        _refuse_another_owner(connection, table, statement)
        _refuse_what_is_not_free(connection, table, changes, statement)
    return changes


def _refuse_another_owner(connection: Connection, table: str, statement: str) -> None:
    owner = connection.execute(SQL["owner"], {"table": table}).one_or_none()
    if owner is not None and not owner.is_ours:
        found = f"owned by {owner.name}, and only its owner may change it. {owner.user} is not a member of that role"
        owned = f"ALTER TABLE {table} OWNER TO {quoted(owner.user)}"
        expected = f"the declared columns. As owner of the table, run `{statement}`. To let loads do it, run `{owned}`"
        raise SettingRefused(f"target {table}", found, expected)


def _refuse_what_is_not_free(connection: Connection, table: str, changes: Sequence[Change], statement: str) -> None:
    widened = array([each.name for each in changes if each.found is not None])
    names = connection.execute(SQL["not_free"], {"table": table, "names": widened}).scalars().all()
    if names:
        found = f"column {names[0]} with its own collation, a CHECK, or an index on an expression or with a condition"
        expected = (
            f"the declared columns. Run `{statement}` yourself, with COLLATE to keep a collation: a load would lose "
            "the collation, or lock the table while Postgres reads all of it"
        )
        raise SettingRefused(f"target {table}", found, expected)


def _alter(connection: Connection, table: str, statement: str) -> None:
    try:
        run(connection, statement)
    except DBAPIError as error:
        if sqlstate(error) in _MAY_PASS or is_lost(error):
            raise
        # Such as a view that uses the column, or the limit of 1600 columns.
        expected = f"`{statement}` to succeed. Remove what blocks it, such as a view of the column, and load again"
        raise SettingRefused(f"target {table}", first_line(error), expected) from error


def _held(engine: Engine, declared: Declared, columns: Sequence[Column]) -> TableHeld:
    table = table_name(declared.target)
    with transaction(engine, declared.name, doing="looking for other transactions") as connection:
        holders = connection.execute(SQL["holders"], {"table": table}).all()
        changes = _needed(connection, declared.target, columns)
    shown = (f"pid {each.pid} ({each.name}, {each.program or 'no application name'})" for each in holders)
    return TableHeld(declared.name, alter_table(table, changes), round(_PATIENCE_S), tuple(shown))
