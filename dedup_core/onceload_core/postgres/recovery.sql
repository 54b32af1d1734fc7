-- name: own_recovery
-- One recovery of a pipeline at a time. False: another one is running.
SELECT pg_try_advisory_xact_lock(hashtextextended('onceload.recovery of pipeline ' || :pipeline_id, 0));

-- name: drop_unproven
-- Producers with consumed spans that neither snapshot nor ledger has, or with a name that belongs to another producer.
DELETE FROM onceload.producer
 USING onceload.producer AS live
  LEFT JOIN rebuilt AS by_id ON by_id.producer_id = live.producer_id
  LEFT JOIN rebuilt AS by_name ON by_name.name = live.name AND by_name.generation = live.generation
 WHERE producer.producer_id = live.producer_id AND live.pipeline_id = :pipeline_id
   AND (by_id.producer_id IS DISTINCT FROM by_name.producer_id
        OR (by_id.producer_id IS NULL AND NOT isempty(live.consumed)));

-- name: swap_in
INSERT INTO onceload.producer (producer_id, pipeline_id, name, generation, consumed, fingerprint, size, condition, copy_of)
SELECT producer_id, :pipeline_id, name, generation, consumed, fingerprint, size, condition, copy_of FROM rebuilt
ON CONFLICT (producer_id) DO UPDATE
   SET name = excluded.name, generation = excluded.generation, consumed = excluded.consumed,
       fingerprint = excluded.fingerprint, size = excluded.size, condition = excluded.condition, copy_of = excluded.copy_of
 WHERE (producer.name, producer.generation, producer.consumed, producer.fingerprint, producer.size, producer.condition,
        producer.copy_of)
       IS DISTINCT FROM (excluded.name, excluded.generation, excluded.consumed, excluded.fingerprint, excluded.size,
                         excluded.condition, excluded.copy_of);

-- name: forget_copies
-- Before the state is set: their originals may be loaded differently from here on, so copies are compared again.
UPDATE onceload.producer AS copy SET copy_of = NULL, fingerprint = NULL, size = NULL, condition = 'open'
 WHERE copy.pipeline_id = :pipeline_id AND copy.copy_of IS NOT NULL
   AND NOT EXISTS (
       SELECT FROM rebuilt JOIN onceload.producer AS live USING (producer_id)
        WHERE rebuilt.producer_id = copy.copy_of AND rebuilt.consumed = live.consumed
          AND rebuilt.fingerprint IS NOT DISTINCT FROM live.fingerprint);

-- name: go_on_after
-- New producers must not get the id of a restored one. Forgotten producers count too.
-- The sequence never goes back: other transactions may hold ids that are not committed yet.
SELECT setval(pg_get_serial_sequence('onceload.producer', 'producer_id'), newest.id)
  FROM (SELECT greatest((SELECT max(producer_id) FROM onceload.producer),
                        (SELECT max(producer_id) FROM onceload.ledger_span)) AS id) AS newest,
       onceload.producer_producer_id_seq AS given
 WHERE newest.id >= given.last_value;

-- name: ids_of_others
-- Producer ids of this pipeline by its ledger that belong to another pipeline's producers.
SELECT format('%s, whose id producer %s of pipeline %s has', rebuilt.name, producer.name, pipeline.name)
  FROM rebuilt
  JOIN onceload.producer USING (producer_id)
  JOIN onceload.pipeline USING (pipeline_id)
 WHERE producer.pipeline_id <> :pipeline_id
 ORDER BY 1 LIMIT 6;

-- name: fence_sessions
-- Waiting and held deliveries were planned with a state that no longer exists. Dead letters stay for inspection.
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
