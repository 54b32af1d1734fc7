-- name: has_changing
-- Whether a view calls a function whose result may differ between two statements of a transaction: a volatile one, or
-- a stable one that is not built in, because it may read tables. The tree of the query names all functions.
SELECT EXISTS (
    SELECT FROM pg_rewrite
      JOIN LATERAL regexp_matches(CAST(ev_action AS text), 'funcid (\d+)', 'g') AS called (ids) ON true
      JOIN pg_proc ON pg_proc.oid = CAST(called.ids[1] AS oid)
      JOIN pg_language ON pg_language.oid = prolang
     WHERE ev_class = to_regclass(:view)
       AND (provolatile = 'v' OR (provolatile = 's' AND lanname <> 'internal')));

-- name: create_records
-- The table that the records wait in.
CREATE UNLOGGED TABLE {records} ({columns});

-- name: empty_arriving
-- A table for the records of one file after the other. Created in this transaction, it costs no WAL, and is dropped
-- with the stage.
CREATE UNLOGGED TABLE IF NOT EXISTS {arriving} (LIKE {records});
TRUNCATE {arriving};

-- name: query
-- A part of statements: the query of the pipeline file, over a table of records.
-- It is on lines of its own, because it may end with a comment.
WITH records AS (SELECT {cast} FROM {records}) SELECT {names} FROM (
{sql}
) AS made

-- name: explain
-- The plan of the query. No record is read.
EXPLAIN (FORMAT JSON) {query};

-- name: create_made
-- A view with the columns that the query makes.
CREATE VIEW {view} AS {query};

-- name: count_made
-- How many rows the query makes for each file of records, and whether a column that is declared not null has a null.
SELECT {producer_id} AS producer_id, count(*) AS rows, bool_or({has_null}) AS has_null
  FROM ({query}) AS counted GROUP BY 1;

-- name: insert_made
-- The rows that the query makes.
INSERT INTO {table} ({names}) {query};
