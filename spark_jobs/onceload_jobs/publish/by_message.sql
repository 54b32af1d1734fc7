-- name: make_ids
-- The business id of each row, in the order in which the commit records them.
-- A column of the target may have a collation in which different texts are equal, so ids are compared by their hashes.
-- Two processes of the server may compute the hashes. The planner would use one, because passing results on costs more
-- by default. They share no hash table, because the shared memory of a container is often small.
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL enable_parallel_hash = off;
SELECT set_config('max_parallel_workers_per_gather',
                  CAST(least(1, CAST(current_setting('max_parallel_workers_per_gather') AS int)) AS text), true);
CREATE UNLOGGED TABLE {ids} AS
SELECT {id} AS _message, {of_record} FROM {rows} ORDER BY _message;
-- The next statements run in one process: each process would build the whole table of the known ids.
SET LOCAL max_parallel_workers_per_gather = 0;
ANALYZE {ids};

-- name: find_repeats
-- The rows whose business id is in the window of the pipeline, or that an earlier record of the batch has.
CREATE UNLOGGED TABLE {repeats} AS
WITH remembered AS MATERIALIZED (
    SELECT pipeline_id, CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) - message_keep_days AS first_day
      FROM onceload.pipeline WHERE name = :pipeline
)
SELECT _message, {of_record}
  FROM {ids}
 -- Not a join of the pipeline, which would be looked up again for each id.
 WHERE EXISTS (SELECT FROM onceload.message
                WHERE message.pipeline_id = (SELECT pipeline_id FROM remembered) AND message.message = _message
                  AND message.day >= (SELECT first_day FROM remembered))
 UNION
SELECT _message, {of_record} FROM (SELECT *, {position} AS _position FROM {ids}) AS ranked WHERE _position > 1;
ANALYZE {repeats};

-- name: has_repeats
SELECT EXISTS (SELECT FROM {repeats});

-- name: forget_repeats
DELETE FROM {ids} AS there USING {repeats} AS repeat WHERE {is_same_record};

-- name: without_repeats
-- A part of statements: the rows that are new, if each record has one row.
(SELECT * FROM (SELECT * FROM {rows}) AS there
  WHERE NOT EXISTS (SELECT FROM {repeats} AS repeat WHERE {is_same_record})) AS records

-- name: copy_new
-- The new rows, if a transform may make several rows of one record. Their ids may differ, so a row is left out by its id
-- and its record.
CREATE UNLOGGED TABLE {new} AS
SELECT *
  FROM (SELECT *, {id} AS _message FROM {rows}) AS there
 WHERE NOT EXISTS (SELECT FROM {repeats} AS repeat WHERE repeat._message = there._message AND {is_same_record});
ANALYZE {new};
