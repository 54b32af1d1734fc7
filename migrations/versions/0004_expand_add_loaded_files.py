"""The files that are loaded into a table, each with the pipeline that loaded it.

It only adds. Files that are loaded already are added too, below the folder of the version in force. Where a relative
folder is, only a load knows: its files are added by the next one, and until then a plan compares the texts of paths.
Loads wait meanwhile. Processes of the previous release run on it, but they do not add the files that they load. The
next load of the pipeline by this release does.
"""

import os
import re

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CHANGE = """
ALTER TABLE onceload.pipeline ADD COLUMN folder text;
CREATE TABLE onceload.loaded_table (
    table_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name      text NOT NULL,
    relation  oid NOT NULL,
    read_in   oid NOT NULL,
    CONSTRAINT loaded_tables_have_no_twins UNIQUE (relation, read_in)
);
CREATE TABLE onceload.loaded_file (
    table_id     bigint NOT NULL,
    address      bytea NOT NULL,
    pipeline_id  bigint NOT NULL,
    name         text NOT NULL,
    is_compared  boolean NOT NULL DEFAULT true,
    CONSTRAINT loaded_files_have_one_pipeline PRIMARY KEY (address, table_id)
);
"""
LOADED = text("""
SELECT pipeline_id, terms ->> 'target.table' AS target, terms ->> 'source.identity' AS identity,
       terms ->> 'source.root' AS root, rest ->> 'source.path' AS path
  FROM onceload.pipeline JOIN onceload.declaration USING (pipeline_id, version) ORDER BY pipeline_id
""")
KEEP_TABLE = text("""
INSERT INTO onceload.loaded_table (name, relation, read_in)
SELECT concat('"', replace(nspname, '"', '""'), '"."', replace(relname, '"', '""'), '"'), pg_class.oid,
       CAST(CAST('onceload.loaded_table' AS regclass) AS oid)
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE pg_class.oid = coalesce(CAST(pg_partition_root(to_regclass(:target)) AS oid), to_regclass(:target))
ON CONFLICT (relation, read_in) DO UPDATE SET name = excluded.name
RETURNING table_id
""")
# A file that two pipelines have loaded already becomes that of the older pipeline.
ADD_FILES = text("""
INSERT INTO onceload.loaded_file (table_id, address, pipeline_id, name)
SELECT DISTINCT CAST(:table_id AS bigint), sha256(convert_to(:folder || name, 'UTF8')), pipeline_id, name
  FROM onceload.producer
 WHERE pipeline_id = :pipeline_id AND fingerprint IS NOT NULL AND (copy_of IS NOT NULL OR NOT isempty(consumed))
ON CONFLICT DO NOTHING
""")


def upgrade() -> None:
    op.execute(CHANGE)
    connection = op.get_bind()
    for found in connection.execute(LOADED).all():
        root = found.root if found.identity != "content" else None
        if root is None and found.path:
            root = _root_of(found.path)
        # Without its table, no rows could be loaded a second time.
        table_id = connection.execute(KEEP_TABLE, {"target": found.target}).scalar()
        folder = _address_of(root) if root else None
        if folder is not None and table_id is not None:
            binds = {"pipeline_id": found.pipeline_id, "table_id": table_id, "folder": folder}
            connection.execute(ADD_FILES, binds)


def _root_of(path: str) -> str:
    """The folder before the first wildcard or placeholder."""
    scheme, below = _split(path)
    fixed = re.split(r"[*?\[]|\{\{", below, maxsplit=1)[0]
    folder = fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else "")
    return scheme + (folder or ("" if scheme else "."))


def _address_of(root: str) -> str | None:
    scheme, path = _split(root)
    if scheme in ("", "file://", "local://", "file:", "local:"):
        return os.path.realpath(path).rstrip("/") + "/" if path.startswith("/") else None
    stores = {"s3a://": "s3://", "gcs://": "gs://", "abfss://": "abfs://"}
    return f"{stores.get(scheme, scheme)}{os.path.normpath(path)}/"


def _split(path: str) -> tuple[str, str]:
    found = re.match(r"(?:file|local):(?://)?|(?:[\w+.-]+::)*[\w+.-]+://", path)
    scheme = found.group() if found else ""
    return scheme, path[len(scheme) :]
