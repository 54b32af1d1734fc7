-- name: lost
-- The batches whose stage the server has lost. A crash or a failover empties unlogged tables down to the last byte, and
-- the proof of a stage is never empty otherwise. Only the primary has unlogged tables.
SELECT kept.delivery_id FROM onceload.delivery AS kept
 WHERE kept.stage IS NOT NULL AND NOT pg_is_in_recovery()
   AND coalesce((
       SELECT pg_relation_size(oid) FROM pg_class
        WHERE relnamespace = to_regnamespace('onceload_stage') AND relname = CAST(kept.stage || ' proof' AS name)), 0) = 0
