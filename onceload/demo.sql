-- name: held_deliveries
-- Whether files of a batch are being loaded: a claim of its load covers them.
SELECT count(*) FROM onceload.delivery WHERE batch = %s AND state = 'held';

-- name: hold_deliveries
-- Until the end of the transaction, no delivery is handed out or done.
LOCK TABLE onceload.delivery IN SHARE MODE;

-- name: position
SELECT position FROM onceload.pipeline;

-- name: rows
SELECT count(*) FROM readings;

-- name: rows_since
SELECT count(*) FROM readings WHERE at >= %s;

-- name: rows_of_days
-- The number of rows of each day, without days that have a device twice.
SELECT json_object_agg(day, rows ORDER BY day)
  FROM (SELECT CAST(at AT TIME ZONE 'UTC' AS date) AS day, count(*) AS rows, count(DISTINCT device) AS distinct_rows
          FROM readings GROUP BY 1) AS d
 WHERE rows = distinct_rows;

-- name: quarantined
SELECT count(*) FROM onceload.quarantine;

-- name: damage
-- Deletes rows as a person could by mistake.
DELETE FROM readings WHERE at >= %s AND celsius > 22;
