"""Rewind a pipeline with lineage: delete what was loaded after a position, rows and state.

Only appended rows can be rolled back one by one: a row that a merge or a transform made of several records does not
show its earlier values.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine

from onceload_core.errors import OnceloadError, SettingRefused
from onceload_core.names import Position
from onceload_core.postgres.connection import statements
from onceload_core.postgres.rewind import REBUILD, Preview, Rewind
from onceload_core.postgres.rewind import preview as preview_with
from onceload_core.postgres.rewind import rewind as rewind_with
from onceload_core.postgres.rewound import RolledBack, rolled_back
from onceload_jobs.files.listing import list_files, url_of
from onceload_jobs.files.reading import look_at
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.pipeline.declared import Declared, Source, Write
from onceload_jobs.read.parts import is_plain_text
from onceload_jobs.write.sql import filled, table_name
from onceload_jobs.write.target import columns_there

SQL = statements("rewind.sql", package=__package__)


def rewind(
    declared: Declared,
    engine: Engine,
    *,
    to: Position | None = None,
    expected: Position | None = None,
    dry_run: bool,
    differences_accepted: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> Rewind:
    """Restore rows and state to a position, by default that of the latest snapshot."""
    _refuse_unfit(declared)
    found = rewind_with(
        engine,
        declared.name,
        _Rows(table=table_name(declared.target)),
        to=to,
        expected=expected,
        dry_run=dry_run,
        differences_accepted=differences_accepted,
        on_progress=on_progress or (lambda _: None),
    )
    if not found.entries:
        return found
    try:
        return replace(found, lost=tuple(_lost(declared, engine, found)))
    except OnceloadError as error:
        if found.applied:
            error.add_note(
                f"The rewind to position {found.rewound_to} is done: the ledger records it at position "
                f"{found.position}. Only the search for files that cannot be loaded again has failed."
            )
        raise


def _lost(declared: Declared, engine: Engine, found: Rewind) -> Iterator[str]:
    """The files that cannot bring again what is rolled back. Contents are not compared."""
    up_to = Position(found.position - 1) if found.applied else found.position
    sizes: dict[str, int] = {}
    with suppress(OnceloadError):
        listing = list_files(declared.source.path, root=declared.source.root)
        sizes = {each.name: each.size for each in listing.files}
    for file in rolled_back(engine, declared.name, to=found.rewound_to, up_to=up_to):
        if reason := _why_lost(declared.source, file, size=sizes.get(file.name)):
            yield f"{file.name} (records: {file.records:,}): {reason}"


def _why_lost(source: Source, file: RolledBack, *, size: int | None) -> str | None:
    try:
        if size is None:
            # The pattern may be of one day only.
            size = look_at(url_of(source.path, file.name, root=source.root)).size
    except OnceloadError as error:
        return "the source has no such file" if isinstance(error.__cause__, FileNotFoundError) else str(error)
    if is_plain_text(source, file.name) and size < file.end:
        return f"the file has {size:,} bytes, and what is rolled back ends at byte {file.end:,}"
    return None


def preview(declared: Declared, connection: Connection, *, to: Position, names_max: int) -> Preview:
    """Look up what a rewind would roll back, by the ledger alone."""
    _refuse_unfit(declared)
    return preview_with(connection, declared.name, to=to, names_max=names_max)


def _refuse_unfit(declared: Declared) -> None:
    about = f"rewinding pipeline {declared.name}"
    if declared.target.write is Write.MERGE:
        found = "target.write: merge (the rows that a merge replaced cannot be restored)"
        raise SettingRefused(about, found, f"target.write: append (instead, {REBUILD})")
    if not declared.target.lineage:
        found = "target.lineage: false, so the origin of the rows is unknown"
        raise SettingRefused(about, found, f"target.lineage: true (instead, {REBUILD})")


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of one table, identified by their lineage."""

    #: Quoted for SQL.
    table: str

    def count(self, connection: Connection) -> None:
        if self._is_gone(connection):
            return
        connection.execute(filled(SQL["count"], table=self.table))

    def delete(self, connection: Connection) -> int:
        if self._is_gone(connection):
            return 0
        return connection.execute(filled(SQL["delete"], table=self.table)).rowcount

    def _is_gone(self, connection: Connection) -> bool:
        """Whether the table is lost; an existing one must have the lineage columns."""
        columns = frozenset(columns_there(connection, self.table))
        if columns and not columns >= {PRODUCER_ID, SEQUENCE}:
            found = f"{self.table} without these columns (a transform may have left them out)"
            raise SettingRefused("rewinding", found, f"a target with {PRODUCER_ID} and {SEQUENCE} (instead, {REBUILD})")
        return not columns
