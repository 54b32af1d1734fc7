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
-- A part of statements: the rows of the target that the records brought.
-- Rows without a sequence id are in the last range of their file.
SELECT {columns}, {lineage}, true AS is_there FROM {table} AS target
 WHERE EXISTS (
       SELECT FROM unnest(CAST(:taken AS bigint[]), CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]))
                AS taken (producer_id, first, last)
        WHERE taken.producer_id = target._producer_id
          AND coalesce(target._sequence, :sequence_end) BETWEEN taken.first AND taken.last)

-- name: names
-- A part of statements: the producers that records name, also those that were forgotten.
SELECT producer_id, name FROM onceload.producer WHERE pipeline_id = :pipeline_id AND fingerprint IS NULL
UNION
SELECT receipt.producer_id, receipt.producer
  FROM onceload.ledger JOIN onceload.ledger_span AS receipt USING (pipeline_id, position)
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.kind = 'forget' AND receipt.fingerprint IS NULL

-- name: named_records
-- A part of statements: the records that were read again, by the producer and the sequence id that they name.
SELECT {values}, ({prefix} || CAST({called} AS text)) COLLATE pg_catalog."C" AS called,
       CAST({sequence} AS bigint) AS sequence_id, taken._position, taken._producer_id AS of_file, taken._sequence AS in_file
  FROM ({records}) AS taken

-- name: named_rows
-- A part of statements: the rows of the target that such records brought.
SELECT {values}, names.name COLLATE pg_catalog."C" AS called, there._producer_id, there._sequence
  FROM {table} AS there JOIN names ON names.producer_id = there._producer_id

-- name: count_named
WITH names AS ({names}), found AS ({found}) SELECT count(*) FROM found;

-- name: find_named
-- Rows that equal no record of their producer and sequence id: the first ones, and the number of all, with and without
-- such a record. Only the few rows that are named are compared value by value, with the record that came first.
WITH names AS ({names}), found AS ({found}), expected AS MATERIALIZED ({expected}),
known AS (SELECT DISTINCT called, sequence_id FROM expected), wrong AS MATERIALIZED (
    SELECT found.*, known.called IS NOT NULL AS is_known
      FROM found LEFT JOIN known ON known.called = found.called AND known.sequence_id = found._sequence
     WHERE NOT EXISTS (
           SELECT FROM expected
            WHERE expected.called = found.called AND expected.sequence_id = found._sequence
              AND (ROW({expected_values}) IS NOT DISTINCT FROM ROW({found_values})))
       AND {is_ours}
)
SELECT wrong._producer_id AS producer_id, wrong._sequence AS sequence_id, wrong.is_known, wrong.counted, column_name,
       CASE WHEN is_known THEN left(coalesce(wanted, 'null'), :shown) ELSE 'no row: no record makes it' END AS expected,
       CASE WHEN is_known THEN left(coalesce(there, 'null'), :shown) ELSE 'a row' END AS found
  FROM (SELECT *, count(*) OVER (PARTITION BY is_known) AS counted,
               row_number() OVER (PARTITION BY is_known ORDER BY _producer_id, _sequence) AS place
          FROM wrong) AS wrong
  LEFT JOIN LATERAL (
       SELECT * FROM expected
        WHERE expected.called = wrong.called AND expected.sequence_id = wrong._sequence
        ORDER BY _position, of_file, in_file LIMIT 1) AS record ON true
  LEFT JOIN LATERAL (VALUES {pairs}) AS pair (column_name, wanted, there, differs) ON wrong.is_known AND differs
 WHERE wrong.place <= :at_most
 ORDER BY 1, 2, 5;

-- name: is_ours
-- A part of statements: excludes rows that prove nothing: of no record, merged from changed files, retried, or of
-- another pipeline.
{has_record} AND (found._producer_id = ANY(CAST(:left_out AS bigint[]))) IS NOT TRUE
 AND NOT EXISTS (SELECT FROM onceload.quarantine AS record WHERE record.state = 'retried'
                    AND record.producer_id = found._producer_id AND record.sequence_id = found._sequence)
 -- The rows of retried records that name their producers are in the entry before that of the retry.
 AND NOT EXISTS (SELECT FROM onceload.ledger_span AS receipt
                   JOIN onceload.ledger AS entry USING (pipeline_id, position)
                   JOIN onceload.ledger AS retry ON retry.pipeline_id = entry.pipeline_id
                    AND retry.position = entry.position + 1 AND retry.kind = 'retry'
                    AND (retry.session, retry.epoch) = (entry.session, entry.epoch)
                  WHERE receipt.pipeline_id = :pipeline_id AND receipt.producer_id = found._producer_id
                    AND receipt.spans @> found._sequence)
 AND NOT EXISTS (SELECT FROM onceload.producer AS other
                  WHERE other.producer_id = found._producer_id AND other.pipeline_id <> :pipeline_id)

-- name: find_changed
-- Values that differ from their record: the first ones, and the number of all.
-- Only the few rows that differ are compared value by value.
WITH expected AS ({expected}), found AS ({found})
SELECT expected._producer_id AS producer_id, expected._sequence AS sequence_id,
       column_name COLLATE pg_catalog."C" AS column_name,
       left(coalesce(wanted, 'null'), :shown) AS expected, left(coalesce(there, 'null'), :shown) AS found,
       count(*) OVER () AS counted
  FROM expected JOIN found ON {is_same} AND (ROW({expected_values}) IS DISTINCT FROM ROW({found_values}))
 CROSS JOIN LATERAL (VALUES {pairs}) AS pair (column_name, wanted, there, differs)
 WHERE differs AND {is_ours}
 ORDER BY 1, 2, 3 LIMIT :at_most;

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
