-- name: create_arriving
-- An empty table for rows whose values the server must cast. A transaction uses it for one piece after the other.
CREATE TEMPORARY TABLE IF NOT EXISTS arriving_rows ({columns}) ON COMMIT DROP;
TRUNCATE arriving_rows;

-- name: insert
-- The rows of another table, cast to the types of this one.
INSERT INTO {table} ({names}) SELECT {cast} FROM {source};
