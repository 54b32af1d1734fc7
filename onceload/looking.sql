-- name: read_only
-- Each statement is a transaction of its own, and none of them can write. A statement that begins a transaction by
-- itself cannot write in it either.
SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY;

-- name: limited
SELECT set_config('statement_timeout', :limit, false);

-- name: scan_from_the_start
-- Otherwise Postgres begins to read a large table where another query, also a canceled one, has arrived.
SET synchronize_seqscans = off;

-- name: find_table
-- The name as Postgres resolves it, if it is a table or a view.
SELECT CAST(oid AS bigint) AS oid, format('%I.%I', relnamespace::regnamespace::text, relname) AS name
  FROM pg_class WHERE oid = to_regclass(:name) AND relkind IN ('r', 'p', 'v', 'm', 'f');

-- name: columns
SELECT CAST(attname AS text) AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS not_null
  FROM pg_attribute WHERE attrelid = :oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum;

-- name: tables
-- Tables and views of users, in the form in which `show` accepts them.
SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables
 WHERE table_schema NOT IN ('onceload', 'onceload_stage', 'information_schema', 'pg_catalog') ORDER BY 1;
