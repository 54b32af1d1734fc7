-- name: own_recovery
-- One recovery of a pipeline at a time; false: somebody else is at it.
SELECT pg_try_advisory_xact_lock(hashtextextended('onceload.recovery of pipeline ' || :pipeline_id, 0));

-- name: ledger_reach
-- The last position, and how many entries there are after the snapshot: as many as positions, or there is a gap.
SELECT coalesce(max(position), 0) AS position, count(*) FILTER (WHERE position > :after) AS entries
  FROM onceload.ledger WHERE pipeline_id = :pipeline_id;

-- name: hold_snapshot
-- Nobody drops it while it is read.
SELECT producers FROM onceload.snapshot WHERE pipeline_id = :pipeline_id AND position = :after FOR SHARE;

-- name: snapshot_size
SELECT count(*) FROM onceload.snapshot_producer WHERE pipeline_id = :pipeline_id AND position = :after;

-- name: rebuild_states
-- Snapshot plus ledger up to a position: the law of replay, in one statement. What a rewind took back counts as
-- consumed only if a later load brought it again.
CREATE TEMPORARY TABLE rebuilt ON COMMIT DROP AS
WITH base AS (
    SELECT producer_id, name, generation, consumed, fingerprint, size, condition
      FROM onceload.snapshot_producer WHERE pipeline_id = :pipeline_id AND position = :after
), receipts AS (
    SELECT ledger.kind, ledger_span.*
      FROM onceload.ledger_span JOIN onceload.ledger USING (pipeline_id, position)
     WHERE ledger_span.pipeline_id = :pipeline_id AND ledger_span.position > :after
       AND ledger_span.position <= :up_to
), taken_back AS (
    SELECT receipts.producer_id, receipts.position, range_agg(span) AS spans
      FROM receipts JOIN receipts AS rewind USING (producer_id) CROSS JOIN LATERAL unnest(rewind.spans) AS span
     WHERE receipts.kind = 'load' AND rewind.kind = 'rewind' AND rewind.position > receipts.position
     GROUP BY receipts.producer_id, receipts.position
), gained AS (
    SELECT producer_id, range_agg(span) AS consumed
      FROM receipts LEFT JOIN taken_back USING (producer_id, position)
     CROSS JOIN LATERAL unnest(receipts.spans - coalesce(taken_back.spans, '{}')) AS span
     WHERE kind = 'load' GROUP BY producer_id
), lost AS (
    SELECT producer_id, range_agg(span) AS consumed
      FROM receipts CROSS JOIN LATERAL unnest(spans) AS span WHERE kind = 'rewind' GROUP BY producer_id
), latest AS (
    SELECT DISTINCT ON (producer_id) producer_id, producer AS name, generation, fingerprint, size, condition
      FROM receipts WHERE kind IN ('load', 'rewind') ORDER BY producer_id, position DESC
), summed AS (
    SELECT producer_id,
           coalesce(base.consumed, '{}') - coalesce(lost.consumed, '{}') + coalesce(gained.consumed, '{}') AS consumed
      FROM base FULL JOIN latest USING (producer_id) LEFT JOIN gained USING (producer_id) LEFT JOIN lost USING (producer_id)
)
SELECT producer_id,
       coalesce(latest.name, base.name) AS name,
       coalesce(latest.generation, base.generation) AS generation,
       summed.consumed,
       CASE WHEN latest.name IS NULL THEN base.fingerprint ELSE latest.fingerprint END AS fingerprint,
       CASE WHEN latest.name IS NULL THEN base.size ELSE latest.size END AS size,
       coalesce(latest.condition, base.condition) AS condition
  FROM summed LEFT JOIN base USING (producer_id) LEFT JOIN latest USING (producer_id)
 WHERE producer_id NOT IN (SELECT producer_id FROM receipts WHERE kind = 'forget') AND NOT isempty(summed.consumed);

-- name: index_rebuilt
ALTER TABLE rebuilt ADD PRIMARY KEY (producer_id);

-- name: differing_producers
SELECT coalesce(rebuilt.name, live.name) AS name
  FROM rebuilt
  FULL JOIN (SELECT * FROM onceload.producer WHERE pipeline_id = :pipeline_id AND NOT isempty(consumed)) AS live
       USING (producer_id)
 WHERE (rebuilt.name, rebuilt.generation, rebuilt.consumed, rebuilt.fingerprint, rebuilt.size, rebuilt.condition)
       IS DISTINCT FROM (live.name, live.generation, live.consumed, live.fingerprint, live.size, live.condition)
 ORDER BY 1;

-- name: drop_unproven
-- What claims to have consumed something that neither snapshot nor ledger knows of, or sits on a name that they do.
DELETE FROM onceload.producer
 USING onceload.producer AS live
  LEFT JOIN rebuilt AS by_id ON by_id.producer_id = live.producer_id
  LEFT JOIN rebuilt AS by_name ON by_name.name = live.name AND by_name.generation = live.generation
 WHERE producer.producer_id = live.producer_id AND live.pipeline_id = :pipeline_id
   AND (by_id.producer_id IS DISTINCT FROM by_name.producer_id
        OR (by_id.producer_id IS NULL AND NOT isempty(live.consumed)));

-- name: swap_in
INSERT INTO onceload.producer (producer_id, pipeline_id, name, generation, consumed, fingerprint, size, condition)
SELECT producer_id, :pipeline_id, name, generation, consumed, fingerprint, size, condition FROM rebuilt
ON CONFLICT (producer_id) DO UPDATE
   SET name = excluded.name, generation = excluded.generation, consumed = excluded.consumed,
       fingerprint = excluded.fingerprint, size = excluded.size, condition = excluded.condition
 WHERE (producer.name, producer.generation, producer.consumed, producer.fingerprint, producer.size, producer.condition)
       IS DISTINCT FROM (excluded.name, excluded.generation, excluded.consumed, excluded.fingerprint, excluded.size,
                         excluded.condition);

-- name: forget_copies
-- Before the state is set: what they are copies of may be loaded in another way from here on, and is compared again.
UPDATE onceload.producer AS copy SET copy_of = NULL, fingerprint = NULL, size = NULL, condition = 'open'
 WHERE copy.pipeline_id = :pipeline_id AND copy.copy_of IS NOT NULL
   AND NOT EXISTS (
       SELECT FROM rebuilt JOIN onceload.producer AS live USING (producer_id)
        WHERE rebuilt.producer_id = copy.copy_of AND rebuilt.consumed = live.consumed
          AND rebuilt.fingerprint IS NOT DISTINCT FROM live.fingerprint);

-- name: go_on_after
-- New producers must not get the id of one that is back, and new commits not the position of one that is written.
-- Forgotten producers count as well, and it never goes back: others may have taken ids that they have not committed.
SELECT setval(pg_get_serial_sequence('onceload.producer', 'producer_id'), newest.id)
  FROM (SELECT greatest((SELECT max(producer_id) FROM onceload.producer),
                        (SELECT max(producer_id) FROM onceload.ledger_span)) AS id) AS newest,
       onceload.producer_producer_id_seq AS given
 WHERE newest.id >= given.last_value;

-- name: ids_of_others
-- Producer ids that the ledger knows as this pipeline's, and that another pipeline's producers have.
SELECT format('%s, whose id producer %s of pipeline %s has', rebuilt.name, producer.name, pipeline.name)
  FROM rebuilt
  JOIN onceload.producer USING (producer_id)
  JOIN onceload.pipeline USING (pipeline_id)
 WHERE producer.pipeline_id <> :pipeline_id
 ORDER BY 1 LIMIT 6;

-- name: fence_sessions
-- What waits and what is in hand was planned by a state that is no more; dead letters stay for whoever has to look.
WITH withdrawn AS (
    DELETE FROM onceload.delivery WHERE pipeline_id = :pipeline_id AND (state <> 'dead' OR parent_id IS NOT NULL)
)
UPDATE onceload.session SET epoch = epoch + 1 WHERE pipeline_id = :pipeline_id;

-- name: drop_snapshots_after
WITH dropped AS (
    DELETE FROM onceload.snapshot WHERE pipeline_id = :pipeline_id AND position > :after RETURNING position
)
DELETE FROM onceload.snapshot_producer USING dropped
 WHERE snapshot_producer.pipeline_id = :pipeline_id AND snapshot_producer.position = dropped.position;

-- name: set_pipeline
UPDATE onceload.pipeline
   SET position = :position,
       producers = (SELECT count(*) FROM onceload.producer WHERE producer.pipeline_id = :pipeline_id)
 WHERE pipeline_id = :pipeline_id;
