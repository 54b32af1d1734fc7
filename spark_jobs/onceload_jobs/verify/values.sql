-- name: create_reread
-- The rows that were read again, with the position of the commit that loaded their record.
CREATE TEMPORARY TABLE reread ({columns}, _position bigint) ON COMMIT DROP;

-- name: add_dropped
-- A column with values of the files that the target no longer has. Parts of files may give it different types.
ALTER TABLE reread ADD COLUMN {name} text;

-- name: analyze
-- For the joins that follow.
ANALYZE reread;

-- name: empty
-- Frees the space of rows that are compared.
TRUNCATE reread;

-- name: records
-- A part of statements: the rows that should exist, of those that were read again.
SELECT {cast}, _position FROM reread
 WHERE NOT EXISTS (SELECT FROM onceload.quarantine WHERE producer_id = _producer_id AND sequence_id = _sequence)

-- name: latest_records
-- A part of statements: the same after a merge, which keeps the last row of each key.
-- A late commit of an earlier part does not overtake what the same file said later.
SELECT * FROM (
    SELECT DISTINCT ON ({key}) * FROM (
        SELECT *, max(_position) OVER (PARTITION BY {key}, _producer_id ORDER BY _sequence) AS settled
          FROM ({records}) AS taken) AS ranked
     ORDER BY {key}, settled DESC, _producer_id DESC, _sequence DESC) AS latest
 WHERE {is_kept}

-- name: rows
-- A part of statements: the rows of the target.
SELECT {columns}, {lineage}, true AS is_there FROM {table}

-- name: rows_of_files
-- A part of statements: the rows of the target that the files brought.
SELECT {columns}, {lineage}, true AS is_there FROM {table} WHERE _producer_id = ANY(CAST(:taken AS bigint[]))

-- name: is_ours
-- A part of statements: excludes rows that prove nothing: of no record, merged from changed files, retried, or of
-- another pipeline.
{has_record} AND (found._producer_id = ANY(CAST(:left_out AS bigint[]))) IS NOT TRUE
 AND NOT EXISTS (SELECT FROM onceload.quarantine AS record WHERE record.state = 'retried'
                    AND record.producer_id = found._producer_id AND record.sequence_id = found._sequence)
 AND NOT EXISTS (SELECT FROM onceload.producer AS other
                  WHERE other.producer_id = found._producer_id AND other.pipeline_id <> :pipeline_id)

-- name: find_changed
-- Values that differ from their record: the first ones, and the number of all.
-- Only the few rows that differ are compared value by value.
WITH expected AS ({expected}), found AS ({found})
SELECT expected._producer_id AS producer_id, expected._sequence AS sequence_id, column_name,
       left(coalesce(wanted, 'null'), :shown) AS expected, left(coalesce(there, 'null'), :shown) AS found,
       count(*) OVER () AS counted
  FROM expected JOIN found ON {is_same} AND (ROW({expected_values}) IS DISTINCT FROM ROW({found_values}))
 CROSS JOIN LATERAL (VALUES {pairs}) AS pair (column_name, wanted, there, differs)
 WHERE differs AND {is_ours}
 ORDER BY 1, 2 LIMIT :at_most;

-- name: find_missing
-- Records without a row: the first ones, and the number of all.
-- Producers with a wrong number of rows are left out, because they are already named.
WITH expected AS ({expected}), found AS ({found})
SELECT expected._producer_id AS producer_id, expected._sequence AS sequence_id, CAST(NULL AS text) AS column_name,
       'a row' AS expected, 'none' AS found, count(*) OVER () AS counted
  FROM expected LEFT JOIN found ON {is_same}
 WHERE found.is_there IS NULL AND (expected._producer_id = ANY(CAST(:differing AS bigint[]))) IS NOT TRUE
 ORDER BY 1, 2 LIMIT :at_most;

-- name: find_surplus
-- Rows without a record: the first ones, and the number of all.
-- Producers with a wrong number of rows are left out, because they are already named.
WITH expected AS ({expected}), found AS ({found})
SELECT found._producer_id AS producer_id, found._sequence AS sequence_id, CAST(NULL AS text) AS column_name,
       'no row: no record makes it' AS expected, 'a row' AS found, count(*) OVER () AS counted
  FROM found LEFT JOIN expected ON {is_same}
 WHERE expected._sequence IS NULL AND {is_ours}
   AND (found._producer_id = ANY(CAST(:differing AS bigint[]))) IS NOT TRUE
 ORDER BY 1, 2 LIMIT :at_most;
