"""Days of business ids come and go by functions of the schema, so that who loads need not own a table of it."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

DAYS = """
CREATE FUNCTION onceload.prepare_message_days() RETURNS date LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    today CONSTANT date := clock_timestamp() AT TIME ZONE 'UTC';
    day date;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('onceload.message partitions', 0));
    FOREACH day IN ARRAY ARRAY[today, today + 1] LOOP
        EXECUTE format(
            'CREATE TABLE IF NOT EXISTS onceload.%I PARTITION OF onceload.message FOR VALUES FROM (%L) TO (%L)',
            to_char(day, '"message_"YYYYMMDD'), day, day + 1);
    END LOOP;
    RETURN today;
END $$;

CREATE FUNCTION onceload.forget_messages() RETURNS SETOF text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first_kept CONSTANT date := CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)
        - coalesce((SELECT max(message_keep_days) FROM onceload.pipeline), 0);
    partition text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('onceload.message partitions', 0));
    FOR partition IN
        SELECT format('onceload.%I', relname) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
         WHERE inhparent = CAST('onceload.message' AS regclass) AND CAST(right(relname, 8) AS date) < first_kept
    LOOP
        EXECUTE 'DROP TABLE ' || partition;
        RETURN NEXT partition;
    END LOOP;
END $$;

REVOKE EXECUTE ON FUNCTION onceload.prepare_message_days(), onceload.forget_messages() FROM PUBLIC;
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(DAYS)
