-- name: names
SELECT name FROM onceload.pipeline ORDER BY name;

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
