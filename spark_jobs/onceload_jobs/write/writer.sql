-- name: create_arriving
-- An empty table for rows whose values the server must cast. Those of an earlier piece may have had other columns.
DROP TABLE IF EXISTS pg_temp.arriving_rows;
CREATE TEMPORARY TABLE arriving_rows ({columns}) ON COMMIT DROP;

-- name: insert
-- The rows of another table, cast to the types of this one.
INSERT INTO {table} ({names}) SELECT {cast} FROM {source};
