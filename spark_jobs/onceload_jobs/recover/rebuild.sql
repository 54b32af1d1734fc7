-- name: has_rows
-- Whether a table has a row.
SELECT EXISTS (TABLE {table});
