-- name: create_ids
-- The business ids of a bucket, for one transaction.
CREATE TEMPORARY TABLE onceload_ids (number bigint, {columns}) ON COMMIT DROP;

-- name: window
-- The first day of the window in which ids count as known.
SELECT pipeline_id, CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) - message_keep_days AS first_day
  FROM onceload.pipeline WHERE name = :pipeline;

-- name: find_unknown
-- The ids that are not known, by their hashes. They are hashed before they are compared.
SELECT number, message
  FROM (SELECT number, sha256(convert_to(CAST(json_build_array({ids}) AS text), 'UTF8')) AS message
          FROM onceload_ids OFFSET 0) AS asked
 WHERE NOT EXISTS (SELECT FROM onceload.message AS known
                    WHERE known.pipeline_id = {pipeline_id} AND known.message = asked.message
                      AND known.day >= '{first_day}')
