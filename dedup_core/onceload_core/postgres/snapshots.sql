-- name: snapshot_before
SELECT coalesce(max(position), 0) FROM onceload.snapshot WHERE pipeline_id = :pipeline_id AND position <= :position;

-- name: take_snapshot
-- Returns no row if there is already a snapshot of this position.
INSERT INTO onceload.snapshot (pipeline_id, position, producers)
SELECT :pipeline_id, :position, count(*) FROM onceload.producer
 WHERE pipeline_id = :pipeline_id AND NOT isempty(consumed)
ON CONFLICT ON CONSTRAINT snapshot_positions_have_no_twins DO NOTHING
RETURNING producers;

-- name: take_snapshot_producers
INSERT INTO onceload.snapshot_producer (pipeline_id, position, producer_id, name, generation, consumed,
                                        fingerprint, size, condition)
SELECT pipeline_id, :position, producer_id, name, generation, consumed, fingerprint, size, condition
  FROM onceload.producer WHERE pipeline_id = :pipeline_id AND NOT isempty(consumed);

-- name: drop_old_snapshots
-- All but the newest: the ledger keeps everything. Snapshots that a recovery reads are left for the next call.
WITH old AS (
    DELETE FROM onceload.snapshot
     WHERE pipeline_id = :pipeline_id AND position IN (
           SELECT position FROM onceload.snapshot
            WHERE pipeline_id = :pipeline_id AND position NOT IN (
                  SELECT position FROM onceload.snapshot WHERE pipeline_id = :pipeline_id
                   ORDER BY position DESC
                   LIMIT (SELECT snapshots_kept FROM onceload.pipeline WHERE pipeline_id = :pipeline_id))
              FOR UPDATE SKIP LOCKED)
    RETURNING position
)
DELETE FROM onceload.snapshot_producer USING old
 WHERE snapshot_producer.pipeline_id = :pipeline_id AND snapshot_producer.position = old.position;

-- name: snapshot_need
-- Input of the policy: commits and time since the last snapshot or else the first commit.
SELECT pipeline.snapshot_every_commits, pipeline.snapshot_every_s, pipeline.snapshots_kept,
       pipeline.position - coalesce(last.position, 0) AS commits_since,
       coalesce(last.taken_at, (SELECT min(committed_at) FROM onceload.ledger
                                 WHERE ledger.pipeline_id = pipeline.pipeline_id)) AS since
  FROM onceload.pipeline
  LEFT JOIN LATERAL (
       SELECT position, taken_at FROM onceload.snapshot
        WHERE snapshot.pipeline_id = pipeline.pipeline_id ORDER BY position DESC LIMIT 1) AS last ON true
 WHERE pipeline.name = :pipeline;

-- name: list_snapshots
SELECT position, producers, taken_at FROM onceload.snapshot
 WHERE pipeline_id = :pipeline_id ORDER BY position DESC;

-- name: snapshot_producers
SELECT producer_id, name, generation, CAST(consumed AS text) AS consumed, fingerprint, size, condition
  FROM onceload.snapshot_producer
 WHERE pipeline_id = :pipeline_id AND position = :position ORDER BY producer_id;
