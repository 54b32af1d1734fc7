-- name: clock
SELECT clock_timestamp();

-- name: rights
-- What a user that loads needs and this one lacks. By oid, because a name in a schema without USAGE is an error.
WITH needed (kind, name, privilege) AS (
    VALUES ('schema', 'onceload', 'USAGE'), ('schema', 'onceload_stage', 'CREATE'), ('table', 'ledger', 'INSERT'),
           ('table', 'ledger_span', 'INSERT'), ('table', 'pipeline', 'UPDATE'), ('table', 'producer', 'INSERT'),
           ('table', 'producer', 'UPDATE'), ('table', 'delivery', 'UPDATE'), ('table', 'quarantine', 'INSERT')
), missing (right_of) AS (
    SELECT format('%s ON SCHEMA %I', privilege, nspname)
      FROM needed JOIN pg_namespace ON kind = 'schema' AND nspname = name
     WHERE NOT has_schema_privilege(pg_namespace.oid, privilege)
     UNION ALL
    SELECT format('%s ON onceload.%I', privilege, relname)
      FROM needed JOIN pg_class ON kind = 'table' AND relname = name
      JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = 'onceload'
     WHERE NOT has_table_privilege(pg_class.oid, privilege)
)
SELECT CAST(current_user AS text), ARRAY(SELECT right_of FROM missing ORDER BY right_of);
