-- name: one_at_a_time
-- Two concurrent upgrades must not run the same migration.
SELECT pg_advisory_xact_lock(hashtextextended('onceload.migrations', 0));

-- name: lock_all
-- All tables at once, or none.
DO $$ BEGIN
    EXECUTE (SELECT 'LOCK TABLE ' || string_agg(format('onceload.%I', relname), ', ') || ' IN ACCESS EXCLUSIVE MODE'
               FROM pg_class
              WHERE relnamespace = to_regnamespace('onceload') AND relkind IN ('r', 'p', 'v')
                AND NOT relispartition);
END $$;

-- name: find_schema
SELECT to_regnamespace('onceload');

-- name: create_schema
CREATE SCHEMA onceload;

-- name: may_grant
-- A user who can neither create roles nor grant rights keeps owning everything.
SELECT CASE WHEN to_regrole('onceload_owner') IS NULL THEN rolsuper OR rolcreaterole
            ELSE pg_has_role(current_user, 'onceload_owner', 'USAGE') END
   AND (rolsuper OR rolcreaterole OR num_nulls(to_regrole('onceload_loader'), to_regrole('onceload_reader')) = 0)
   AND pg_has_role(current_user, relowner, 'USAGE')
  FROM pg_roles, pg_class
 WHERE rolname = current_user AND pg_class.oid = CAST('onceload.schema_version' AS regclass);

-- name: has_roles
SELECT coalesce(has_table_privilege(to_regrole('onceload_loader'), 'onceload.ledger', 'INSERT'), false);

-- name: tables
-- The tables of the schema, and which of them could be the one of our revision.
SELECT relname AS name, EXISTS (
       SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'version_num') AS is_ours
  FROM pg_class
 WHERE relnamespace = to_regnamespace('onceload') AND relkind IN ('r', 'p', 'v', 'm', 'f')
 ORDER BY relname;

-- name: version
SELECT to_jsonb(schema_version) FROM onceload.schema_version;
