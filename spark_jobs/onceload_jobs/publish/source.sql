-- name: count_by_producer
-- How many rows each producer has. It may be null after a transform.
SELECT _producer_id AS producer_id, count(*) AS rows FROM {rows} GROUP BY _producer_id
