"""New versions of a declaration: loads take them, under the lock that commits take."""

import json

from sqlalchemy import Connection

from onceload_core.declaration import (
    MESSAGE_ID,
    PATH,
    TARGET,
    Declaration,
    InUse,
    LoadedByAnother,
    names_other_messages,
    refuse_edit,
    refuse_other_version,
    settled,
)
from onceload_core.names import Version
from onceload_core.pipeline import Pipeline
from onceload_core.postgres.commit import SQL, lock_pipeline


def declare(connection: Connection, pipeline: Pipeline, *, version: Version | None) -> Version:
    """Return the version in force afterwards. A new version deletes the deliveries of earlier ones."""
    _refuse_another(connection, pipeline)
    # An unchanged declaration needs no lock: a load that takes another version meanwhile fences this one.
    taken = _find_unchanged(connection, pipeline)
    if version is not None and taken is not None:
        refuse_other_version(pipeline.name, version, taken)
    if taken is None:
        taken = _take(connection, pipeline, version=version)
    connection.execute(SQL["set_limits"], {**_limits(pipeline), "version": taken})
    return taken


def find_version(connection: Connection, pipeline: Pipeline) -> Version | None:
    """The version in force, if the declaration is unchanged. Refuses the edits that a load would refuse."""
    _refuse_another(connection, pipeline)
    version = _find_unchanged(connection, pipeline)
    found = connection.execute(SQL["find_declaration"], {"pipeline": pipeline.name}).one_or_none()
    if version is None and found is not None:
        _refuse_edit(connection, pipeline, Declaration(terms=found.terms, rest=found.rest), found.pipeline_id)
    return version


def _find_unchanged(connection: Connection, pipeline: Pipeline) -> Version | None:
    found = connection.execute(SQL["find_declaration"], {"pipeline": pipeline.name}).one_or_none()
    if found is None:
        return None
    before = Declaration(terms=found.terms, rest=found.rest)
    return Version(found.version) if before == settled(before, pipeline.declaration) else None


def _refuse_another(connection: Connection, pipeline: Pipeline) -> None:
    """Refuse a pipeline that would load all files of another one into the table of that one again."""
    declaration = pipeline.declaration
    path, table = declaration.rest.get(PATH), declaration.terms.get(TARGET)
    binds = {"pipeline": pipeline.name, "path": path, "table": table}
    if path and table and (other := connection.execute(SQL["find_another"], binds).scalar()) is not None:
        raise LoadedByAnother(pipeline.name, other, path, table)


def _refuse_edit(connection: Connection, pipeline: Pipeline, before: Declaration, pipeline_id: int) -> None:
    binds = {"pipeline_id": pipeline_id, "table": before.terms.get(TARGET)}
    found = connection.execute(SQL["in_use"], binds).one()
    in_use = InUse(is_loaded=found.is_loaded, is_table_gone=found.is_table_gone)
    refuse_edit(pipeline.name, before, pipeline.declaration, in_use, moved_from=pipeline.moved_from)


def _take(connection: Connection, pipeline: Pipeline, *, version: Version | None) -> Version:
    """Take the next version, unless another load has just taken the same one."""
    connection.execute(SQL["make_pipeline"], _limits(pipeline))
    # Under the lock, nothing is committed between the check of the edit and the new version.
    found = lock_pipeline(connection, pipeline.name)
    if version is not None:
        refuse_other_version(pipeline.name, version, found.version)
    if (unchanged := _find_unchanged(connection, pipeline)) is not None:
        return unchanged
    kept = connection.execute(SQL["find_declaration"], {"pipeline": pipeline.name}).one_or_none()
    before = None if kept is None else Declaration(terms=kept.terms, rest=kept.rest)
    after = settled(before, pipeline.declaration)
    if before is not None:
        _refuse_edit(connection, pipeline, before, found.pipeline_id)
    if names_other_messages(_remembered(connection, found.pipeline_id), after):
        connection.execute(SQL["end_window"], {"pipeline_id": found.pipeline_id})
    return _keep(connection, found.pipeline_id, after)


def _remembered(connection: Connection, pipeline_id: int) -> str:
    """The columns of the remembered business ids."""
    columns = connection.execute(SQL["remembered"], {"pipeline_id": pipeline_id, "key": MESSAGE_ID}).scalar()
    return str(columns or "")


def _keep(connection: Connection, pipeline_id: int, declaration: Declaration) -> Version:
    version = connection.execute(SQL["take_version"], {"pipeline_id": pipeline_id}).scalar_one()
    kept = {
        "pipeline_id": pipeline_id,
        "version": version,
        "terms": json.dumps(dict(declaration.terms)),
        "rest": json.dumps(dict(declaration.rest)),
    }
    connection.execute(SQL["keep_declaration"], kept)
    connection.execute(SQL["drop_deliveries"], {"pipeline_id": pipeline_id})
    return Version(version)


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
