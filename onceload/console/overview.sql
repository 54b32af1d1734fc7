-- name: names
SELECT name FROM onceload.pipeline ORDER BY name;

-- name: hours
-- The commits of some pipelines since a time, by hour. Positions are in the order of time, so the first of them is
-- found by halving: the ledger has no index by time.
WITH RECURSIVE halving AS (
    SELECT pipeline_id, CAST(0 AS bigint) AS before, position + 1 AS first
      FROM onceload.pipeline WHERE pipeline_id = ANY(CAST(:pipeline_ids AS bigint[]))
    UNION ALL
    SELECT half.pipeline_id,
           CASE WHEN entry.committed_at >= :since THEN half.before ELSE half.middle END,
           CASE WHEN entry.committed_at >= :since THEN half.middle ELSE half.first END
      FROM (SELECT *, (before + first) / 2 AS middle FROM halving WHERE first - before > 1) AS half
      LEFT JOIN onceload.ledger AS entry ON entry.pipeline_id = half.pipeline_id AND entry.position = half.middle)
SELECT ledger.pipeline_id, CAST(floor(extract(epoch FROM ledger.committed_at) / 3600) AS bigint) AS hour,
       count(*) AS commits, CAST(sum(ledger.loaded) AS bigint) AS loaded,
       CAST(sum(ledger.duplicate) AS bigint) AS duplicate, CAST(sum(ledger.quarantined) AS bigint) AS quarantined
  FROM halving
  JOIN onceload.ledger ON ledger.pipeline_id = halving.pipeline_id AND ledger.position >= halving.first
       -- The clock of a server that took over may be behind.
       AND ledger.committed_at >= :since
 WHERE halving.first - halving.before = 1
 GROUP BY ledger.pipeline_id, hour;

-- name: loading
-- The batches that are being loaded, with their sessions and the parts that are left.
SELECT delivery.pipeline_id, delivery.batch,
       count(*) FILTER (WHERE delivery.work IS NOT NULL AND delivery.state IN ('waiting', 'held')) AS left_over,
       count(*) FILTER (WHERE delivery.state = 'staged') AS staged,
       array_agg(DISTINCT session.name) FILTER (WHERE session.lease_until > clock_timestamp()) AS sessions,
       min(delivery.offered_at) AS since
  FROM onceload.delivery LEFT JOIN onceload.session USING (session_id)
 WHERE delivery.pipeline_id = ANY(CAST(:pipeline_ids AS bigint[])) AND delivery.state IN ('waiting', 'held', 'staged')
   AND (delivery.work IS NOT NULL OR delivery.deadline_at > clock_timestamp())
 GROUP BY delivery.pipeline_id, delivery.batch
 ORDER BY since;
