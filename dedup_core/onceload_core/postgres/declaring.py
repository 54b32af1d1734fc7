"""New versions of a declaration: loads take them, under the lock that commits take."""

import json
from dataclasses import replace

from sqlalchemy import Connection

from onceload_core.declaration import (
    MESSAGE_ID,
    TARGET,
    Declaration,
    InUse,
    names_other_messages,
    refuse_edit,
    refuse_other_version,
    settled,
)
from onceload_core.names import Version
from onceload_core.pause import refuse_paused
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import loaded_files
from onceload_core.postgres.commit import SQL
from onceload_core.postgres.connection import Record
from onceload_core.postgres.pipeline_row import lock_pipeline, pause_in
from onceload_core.postgres.rows import version_in


def declare(
    connection: Connection, pipeline: Pipeline, *, version: Version | None, may_be_paused: bool
) -> tuple[int, Version]:
    """Return the number of the pipeline, and the version in force afterwards.

    A new version deletes the deliveries of earlier ones.
    """
    # An unchanged declaration needs no lock: a load that takes another version meanwhile fences this one.
    found = _find(connection, pipeline)
    if found is not None and not may_be_paused:
        refuse_paused(pipeline.name, pause_in(found))
    taken = _unchanged(found, pipeline)
    if version is not None and taken is not None:
        refuse_other_version(pipeline.name, version, taken)
    if found is None or taken is None:
        pipeline_id, taken = _take(connection, pipeline, version=version)
    else:
        pipeline_id = found.pipeline_id
        if pipeline.folder not in (None, found.folder):
            taken = _follow_folder(connection, pipeline, taken)
        if not found.has_layout:
            # An earlier release took this version. Its texts are the same, so its layout is too.
            layout = _layout(pipeline.declaration)
            kept = {"pipeline_id": found.pipeline_id, "version": found.version, "layout": layout}
            connection.execute(SQL["keep_layout"], kept)
    limits = _limits(pipeline)
    if found is None or any(limit != getattr(found, name) for name, limit in limits.items()):
        connection.execute(SQL["set_limits"], {**limits, "version": taken.number})
    return pipeline_id, taken


def find_version(connection: Connection, pipeline: Pipeline) -> Version | None:
    """The version in force, if the declaration is unchanged. Refuses the edits that a load would refuse."""
    found = _find(connection, pipeline)
    version = _unchanged(found, pipeline)
    if version is None and found is not None:
        _refuse_edit(connection, pipeline, _declaration_in(found), found.pipeline_id)
    return version


def _find(connection: Connection, pipeline: Pipeline) -> Record | None:
    return connection.execute(SQL["find_declaration"], {"pipeline": pipeline.name}).one_or_none()


def _declaration_in(found: Record) -> Declaration:
    return Declaration(terms=found.terms, rest=found.rest)


def _unchanged(found: Record | None, pipeline: Pipeline) -> Version | None:
    if found is None:
        return None
    before = _declaration_in(found)
    return version_in(found) if before == settled(before, pipeline.declaration) else None


def _follow_folder(connection: Connection, pipeline: Pipeline, taken: Version) -> Version:
    """The same path leads to another folder: it is relative, or leads over a link.

    That is a version of its own: what was planned or staged in the other folder is of other files.
    """
    locked = lock_pipeline(connection, pipeline.name)
    found = _find(connection, pipeline)
    unchanged = _unchanged(found, pipeline)
    if found is None or unchanged is None:
        # An edit was faster, and refuses what this load commits.
        return taken
    if locked.folder == pipeline.folder:
        return unchanged
    before = _declaration_in(found)
    if locked.folder is not None:
        unchanged = _keep(connection, found.pipeline_id, replace(before, layout=pipeline.declaration.layout))
    loaded_files.follow(connection, pipeline, locked, before=before, after=before)
    return unchanged


def _refuse_edit(connection: Connection, pipeline: Pipeline, before: Declaration, pipeline_id: int) -> None:
    tables = {"table": before.terms.get(TARGET), "table_after": pipeline.declaration.terms.get(TARGET)}
    binds = {"pipeline_id": pipeline_id, **tables}
    found = connection.execute(SQL["in_use"], binds).one()
    in_use = InUse(is_loaded=found.is_loaded, is_table_gone=found.is_table_gone)
    refuse_edit(pipeline.name, before, pipeline.declaration, in_use, moved_from=pipeline.moved_from)


def _take(connection: Connection, pipeline: Pipeline, *, version: Version | None) -> tuple[int, Version]:
    """Take the next version, unless another load has just taken the same one."""
    connection.execute(SQL["make_pipeline"], _limits(pipeline))
    # Under the lock, nothing is committed between the check of the edit and the new version.
    found = lock_pipeline(connection, pipeline.name)
    if version is not None:
        refuse_other_version(pipeline.name, version, version_in(found))
    kept = _find(connection, pipeline)
    if (unchanged := _unchanged(kept, pipeline)) is not None:
        return found.pipeline_id, unchanged
    before = None if kept is None else _declaration_in(kept)
    after = settled(before, pipeline.declaration)
    if before is not None:
        _refuse_edit(connection, pipeline, before, found.pipeline_id)
    if names_other_messages(_remembered(connection, found.pipeline_id), after):
        connection.execute(SQL["end_window"], {"pipeline_id": found.pipeline_id})
    taken = _keep(connection, found.pipeline_id, after)
    loaded_files.follow(connection, pipeline, found, before=before, after=after)
    return found.pipeline_id, taken


def _remembered(connection: Connection, pipeline_id: int) -> str:
    """The columns of the remembered business ids."""
    columns = connection.execute(SQL["remembered"], {"pipeline_id": pipeline_id, "key": MESSAGE_ID}).scalar()
    return str(columns or "")


def _keep(connection: Connection, pipeline_id: int, declaration: Declaration) -> Version:
    number = connection.execute(SQL["take_version"], {"pipeline_id": pipeline_id}).scalar_one()
    kept = {
        "pipeline_id": pipeline_id,
        "version": number,
        "terms": json.dumps(dict(declaration.terms)),
        "rest": json.dumps(dict(declaration.rest)),
        "layout": _layout(declaration),
    }
    taken_at = connection.execute(SQL["keep_declaration"], kept).scalar_one()
    connection.execute(SQL["drop_deliveries"], {"pipeline_id": pipeline_id})
    return Version(number=number, taken_at=taken_at)


def _layout(declaration: Declaration) -> str | None:
    return None if declaration.layout is None else json.dumps(dict(declaration.layout))


def _limits(pipeline: Pipeline) -> dict[str, object]:
    return {
        "name": pipeline.name,
        "guarantee": pipeline.guarantee,
        "producers_max": pipeline.producers_max,
        "islands_max": pipeline.islands_max,
        "forget_idle_after_s": pipeline.forget_idle_after_s,
        "message_keep_days": pipeline.message_keep_days,
        "snapshot_every_commits": pipeline.snapshot.every_commits,
        "snapshot_every_s": pipeline.snapshot.every_s,
        "snapshots_kept": pipeline.snapshot.kept,
    }
