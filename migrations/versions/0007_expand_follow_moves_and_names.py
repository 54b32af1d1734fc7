"""A pipeline remembers that its folder got another address without an edit, and takes its waits along when renamed.

It only adds: processes of the previous release leave the column as it is, and trust the names in such a folder.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


CHANGE = """
ALTER TABLE onceload.pipeline ADD COLUMN has_moved boolean NOT NULL DEFAULT false;

CREATE FUNCTION onceload.make_way_for_name() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused bigint;
BEGIN
    SELECT pipeline_id INTO refused FROM onceload.pipeline WHERE name = NEW.name AND position = 0 FOR UPDATE;
    DELETE FROM onceload.snapshot_producer WHERE pipeline_id = refused;
    DELETE FROM onceload.snapshot WHERE pipeline_id = refused;
    DELETE FROM onceload.audit WHERE pipeline_id = refused;
    DELETE FROM onceload.delivery WHERE pipeline_id = refused;
    DELETE FROM onceload.session WHERE pipeline_id = refused;
    DELETE FROM onceload.producer WHERE pipeline_id = refused;
    DELETE FROM onceload.declaration WHERE pipeline_id = refused;
    DELETE FROM onceload.pipeline WHERE pipeline_id = refused;
    DELETE FROM onceload.attempt WHERE pipeline = NEW.name;
    DELETE FROM onceload.waiting_file WHERE pipeline = NEW.name;
    UPDATE onceload.attempt SET pipeline = NEW.name WHERE pipeline = OLD.name;
    UPDATE onceload.waiting_file SET pipeline = NEW.name WHERE pipeline = OLD.name;
    RETURN NEW;
END $$;
CREATE TRIGGER pipeline_is_renamed BEFORE UPDATE OF name ON onceload.pipeline
    FOR EACH ROW WHEN (OLD.name <> NEW.name) EXECUTE FUNCTION onceload.make_way_for_name();
"""


def upgrade() -> None:
    op.execute(CHANGE)
