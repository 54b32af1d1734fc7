-- name: count_by_record
-- How many rows name each producer, and which of its records. Both may be null after a transform, but not one alone.
SELECT _producer_id AS producer_id, CAST(sum(rows) AS bigint) AS rows, count(_sequence) AS records,
       count(_sequence) < count(*) AS without_record
  FROM (SELECT _producer_id, _sequence, count(*) AS rows FROM {rows} GROUP BY 1, 2) AS by_record
 GROUP BY 1;

-- name: count_named
-- The same in all, of records that name their producers: how many records have rows, and which rows name none of them.
SELECT CAST(coalesce(sum(rows), 0) AS bigint) AS rows, count(*) FILTER (WHERE is_named) AS records,
       coalesce(bool_or(NOT is_named), false) AS unnamed,
       coalesce(bool_or((_producer_id IS NULL) <> (_sequence IS NULL)), false) AS half_named,
       coalesce(bool_or(is_named AND NOT EXISTS (
           SELECT FROM {used_ids} AS used
            WHERE used.producer_id = _producer_id AND _sequence >= used.first AND _sequence < used."end")), false)
       AS strange
  FROM (SELECT _producer_id, _sequence, _producer_id IS NOT NULL AS is_named, count(*) AS rows
          FROM {rows} GROUP BY 1, 2) AS by_record;
