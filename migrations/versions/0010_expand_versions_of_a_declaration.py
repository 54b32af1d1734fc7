"""A declaration has versions: what was begun under an earlier one is refused."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

VERSIONS = """
CREATE TABLE onceload.declaration (
    pipeline_id  bigint NOT NULL REFERENCES onceload.pipeline,
    version      integer NOT NULL,
    terms        jsonb NOT NULL,
    rest         jsonb NOT NULL,
    declared_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT declaration_versions_have_no_twins PRIMARY KEY (pipeline_id, version),
    CONSTRAINT declaration_versions_count_up_from_one CHECK (version >= 1)
);

ALTER TABLE onceload.pipeline
    ADD COLUMN version integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT pipeline_versions_count_up_from_zero CHECK (version >= 0);
ALTER TABLE onceload.ledger ADD COLUMN version integer;

-- Of what was declared before, only the names of files are known.
UPDATE onceload.pipeline SET version = 1 WHERE names_below IS NOT NULL;
INSERT INTO onceload.declaration (pipeline_id, version, terms, rest)
SELECT pipeline_id, 1, jsonb_build_object('source.root', names_below), '{}'
  FROM onceload.pipeline WHERE names_below IS NOT NULL;

ALTER TABLE onceload.pipeline DROP COLUMN names_below;
ALTER TABLE onceload.delivery DROP COLUMN contract;
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(VERSIONS)
