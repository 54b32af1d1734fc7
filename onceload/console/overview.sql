-- name: names
SELECT name FROM onceload.pipeline ORDER BY name;

-- name: loading
-- The batches that are being loaded, with their sessions, the parts that are left, and what they have committed.
SELECT under_way.*, done.commits, done.rows
  FROM (SELECT delivery.pipeline_id, delivery.batch,
               count(*) FILTER (WHERE delivery.work IS NOT NULL AND delivery.state IN ('waiting', 'held')) AS left_over,
               count(*) FILTER (WHERE delivery.state = 'staged') AS staged,
               array_agg(DISTINCT session.name) FILTER (WHERE session.lease_until > clock_timestamp()) AS sessions,
               min(delivery.offered_at) AS since
          FROM onceload.delivery LEFT JOIN onceload.session USING (session_id)
         WHERE delivery.pipeline_id = ANY(CAST(:pipeline_ids AS bigint[])) AND delivery.state IN ('waiting', 'held', 'staged')
           AND (delivery.work IS NOT NULL OR delivery.deadline_at > clock_timestamp())
         GROUP BY delivery.pipeline_id, delivery.batch) AS under_way
 CROSS JOIN LATERAL (
       SELECT count(*) AS commits, CAST(coalesce(sum(loaded), 0) AS bigint) AS rows
         FROM (SELECT ledger.loaded FROM onceload.ledger_in_force AS ledger
                WHERE ledger.pipeline_id = under_way.pipeline_id AND ledger.batch = under_way.batch
                ORDER BY ledger.position DESC LIMIT :commits_max) AS newest) AS done
 ORDER BY under_way.since;
