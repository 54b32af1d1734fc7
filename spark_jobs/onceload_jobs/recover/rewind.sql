-- name: count
-- Counts the rows of the table that the rewind would delete, for each producer.
INSERT INTO rows_there SELECT there._producer_id, count(*) FROM {table} AS there
    JOIN going ON going.producer_id = there._producer_id WHERE going.row_spans @> there._sequence
    GROUP BY there._producer_id;

-- name: delete
DELETE FROM {table} AS there USING going
 WHERE going.producer_id = there._producer_id AND going.row_spans @> there._sequence;
