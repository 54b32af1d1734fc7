-- name: count_by_producer
-- How many rows each producer has. It may be null after a transform.
SELECT _producer_id AS producer_id, count(*) AS rows FROM {rows} GROUP BY _producer_id

-- name: count_by_record
-- How many rows name each producer, and which of its records. Both may be null after a transform, but not one alone.
SELECT _producer_id AS producer_id, CAST(sum(rows) AS bigint) AS rows, count(_sequence) AS records,
       count(_sequence) < count(*) AS without_record,
       coalesce(min(_sequence), 0) AS first, coalesce(max(_sequence), 0) AS last
  FROM (SELECT _producer_id, _sequence, count(*) AS rows FROM {rows} GROUP BY 1, 2) AS by_record
 GROUP BY 1;

-- name: count_rows
SELECT count(*) FROM {rows};
