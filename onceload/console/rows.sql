-- name: loaded_from
-- The rows of a part of a file, each as JSON.
SELECT left(CAST((SELECT to_json(shown.*) FROM (SELECT {columns}) AS shown) AS text), :text_max)
  FROM {table} AS there
 WHERE there._producer_id = :producer_id AND there._sequence >= :first AND there._sequence < :end
 ORDER BY there._sequence LIMIT :at_most;

-- name: rows_with
-- The value has no type of its own, so it is one of the column's type, and an index on the column is used.
SELECT _producer_id AS producer_id, _sequence AS sequence FROM {table} WHERE {column} = :value
 ORDER BY _producer_id, _sequence LIMIT :at_most;
