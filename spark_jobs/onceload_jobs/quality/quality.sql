-- name: batches
-- How many batches a pipeline has loaded, and how many rows the smallest and the largest brought.
SELECT count(*) AS batches, min(rows) AS fewest, max(rows) AS most
  FROM (SELECT sum(loaded) AS rows FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id)
         WHERE name = :pipeline AND kind = 'load' AND loaded > 0 GROUP BY batch) AS loaded;

-- name: names
SELECT producer_id, name FROM onceload.producer WHERE producer_id = ANY (:ids);

-- name: find_view_by_name
-- The schema comes last, because an expectation may query other tables by their bare names.
SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), %s), false);
