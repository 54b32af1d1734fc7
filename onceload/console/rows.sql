-- name: rows_with
-- The value has no type of its own, so it is one of the column's type, and an index on the column is used.
SELECT _producer_id AS producer_id, _sequence AS sequence FROM {table} WHERE {column} = :value
 ORDER BY _producer_id, _sequence LIMIT :at_most;
