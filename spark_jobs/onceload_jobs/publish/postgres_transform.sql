-- name: create_records
-- The table that the records wait in.
CREATE UNLOGGED TABLE {records} ({columns});

-- name: query
-- A part of statements: the query of the pipeline file, over a table of records.
-- It is on lines of its own, because it may end with a comment.
WITH records AS (SELECT {cast} FROM {records}) SELECT {names} FROM (
{sql}
) AS made

-- name: give_query
-- The text of the query as a value, which the next statement reads.
SELECT set_config('onceload.query', :query, true);

-- name: open_query
-- A cursor takes exactly one query: text with more statements is refused, and none of them runs. No record is read.
DO $$ DECLARE made refcursor; BEGIN OPEN made FOR EXECUTE current_setting('onceload.query'); CLOSE made; END $$;

-- name: explain
-- The plan of the query. No record is read.
EXPLAIN (FORMAT JSON) {query};

-- name: create_made
-- A view with the columns that the query makes.
CREATE VIEW {view} AS {query};

-- name: count_records
SELECT count(*) FROM {records};

-- name: insert_made
-- The rows that the query makes.
INSERT INTO {table} ({names}) {query};
