-- name: create_records
-- The table that the records wait in.
CREATE UNLOGGED TABLE {records} ({columns});

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

-- name: insert_made
-- The rows that the query makes.
INSERT INTO {table} ({names}) {query};
