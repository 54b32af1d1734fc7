"""The files that are loaded into a table: each belongs to one pipeline, whose commits record it with their rows.

Each function is a part of the transaction of its caller.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from onceload_core.declaration import ROOT, TARGET, Declaration, LoadedByAnother
from onceload_core.errors import AlreadyConsumed
from onceload_core.names import ProducerId
from onceload_core.pipeline import Pipeline
from onceload_core.postgres.connection import Record, array, execute_for, in_batches, statements

SQL = statements("loaded_files.sql")


def own(connection: Connection, taken: Record, pipeline: str, files: Sequence[ProducerId]) -> None:
    """Record the files of a commit as those of its pipeline, under its lock; refused if another one has loaded them."""
    if not files or taken.folder is None or taken.target is None:
        return
    where = {"target": taken.target, "folder": taken.folder}
    binds = {**where, "pipeline_id": taken.pipeline_id, "producer_ids": array(files)}
    refused = execute_for(connection, SQL["own_files"], binds, items=len(files)).scalars().all()
    if refused:
        _refuse(connection, pipeline, refused, **where)
        # Meanwhile, a rewind of the other pipeline has set its files free.
        raise AlreadyConsumed(pipeline, tuple(refused))


def refuse_files_of_others(connection: Connection, pipeline: Pipeline, names: Sequence[str]) -> None:
    """Refuse a plan whose commits would be refused, before any row is read."""
    target = pipeline.declaration.terms.get(TARGET)
    if target is not None and pipeline.folder is not None:
        _refuse(connection, pipeline.name, names, target=target, folder=pipeline.folder)


def others_by_content(connection: Connection, pipeline: Pipeline) -> dict[str, str]:
    """The folders of other pipelines that load into the same table, and know files by their content."""
    binds = {"pipeline": pipeline.name, "target": pipeline.declaration.terms.get(TARGET)}
    return {row.name: row.folder for row in connection.execute(SQL["others_by_content"], binds)}


def _refuse(connection: Connection, pipeline: str, names: Sequence[str], *, target: str, folder: str) -> None:
    found: list[Record] = []
    for some in in_batches(names):
        binds = {"pipeline": pipeline, "target": target, "folder": folder, "names": array(some)}
        found += connection.execute(SQL["loaded_by_another"], binds)
    if found:
        raise LoadedByAnother(pipeline, found[0].other, folder + found[0].name, target, len(found) - 1)


def follow(
    connection: Connection, pipeline: Pipeline, found: Record, *, before: Declaration | None, after: Declaration
) -> None:
    """Keep the addresses of loaded files true after the folder or the table got another one, under the lock."""
    target = after.terms.get(TARGET)
    if target is None or pipeline.folder is None:
        return
    binds = {"pipeline_id": found.pipeline_id, "target": target, "folder": pipeline.folder}
    terms = {} if before is None else before.terms
    is_renamed = terms.get(TARGET, target) != target
    is_moved = before is not None and terms.get(ROOT) != after.terms.get(ROOT)
    if is_renamed:
        connection.execute(SQL["follow_table"], {**binds, "target_before": terms[TARGET]})
    if found.folder != pipeline.folder:
        connection.execute(SQL["distrust_files" if is_moved else "follow_folder"], binds)
        if pipeline.moved_from is not None and found.folder is not None:
            connection.execute(SQL["move_files_of_others"], {**binds, "before": found.folder})
        connection.execute(SQL["set_folder"], binds)
    if (is_renamed or found.folder is None) and not is_moved:
        connection.execute(SQL["add_files"], binds)


def forget_table(connection: Connection, table: str) -> None:
    """Forget the files of a table that was just created."""
    connection.execute(SQL["forget_table"], {"target": table})


def repair(connection: Connection, pipeline_id: int) -> None:
    """Keep the addresses of the files that are loaded, and of no others, after states were changed under the lock."""
    for statement in ("drop_files", "add_files"):
        connection.execute(SQL[statement], {"pipeline_id": pipeline_id})
