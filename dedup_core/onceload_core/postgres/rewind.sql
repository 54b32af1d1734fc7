-- name: latest_snapshot
-- Without positions that an earlier rewind undid: their rows were deleted.
SELECT max(position) FROM onceload.snapshot
 WHERE pipeline_id = :pipeline_id AND position <= :position
   AND NOT EXISTS (
       SELECT FROM onceload.ledger AS rewind
        WHERE rewind.pipeline_id = :pipeline_id AND rewind.kind = 'rewind'
          AND rewind.rewound_to < snapshot.position AND snapshot.position < rewind.position);

-- name: rewind_over
-- A rewind that undid a position.
SELECT position, rewound_to FROM onceload.ledger
 WHERE pipeline_id = :pipeline_id AND kind = 'rewind' AND rewound_to < :to AND :to < position
 ORDER BY position DESC LIMIT 1;

-- name: no_way_back
-- The last entry after a position that cannot be undone by deleting rows.
-- There are two queries, and each has the condition on both tables. Otherwise the planner reads other entries as well.
SELECT * FROM (
    (SELECT ledger.position, ledger.kind, receipt.producer
       FROM onceload.ledger_in_force AS ledger JOIN onceload.ledger_span AS receipt USING (pipeline_id, position)
      WHERE ledger.pipeline_id = :pipeline_id AND ledger.position > :to AND receipt.position > :to
        AND ledger.kind = 'forget'
      ORDER BY ledger.position DESC, receipt.producer LIMIT 1)
    UNION ALL
    (SELECT ledger.position, ledger.kind, receipt.producer
       FROM onceload.ledger_in_force AS ledger JOIN onceload.ledger_span AS receipt USING (pipeline_id, position)
      WHERE ledger.pipeline_id = :pipeline_id AND ledger.position > :to AND receipt.position > :to
        AND ledger.kind = 'load' AND receipt.condition = 'replaced'
      ORDER BY ledger.position DESC, receipt.producer LIMIT 1)) AS last_of_each
 ORDER BY position DESC LIMIT 1;

-- name: shared_and_kept
-- The last file that became a producer of its own after the position, while the records that it shares stay loaded under
-- the other one. After a rewind it would be a new file, and the shared records would be loaded again.
SELECT ledger_span.position, ledger_span.producer, rebuilt.name AS other
  FROM onceload.ledger_in_force AS ledger JOIN onceload.ledger_span USING (pipeline_id, position)
  JOIN rebuilt ON rebuilt.producer_id = ledger_span.shares_with AND rebuilt.consumed && ledger_span.spans
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.position > :to
 ORDER BY ledger_span.position DESC, ledger_span.producer LIMIT 1;

-- name: preview
-- The numbers by the ledger alone.
SELECT count(*) AS entries, CAST(coalesce(sum(loaded), 0) AS bigint) AS rows,
       (SELECT count(*) FROM onceload.quarantine WHERE pipeline_id = :pipeline_id AND position > :to) AS quarantined,
       (SELECT count(*) FROM onceload.quarantine
         WHERE pipeline_id = :pipeline_id AND position <= :to AND settled_position > :to) AS held_again,
       (SELECT count(*) FROM onceload.message WHERE pipeline_id = :pipeline_id AND position > :to) AS message_ids
  FROM onceload.ledger_in_force
 WHERE pipeline_id = :pipeline_id AND position > :to AND kind IN ('load', 'retry', 'discard');

-- name: preview_producers
-- The producers of these commits, those with most rows first, and how many there are.
-- Only the names that are shown are looked up. The condition on the position is on both tables, so that the planner
-- reads only these entries. Do not add an upper bound: with one, the planner expects a single row, and may compare each
-- entry with each receipt.
SELECT coalesce(live.name, most.name) AS name, most.rows, most.producers
  FROM (SELECT producer_id, max(receipt.producer) AS name, CAST(sum(receipt.rows) AS bigint) AS rows,
               count(*) OVER () AS producers
          FROM onceload.ledger_in_force AS ledger JOIN onceload.ledger_span AS receipt USING (pipeline_id, position)
         WHERE ledger.pipeline_id = :pipeline_id AND ledger.position > :to AND receipt.position > :to
           AND ledger.kind IN ('load', 'retry')
         GROUP BY producer_id
         ORDER BY rows DESC, name LIMIT :at_most) AS most
  LEFT JOIN onceload.producer AS live USING (producer_id)
 ORDER BY most.rows DESC, name;

-- name: collect_going
-- From the receipts after a position, for each producer: the consumed spans, the sequence ids with rows, and the rows.
CREATE TEMPORARY TABLE going ON COMMIT DROP AS
WITH receipts AS (
    SELECT ledger.kind, ledger_span.*
      FROM onceload.ledger_span JOIN onceload.ledger_in_force AS ledger USING (pipeline_id, position)
     WHERE ledger_span.pipeline_id = :pipeline_id AND ledger_span.position > :to AND ledger.kind IN ('load', 'retry')
), covered AS (
    SELECT producer_id, range_agg(span) AS row_spans, range_agg(span) FILTER (WHERE kind = 'load') AS spans,
           sum(upper(span) - lower(span)) FILTER (WHERE kind = 'load') AS ids
      FROM receipts CROSS JOIN LATERAL unnest(spans) AS span GROUP BY producer_id
), counted AS (
    SELECT producer_id, max(producer) AS name, max(generation) AS generation, sum(rows) AS rows
      FROM receipts GROUP BY producer_id
)
SELECT producer_id, coalesce(live.name, counted.name) AS name, coalesce(live.generation, counted.generation) AS generation,
       rows, coalesce(spans, '{}') AS spans, coalesce(row_spans, '{}') AS row_spans, coalesce(ids, 0) AS ids
  -- A producer that got another name since then keeps it.
  FROM counted LEFT JOIN covered USING (producer_id) LEFT JOIN onceload.producer AS live USING (producer_id);

-- name: index_going
ALTER TABLE going ADD PRIMARY KEY (producer_id);

-- name: analyze_going
-- The target may be large, so the planner needs statistics for the join.
ANALYZE going;

-- name: make_rows_there
CREATE TEMPORARY TABLE rows_there (producer_id bigint PRIMARY KEY, rows bigint NOT NULL) ON COMMIT DROP;

-- name: empty_rows_there
TRUNCATE rows_there;

-- name: sums
-- The numbers by the entries, and the numbers found.
SELECT entries.entries, entries.quarantined, entries.loaded, going.producers, going.rows AS rows_of_receipts,
       (SELECT coalesce(sum(rows), 0) FROM rows_there) AS rows,
       (SELECT count(*) FROM onceload.quarantine WHERE pipeline_id = :pipeline_id AND position > :to) AS kept,
       (SELECT count(*) FROM onceload.quarantine
         WHERE pipeline_id = :pipeline_id AND position <= :to AND settled_position > :to) AS held_again,
       (SELECT count(*) FROM onceload.message WHERE pipeline_id = :pipeline_id AND position > :to) AS message_ids
  FROM (SELECT count(*) AS entries, coalesce(sum(quarantined), 0) AS quarantined, coalesce(sum(loaded), 0) AS loaded
          FROM onceload.ledger_in_force
         WHERE pipeline_id = :pipeline_id AND position > :to AND kind IN ('load', 'retry', 'discard')) AS entries,
       (SELECT count(*) AS producers, coalesce(sum(rows), 0) AS rows FROM going) AS going;

-- name: repeated_producers
-- Producers with overlapping receipts: their rows cannot be assigned to one receipt.
SELECT going.name
  FROM going LEFT JOIN rebuilt USING (producer_id)
 WHERE going.spans && coalesce(rebuilt.consumed, '{}')
    OR going.ids <> (SELECT coalesce(sum(upper(span) - lower(span)), 0) FROM unnest(going.spans) AS span)
 ORDER BY going.name LIMIT 6;

-- name: differing_elsewhere
-- Producers without entries since then whose state differs anyway.
SELECT coalesce(rebuilt.name, live.name) AS name
  FROM rebuilt
  FULL JOIN (SELECT * FROM onceload.producer WHERE pipeline_id = :pipeline_id AND NOT isempty(consumed)) AS live
       USING (producer_id)
  LEFT JOIN going USING (producer_id)
 WHERE going.producer_id IS NULL
   AND (rebuilt.name, rebuilt.generation, rebuilt.consumed, rebuilt.fingerprint, rebuilt.size, rebuilt.condition)
       IS DISTINCT FROM (live.name, live.generation, live.consumed, live.fingerprint, live.size, live.condition)
 ORDER BY 1;

-- name: forgotten_messages
-- The kept commits whose business ids are no longer remembered, although rewound commits may have found duplicates by
-- them: these would be loaded again. All ids of a commit are forgotten on the same day.
WITH window_now AS (
    SELECT message_keep_days AS days, CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) - message_keep_days AS first
      FROM onceload.pipeline WHERE pipeline_id = :pipeline_id AND message_keep_days > 0
), entries AS (
    SELECT position, ledger.loaded, ledger.duplicate, CAST(ledger.committed_at AT TIME ZONE 'UTC' AS date) AS day
      FROM onceload.ledger_in_force JOIN onceload.ledger USING (pipeline_id, position)
      JOIN onceload.declaration USING (pipeline_id, version)
     WHERE pipeline_id = :pipeline_id AND ledger.kind IN ('load', 'retry')
       AND declaration.rest ->> 'message_id.keep' <> ''
), rewound AS (
    SELECT sum(duplicate) AS duplicates, min(day) AS first_day FROM entries WHERE position > :to AND duplicate > 0
)
SELECT rewound.duplicates, count(*) AS commits, max(kept.position) AS last
  FROM window_now CROSS JOIN rewound
  JOIN entries AS kept ON kept.position <= :to AND kept.loaded > 0 AND kept.day >= rewound.first_day - window_now.days
 WHERE NOT EXISTS (
       SELECT FROM onceload.message
        WHERE message.pipeline_id = :pipeline_id AND message.position = kept.position
          AND message.day >= window_now.first)
 GROUP BY rewound.duplicates;

-- name: differing_rows
-- Producers with more or fewer rows than their receipts count.
SELECT going.name, going.rows AS expected, coalesce(rows_there.rows, 0) AS found
  FROM going LEFT JOIN rows_there USING (producer_id)
 WHERE going.rows <> coalesce(rows_there.rows, 0) ORDER BY going.name LIMIT 100;

-- name: rows_left
SELECT going.name, 0 AS expected, rows_there.rows AS found
  FROM rows_there JOIN going USING (producer_id) ORDER BY going.name LIMIT 100;

-- name: drop_quarantined
DELETE FROM onceload.quarantine WHERE pipeline_id = :pipeline_id AND position > :to;

-- name: hold_again
UPDATE onceload.quarantine SET state = 'held', settled_position = NULL
 WHERE pipeline_id = :pipeline_id AND settled_position > :to;

-- name: drop_messages
DELETE FROM onceload.message WHERE pipeline_id = :pipeline_id AND position > :to;

-- name: drop_later_generations
-- Generations that began after the position: files are compared with the generation before again.
-- A copy of a file that stays loaded remains a copy, whenever it was found.
DELETE FROM onceload.producer USING going
 WHERE producer.producer_id = going.producer_id AND producer.pipeline_id = :pipeline_id AND producer.generation > 1
   AND producer.copy_of IS NULL
   AND NOT EXISTS (SELECT FROM rebuilt WHERE rebuilt.producer_id = producer.producer_id);

-- name: set_back
UPDATE onceload.producer
   SET consumed = coalesce(rebuilt.consumed, '{}'), fingerprint = rebuilt.fingerprint, size = rebuilt.size,
       condition = coalesce(rebuilt.condition, 'open'), advanced_at = clock_timestamp()
  FROM going LEFT JOIN rebuilt USING (producer_id)
 WHERE producer.producer_id = going.producer_id AND producer.pipeline_id = :pipeline_id AND producer.copy_of IS NULL;

-- name: keep_names
-- Live producers keep their current names.
UPDATE rebuilt SET name = going.name, generation = going.generation FROM going WHERE going.producer_id = rebuilt.producer_id;

-- name: record_rewind
INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, rewound_to)
VALUES (:pipeline_id, :position, 'rewind', :batch, :to);

-- name: record_receipts
-- The undone spans, the deleted rows, and the restored state.
INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows,
                                  fingerprint, size, condition)
SELECT :pipeline_id, :position, producer_id, going.name, going.generation, going.spans, coalesce(rows_there.rows, 0),
       rebuilt.fingerprint, rebuilt.size, coalesce(rebuilt.condition, 'open')
  FROM going LEFT JOIN rebuilt USING (producer_id) LEFT JOIN rows_there USING (producer_id);
