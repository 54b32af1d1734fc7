-- name: delete
-- Deletes the rows of generations, and returns how many each had.
WITH gone AS (DELETE FROM {table} WHERE _producer_id IN ({ids}) RETURNING _producer_id AS producer_id)
SELECT producer_id, count(*) AS rows FROM gone GROUP BY producer_id;
