"""The files that are loaded into a table: each belongs to one pipeline, whose commits record it with their rows.

Each function is a part of the transaction of its caller.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from onceload_core.declaration import (
    IDENTITY,
    PATH,
    ROOT,
    TARGET,
    Declaration,
    LoadedByAnother,
    LoadedUnderOtherName,
)
from onceload_core.errors import AlreadyConsumed
from onceload_core.names import ProducerId
from onceload_core.pipeline import Pipeline
from onceload_core.postgres.connection import Record, array, execute_for, in_batches, statements
from onceload_core.postgres.loaded_tables import find_tables, record_table

SQL = statements("loaded_files.sql")

#: How the terms say that a pipeline knows files by their content.
_CONTENT = "content"


@dataclass(frozen=True, kw_only=True)
class _Where:
    """Which table a pipeline loads into, from which folder, and how it knows its files."""

    target: str
    folder: str
    is_by_content: bool
    #: The texts of the path and of its folder, if they are known.
    path: str | None = None
    root: str | None = None


def own(connection: Connection, taken: Record, pipeline: str, files: Sequence[ProducerId]) -> None:
    """Record the files of a commit as those of its pipeline, under its lock; refused if another one has loaded them."""
    if not files or taken.folder is None:
        return
    table_id = taken.table_id or record_table(connection, taken.target)
    if table_id is None:
        return
    where = _Where(target=taken.target, folder=taken.folder, is_by_content=taken.identity == _CONTENT)
    of_pipeline = {"pipeline_id": taken.pipeline_id, "table_id": table_id, "producer_ids": array(files)}
    binds = {"folder": where.folder, "is_by_content": where.is_by_content, **of_pipeline}
    refused = execute_for(connection, SQL["own_files"], binds, items=len(files)).scalars().all()
    if refused:
        _refuse(connection, pipeline, refused, where)
        # Meanwhile, a rewind of the other pipeline has set its files free.
        raise AlreadyConsumed(pipeline, tuple(refused))


def refuse_files_of_others(connection: Connection, pipeline: Pipeline, names: Sequence[str]) -> None:
    """Refuse a plan whose commits would be refused, before any row is read."""
    terms = pipeline.declaration.terms
    if TARGET in terms and pipeline.folder is not None:
        is_by_content = terms.get(IDENTITY) == _CONTENT
        where = _Where(
            target=terms[TARGET],
            folder=pipeline.folder,
            is_by_content=is_by_content,
            path=pipeline.declaration.rest.get(PATH),
            root=terms.get(ROOT),
        )
        _refuse(connection, pipeline.name, names, where)


def others_by_content(connection: Connection, pipeline: Pipeline) -> dict[str, str]:
    """The folders of other pipelines that load into the same table, and know files by their content."""
    _, tables = find_tables(connection, pipeline.declaration.terms[TARGET])
    binds = {"pipeline": pipeline.name, "tables": array(tables)}
    return {row.name: row.folder for row in connection.execute(SQL["others_by_content"], binds)}


def _refuse(connection: Connection, pipeline: str, names: Sequence[str], where: _Where) -> None:
    table, tables = find_tables(connection, where.target)
    found: list[Record] = []
    for some in in_batches(names):
        binds = {**asdict(where), "tables": array(tables), "pipeline": pipeline, "names": array(some)}
        found += connection.execute(SQL["loaded_by_another"], binds)
    own = [each for each in found if each.other == pipeline]
    if own:
        name, before = own[0].name, own[0].name_before
        raise LoadedUnderOtherName(pipeline, where.folder + name, name, before, len(own) - 1)
    if found:
        table = table if table == where.target else f"{table} (of which {where.target} is a partition)"
        raise LoadedByAnother(pipeline, found[0].other, where.folder + found[0].name, table, len(found) - 1)


def follow(
    connection: Connection, pipeline: Pipeline, found: Record, *, before: Declaration | None, after: Declaration
) -> None:
    """Keep tables and addresses of loaded files true after an edit, or a move of the folder; under the lock."""
    target = after.terms.get(TARGET)
    if target is None or pipeline.folder is None:
        return
    binds = {"pipeline_id": found.pipeline_id, "folder": pipeline.folder}
    terms = {} if before is None else before.terms
    is_moved = before is not None and terms.get(ROOT) != after.terms.get(ROOT)
    if terms.get(TARGET, target) != target:
        record_table(connection, target, before=terms[TARGET], pipeline_id=found.pipeline_id)
    if found.folder != pipeline.folder:
        connection.execute(SQL["distrust_files" if is_moved else "follow_folder"], binds)
        if pipeline.moved_from is not None and found.folder is not None:
            _, tables = find_tables(connection, target)
            moved = {**binds, "tables": array(tables), "before": found.folder}
            connection.execute(SQL["move_files"], moved)
        connection.execute(SQL["set_folder"], binds)
    if before is not None and found.folder is None and not is_moved:
        _add_files(connection, found.pipeline_id, target)


def repair(connection: Connection, pipeline_id: int) -> None:
    """Keep the addresses of the files that are loaded, and of no others, after states were changed under the lock."""
    connection.execute(SQL["drop_files"], {"pipeline_id": pipeline_id})
    target = connection.execute(SQL["target"], {"pipeline_id": pipeline_id}).scalar()
    _add_files(connection, pipeline_id, target)


def _add_files(connection: Connection, pipeline_id: int, target: str | None) -> None:
    table_id = record_table(connection, target)
    if table_id is not None:
        connection.execute(SQL["add_files"], {"pipeline_id": pipeline_id, "table_id": table_id})
