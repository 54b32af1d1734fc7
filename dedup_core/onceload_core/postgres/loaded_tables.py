"""The tables that files were loaded into, known by what a rename keeps and by what a restored dump keeps.

The oid of a table decides. Where no oid is known, as in a restored database, the name does. If another table has taken
the name, it may hold a copy of the rows, so the files count as loaded into both. Each function is a part of the
transaction of its caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from onceload_core.postgres.connection import Record, array, statements

SQL = statements("loaded_tables.sql")


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A table, and the recorded ones whose files count as loaded into it."""

    root: int
    name: str
    recorded: Sequence[Record]

    @property
    def is_kept(self) -> bool:
        """Whether it is recorded under its name, and no other one counts."""
        return len(self.recorded) == 1 and bool(self.recorded[0].is_same and self.recorded[0].is_named)


def find_tables(connection: Connection, target: str) -> tuple[str, list[int]]:
    """The name of the whole table and its ids; without the table, there are no rows that could be loaded twice."""
    found = _look_up(connection, target)
    return (target, []) if found is None else (found.name, [each.table_id for each in found.recorded])


def how_recorded(connection: Connection, target: str) -> tuple[bool, bool]:
    """Whether files were ever loaded into a table, and whether it is recorded as it is now."""
    found = _look_up(connection, target)
    return (False, False) if found is None else (any(each.table_id for each in found.recorded), found.is_kept)


def record_table(
    connection: Connection,
    target: str | None,
    *,
    before: str | None = None,
    pipeline_id: int | None = None,
    is_new: bool = False,
) -> int | None:
    """The id of a table, if it exists; it takes over the files that count as loaded into it.

    A new table takes over none: rows of an earlier table of its name went with it, or are in the renamed one.
    """
    found = _look_up(connection, target, before=before, pipeline_id=pipeline_id)
    if found is None:
        return None
    if found.is_kept:
        return int(found.recorded[0].table_id)
    table_id = int(connection.execute(SQL["keep_table"], {"name": found.name, "root": found.root}).scalar_one())
    others = [each for each in found.recorded if each.table_id != table_id]
    if others and not is_new:
        ids = array(each.table_id for each in others)
        connection.execute(SQL["join_files"], {"table_id": table_id, "others": ids})
    # Those that are gone or have become a part of it, and those that are still there beside it.
    for step, is_apart in (("drop_tables", False), ("name_tables", True)):
        if some := [each.table_id for each in others if (each.root not in (None, found.root)) == is_apart]:
            connection.execute(SQL[step], {"others": array(some)})
    return table_id


def _look_up(
    connection: Connection, target: str | None, *, before: str | None = None, pipeline_id: int | None = None
) -> _Found | None:
    binds = {"target": target, "before": before, "pipeline_id": pipeline_id}
    rows = connection.execute(SQL["look_up"], binds).all()
    if not rows:
        return None
    known = [row for row in rows if row.is_same] or [row for row in rows if row.is_named]
    earlier = [row for row in rows if row.is_earlier and row not in known]
    return _Found(root=rows[0].asked, name=rows[0].name, recorded=[*known, *earlier])
