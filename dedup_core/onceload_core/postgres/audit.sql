-- name: only_read
SET TRANSACTION READ ONLY;

-- name: take_time
-- Files are read while the view is open. The server must not take this for a worker that hangs.
SET LOCAL idle_in_transaction_session_timeout = 0;

-- name: export
-- A name of this view, by which other transactions share it as long as this one is open.
SELECT pg_export_snapshot();

-- name: share
-- Has to come before all other statements.
SET TRANSACTION SNAPSHOT :name;

-- name: work_alone
-- Other workers share the work already, so that more processes of the server would only take their time.
SET LOCAL max_parallel_workers_per_gather = 0;

-- name: take_memory
SET LOCAL work_mem = '256MB';

-- name: rows_that_differ
-- Each receipt whose rows are not all in the target exactly once, and the rows that no receipt covers, in one pass.
-- Overlapping receipts of a producer, as at_least_once allows, do not determine how often a row should exist.
-- Receipts that a later generation replaced or a rewind undid are ignored: that commit deleted their rows.
-- The version of the pipeline file at the time of a commit decides whether a record may become several rows, and
-- whether its rows have a lineage.
WITH version AS MATERIALIZED (
    SELECT version, coalesce(rest ->> 'target' ~ :without_lineage, false) AS is_without_lineage,
           coalesce(rest ->> 'transform', '') = '' AS is_one_row_each
      FROM onceload.declaration WHERE pipeline_id = :pipeline_id
), retried AS (
    -- Most retries make one row of each record of a file. Those of records that name their producers make none of the
    -- file, and a transform makes any number of all records that are retried at once.
    SELECT record.producer_id, record.position, record.settled_position, settled.rows,
           coalesce(version.is_one_row_each, true) AS is_one_each
      FROM onceload.quarantine AS record
      JOIN onceload.ledger AS entry
           ON entry.pipeline_id = record.pipeline_id AND entry.position = record.settled_position
      JOIN onceload.ledger_span AS settled
           ON settled.pipeline_id = entry.pipeline_id AND settled.position = entry.position
          AND settled.producer_id = record.producer_id
      LEFT JOIN version ON version.version = entry.version
     WHERE record.pipeline_id = :pipeline_id AND record.state = 'retried' AND version.is_without_lineage IS NOT TRUE
       AND settled.rows > 0
), together AS (
    -- The rows of these retries cannot be assigned to the commits that quarantined their records: these count together.
    SELECT DISTINCT producer_id, position AS of_position, min(position) OVER (PARTITION BY producer_id) AS position
      FROM retried WHERE NOT is_one_each
), receipt AS (
    SELECT ledger_span.producer_id, coalesce(together.position, ledger_span.position) AS position, ledger_span.spans,
           CASE WHEN version.is_without_lineage THEN 0 ELSE ledger_span.rows END AS rows,
           coalesce(version.is_one_row_each, true) AS is_one_row_each
      FROM onceload.ledger_span JOIN onceload.ledger AS entry USING (pipeline_id, position)
      LEFT JOIN version ON version.version = entry.version
      LEFT JOIN together
           ON together.producer_id = ledger_span.producer_id AND together.of_position = ledger_span.position
     WHERE ledger_span.pipeline_id = :pipeline_id AND entry.kind = 'load'
       -- The view of the entries in force has no version; joined with the ledger, it is slow without statistics.
       AND NOT EXISTS (SELECT FROM onceload.ledger AS rewind
                        WHERE rewind.pipeline_id = entry.pipeline_id AND rewind.kind = 'rewind'
                          AND rewind.position > entry.position AND rewind.rewound_to < entry.position)
       AND ledger_span.producer_id NOT IN (
           SELECT producer_id FROM onceload.ledger_span WHERE pipeline_id = :pipeline_id AND condition = 'replaced')
), span AS (
    SELECT receipt.producer_id, receipt.position, lower(part) AS first, upper(part) AS "end",
           lower(part) < lag(upper(part)) OVER (PARTITION BY receipt.producer_id ORDER BY lower(part)) AS is_repeated
      FROM receipt, unnest(receipt.spans) AS part
), edge AS (
    SELECT producer_id, coalesce(bool_or(is_repeated), false) AS is_repeated,
           array_agg(first ORDER BY first) AS firsts, array_agg("end" ORDER BY first) AS ends,
           array_agg(position ORDER BY first) AS positions
      FROM span GROUP BY producer_id
), placed AS (
    SELECT there._producer_id AS producer_id, there._sequence AS sequence_id, edge.ends, edge.positions,
           width_bucket(there._sequence, edge.firsts) AS place
      FROM {table} AS there LEFT JOIN edge ON edge.producer_id = there._producer_id
     WHERE edge.is_repeated IS NOT TRUE
), found AS (
    SELECT producer_id, CASE WHEN place > 0 AND sequence_id < ends[place] THEN positions[place] END AS position,
           count(*) AS rows, count(DISTINCT sequence_id) AS sequences
      FROM placed GROUP BY 1, 2
), promised AS (
    SELECT producer_id, position, rows, is_one_row_each FROM receipt
    UNION ALL
    SELECT retried.producer_id, coalesce(together.position, retried.position), 1, true
      FROM retried LEFT JOIN together
           ON together.producer_id = retried.producer_id AND together.of_position = retried.position
     WHERE is_one_each
    UNION ALL
    SELECT made.producer_id, together.position, made.rows, false
      FROM (SELECT DISTINCT producer_id, settled_position, rows FROM retried WHERE NOT is_one_each) AS made
      JOIN (SELECT DISTINCT producer_id, position FROM together) AS together USING (producer_id)
), expected AS (
    SELECT producer_id, position, CAST(sum(rows) AS bigint) AS rows, bool_and(is_one_row_each) AS is_one_row_each
      FROM promised JOIN edge USING (producer_id) WHERE NOT edge.is_repeated GROUP BY 1, 2
), differing AS (
    SELECT * FROM (
        -- A merge may have replaced rows of earlier commits. So none of those is missing, but some may be surplus.
        SELECT producer_id, position,
               CASE WHEN position > :merged THEN coalesce(expected.rows, 0)
                    ELSE least(coalesce(expected.rows, 0),
                               coalesce(CASE WHEN is_one_row_each THEN found.sequences ELSE found.rows END, 0))
                    END AS expected,
               coalesce(found.rows, 0) AS rows, coalesce(found.sequences, 0) AS sequences, is_one_row_each
          FROM expected FULL JOIN (SELECT * FROM found WHERE position IS NOT NULL) AS found
               USING (producer_id, position)) AS compared
     WHERE expected <> rows OR (is_one_row_each AND rows <> sequences)
    UNION ALL
    -- Rows of another pipeline that shares the table are checked with its own receipts.
    SELECT producer_id, NULL, 0, rows, sequences, true
      FROM found
     WHERE position IS NULL
       AND NOT EXISTS (SELECT FROM onceload.producer AS other
                        WHERE other.producer_id = found.producer_id AND other.pipeline_id <> :pipeline_id)
       AND NOT EXISTS (SELECT FROM onceload.ledger_span AS other
                        WHERE other.producer_id = found.producer_id AND other.pipeline_id <> :pipeline_id)
)
SELECT total.rows AS rows_expected, total.repeated, differing.*
  FROM (SELECT (SELECT coalesce(sum(rows), 0) FROM expected) AS rows,
               (SELECT count(*) FROM edge WHERE is_repeated) AS repeated) AS total
  LEFT JOIN differing ON true
 ORDER BY differing.producer_id, differing.position;

-- name: rows_of_no_record
-- The rows without a producer that should be in a table, by the commits in force: those that a transform made of several
-- records, and those of versions without lineage. Only their number is known, and in some cases only its limits: such
-- rows of other pipelines look alike and may be gone, and so may those of a replaced file and those before a merge.
WITH version AS MATERIALIZED (
    SELECT pipeline_id, version, coalesce(rest ->> 'transform', '') <> '' AS is_transformed,
           coalesce(rest ->> 'target' ~ :without_lineage, false) AS is_without_lineage,
           coalesce(rest ->> 'target' LIKE 'merge, %', false) AS is_merge,
           pipeline_id = :pipeline_id AS is_ours
      FROM onceload.declaration
     -- The table may have had other names.
     WHERE pipeline_id = :pipeline_id OR terms ->> 'target.table' = :table
        OR terms ->> 'target.table' IN (SELECT own.terms ->> 'target.table' FROM onceload.declaration AS own
                                         WHERE own.pipeline_id = :pipeline_id)
), entry AS MATERIALIZED (
    SELECT version.*, ledger.position, ledger.loaded
      FROM version JOIN onceload.ledger USING (pipeline_id, version)
     WHERE ledger.kind IN ('load', 'retry') AND ledger.loaded > 0
       AND (version.is_transformed OR version.is_without_lineage OR version.is_merge)
       AND NOT EXISTS (SELECT FROM onceload.ledger AS rewind
                        WHERE rewind.pipeline_id = ledger.pipeline_id AND rewind.kind = 'rewind'
                          AND rewind.position > ledger.position AND rewind.rewound_to < ledger.position)
), made AS (
    -- A replacement deletes only rows that name their producer. The others stay, and the receipts of files count those
    -- that no transform made.
    SELECT is_ours, is_merge, position, is_ours AND NOT (is_transformed AND is_replaced) AS is_certain,
           greatest(0, CASE WHEN NOT is_transformed AND NOT is_without_lineage THEN 0
                            WHEN is_transformed AND is_without_lineage THEN loaded
                            WHEN is_transformed THEN loaded - receipts.rows
                            ELSE loaded - receipts.rows_replaced END) AS rows
      FROM entry CROSS JOIN LATERAL (
           SELECT coalesce(sum(rows), 0) AS rows,
                  coalesce(sum(rows) FILTER (WHERE is_replaced), 0) AS rows_replaced,
                  coalesce(bool_or(is_replaced), false) AS is_replaced
             FROM (SELECT rows, NOT isempty(spans) AND producer_id IN (
                          SELECT producer_id FROM onceload.ledger_span WHERE condition = 'replaced') AS is_replaced
                     FROM onceload.ledger_span
                    WHERE ledger_span.pipeline_id = entry.pipeline_id AND ledger_span.position = entry.position
                  ) AS receipt
           ) AS receipts
)
SELECT CASE WHEN bool_or(is_merge) THEN 0
            ELSE CAST(coalesce(sum(rows) FILTER (WHERE is_certain), 0) AS bigint) END AS at_least,
       CAST(coalesce(sum(rows), 0) AS bigint) AS at_most,
       CAST(coalesce(sum(rows) FILTER (WHERE is_ours), 0) AS bigint) AS ours,
       coalesce(bool_or(is_ours AND NOT is_certain), false) AS is_replaced,
       CASE WHEN bool_or(is_merge AND NOT is_ours) THEN 9223372036854775807
            ELSE coalesce(max(position) FILTER (WHERE is_merge), 0) END AS merged
  FROM made;

-- name: count_without_producer
SELECT count(*) FROM {table} WHERE _producer_id IS NULL;

-- name: loaded_again
-- Records that a commit consumed although an earlier one had, and although its version of the pipeline file did not
-- allow it: by producer, with the positions of both. Only damaged state lets such a commit pass.
WITH receipt AS MATERIALIZED (
    SELECT ledger_span.producer_id, ledger_span.position, ledger_span.producer AS name, ledger_span.spans
      FROM onceload.ledger_span JOIN onceload.ledger_in_force AS ledger USING (pipeline_id, position)
     WHERE ledger_span.pipeline_id = :pipeline_id AND ledger.kind = 'load'
       AND ledger_span.producer_id NOT IN (
           SELECT producer_id FROM onceload.ledger_span WHERE pipeline_id = :pipeline_id AND condition = 'replaced')
), repeated AS (
    SELECT producer_id FROM receipt CROSS JOIN LATERAL unnest(spans) AS part GROUP BY producer_id
    HAVING sum(upper(part) - lower(part))
           <> (SELECT sum(upper(each) - lower(each)) FROM unnest(range_agg(part)) AS each)
), exact AS (
    SELECT ledger.position
      FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id)
      LEFT JOIN onceload.declaration AS declared
           ON declared.pipeline_id = ledger.pipeline_id AND declared.version = ledger.version
     WHERE ledger.pipeline_id = :pipeline_id
       AND coalesce(declared.rest ->> 'guarantee', pipeline.guarantee, '') <> 'at_least_once'
)
SELECT max(later.name) AS name, CAST(range_agg(part) AS text) AS spans, min(earlier.position) AS first_position,
       min(later.position) AS again_position
  FROM repeated JOIN receipt AS later USING (producer_id) JOIN exact USING (position)
  JOIN receipt AS earlier ON earlier.producer_id = later.producer_id AND earlier.position < later.position
   AND earlier.spans && later.spans
 CROSS JOIN LATERAL unnest(earlier.spans * later.spans) AS part
 GROUP BY later.producer_id ORDER BY 1;

-- name: receipt_at
SELECT position, producer_id, producer, generation, CAST(spans AS text) AS spans, rows, digest, fingerprint, size, condition
  FROM onceload.ledger_span
 WHERE pipeline_id = :pipeline_id AND position = :position AND producer_id = :producer_id;

-- name: spans_of
-- The spans in the receipts of a producer, none if a later generation replaced it.
SELECT CAST(receipt.spans AS text) AS spans
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger_in_force AS ledger USING (pipeline_id, position)
 WHERE receipt.pipeline_id = :pipeline_id AND receipt.producer_id = :producer_id AND ledger.kind = 'load'
   AND NOT EXISTS (
       SELECT FROM onceload.ledger_span AS last
        WHERE last.pipeline_id = :pipeline_id AND last.producer_id = :producer_id AND last.condition = 'replaced');

-- name: open_spans
SELECT delivery_span.producer_id, producer.name, CAST(delivery_span.spans AS text) AS spans, delivery_id, delivery.state
  FROM onceload.claim
  JOIN onceload.delivery USING (delivery_id)
  JOIN onceload.delivery_span USING (delivery_id)
  JOIN onceload.producer USING (producer_id)
 WHERE claim.pipeline_id = :pipeline_id
 ORDER BY delivery_id;

-- name: producer_name
SELECT producer AS name FROM onceload.ledger_span WHERE pipeline_id = :pipeline_id AND producer_id = :producer_id
UNION
SELECT name FROM onceload.producer WHERE pipeline_id = :pipeline_id AND producer_id = :producer_id
 LIMIT 1;

-- name: sequences_within
SELECT _sequence FROM {table}
 WHERE _producer_id = :producer_id AND CAST(:spans AS int8multirange) @> _sequence ORDER BY _sequence;

-- name: sequences_outside
SELECT _sequence FROM {table}
 WHERE _producer_id IS NOT DISTINCT FROM CAST(:producer_id AS bigint)
   AND (CAST(:spans AS int8multirange) @> _sequence) IS NOT TRUE
 ORDER BY _sequence LIMIT :at_most;

-- name: quarantined_ids
SELECT sequence_id, state = 'retried' AS is_retried FROM onceload.quarantine
 WHERE producer_id = :producer_id AND CAST(:spans AS int8multirange) @> sequence_id ORDER BY sequence_id;

-- name: quarantine_that_differs
-- Entries with missing quarantined records. A record counts only inside the spans that its entry consumed.
SELECT ledger.position, ledger.batch, ledger.quarantined AS expected, coalesce(kept.records, 0) AS found
  FROM onceload.ledger_in_force AS ledger
  LEFT JOIN (
       SELECT record.position, count(*) AS records
         FROM onceload.quarantine AS record
         JOIN onceload.ledger_span AS receipt USING (pipeline_id, position, producer_id)
        WHERE record.pipeline_id = :pipeline_id AND receipt.spans @> record.sequence_id
        GROUP BY record.position) AS kept USING (position)
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.kind = 'load' AND ledger.quarantined <> coalesce(kept.records, 0)
 ORDER BY ledger.position;

-- name: quarantined_outside
-- Quarantined records that no receipt covers.
SELECT record.producer_id, record.sequence_id, record.position
  FROM onceload.quarantine AS record
  LEFT JOIN onceload.ledger_span AS receipt USING (pipeline_id, position, producer_id)
 WHERE record.pipeline_id = :pipeline_id AND (receipt.spans @> record.sequence_id) IS NOT TRUE
 ORDER BY record.position, record.producer_id, record.sequence_id;

-- name: files
-- The bytes read of each file up to a position. The ledger is append-only, so the result does not change later, except
-- if the file gets a new generation or is rewound.
SELECT receipt.producer_id, coalesce(live.name, max(receipt.producer)) AS name,
       coalesce(live.generation, max(receipt.generation)) AS generation,
       -- As last recorded: content that continues under another name may be packed in another way.
       (array_agg(receipt.size ORDER BY receipt.position DESC))[1] AS size,
       coalesce(string_agg(receipt.digest, CAST('' AS bytea) ORDER BY receipt.position), '') AS digests,
       array_agg(CAST(receipt.spans AS text) ORDER BY receipt.position) AS spans,
       array_agg(receipt.position ORDER BY receipt.position) AS positions,
       array_agg(receipt.rows ORDER BY receipt.position) AS rows,
       bool_or(receipt.condition = 'replaced') AS is_replaced,
       NOT EXISTS (SELECT FROM onceload.producer AS later
                    WHERE later.pipeline_id = :pipeline_id AND later.name = coalesce(live.name, max(receipt.producer))
                      AND later.generation > coalesce(live.generation, max(receipt.generation))
                      -- A generation that was registered but never used does not count.
                      AND NOT (isempty(later.consumed) AND later.fingerprint IS NULL)) AS is_latest
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger_in_force AS ledger USING (pipeline_id, position)
  -- A producer may have another name now than in its first receipts.
  LEFT JOIN onceload.producer AS live ON live.producer_id = receipt.producer_id
 WHERE receipt.pipeline_id = :pipeline_id AND receipt.position <= :position AND receipt.producer_id > :after
   AND ledger.kind = 'load'
 GROUP BY receipt.producer_id, live.name, live.generation
-- A compressed file that was read to its end without consuming anything has a size and no digest. So has the receipt
-- of a copy, which is compared with its original instead.
HAVING sum(length(receipt.digest)) > 0
    OR (array_agg(receipt.size IS NOT NULL AND receipt.shares_with IS NULL ORDER BY receipt.position DESC))[1]
 ORDER BY receipt.producer_id LIMIT :at_most;

-- name: copies
-- The files that are copies of some producers, without those that have a later generation.
SELECT copy.copy_of, copy.producer_id, copy.name, copy.generation, copy.fingerprint, copy.size
  FROM onceload.producer AS copy
 WHERE copy.pipeline_id = :pipeline_id AND copy.copy_of = ANY(CAST(:producer_ids AS bigint[]))
   AND NOT EXISTS (SELECT FROM onceload.producer AS later
                    WHERE later.pipeline_id = :pipeline_id AND later.name = copy.name
                      AND later.generation > copy.generation
                      AND NOT (isempty(later.consumed) AND later.fingerprint IS NULL))
 ORDER BY copy.producer_id;

-- name: declarations
SELECT version, terms, rest FROM onceload.declaration WHERE pipeline_id = :pipeline_id;

-- name: positions_of_other_versions
SELECT position FROM onceload.ledger
 WHERE pipeline_id = :pipeline_id AND kind = 'load' AND version <> ALL (CAST(:versions AS integer[]));

-- name: columns_of
-- No row: the table does not exist.
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped;
