-- name: since
-- The sums of commits after a position, by pipeline and kind. Only new entries are read.
SELECT pipeline.pipeline_id, entry.*
  FROM onceload.pipeline
  LEFT JOIN unnest(CAST(:pipeline_ids AS bigint[]), CAST(:positions AS bigint[])) AS seen (pipeline_id, position)
         ON seen.pipeline_id = pipeline.pipeline_id
 CROSS JOIN LATERAL (
       SELECT ledger.kind, count(*) AS commits, sum(ledger.loaded) AS loaded, sum(ledger.duplicate) AS duplicate,
              sum(ledger.quarantined) AS quarantined, sum(ledger.filtered) AS filtered, sum(ledger.bytes) AS bytes,
              max(ledger.position) AS position
         FROM onceload.ledger
        WHERE ledger.pipeline_id = pipeline.pipeline_id AND ledger.position > coalesce(seen.position, 0)
        GROUP BY ledger.kind) AS entry;

-- name: now
-- The current state of each pipeline. Ages are measured by the server's clock.
SELECT pipeline.pipeline_id, pipeline.name, pipeline.position, pipeline.producers, pipeline.producers_max,
       extract(epoch FROM clock_timestamp() - last.committed_at) AS last_commit_age_s,
       extract(epoch FROM clock_timestamp() - (
           SELECT max(taken_at) FROM onceload.snapshot
            WHERE snapshot.pipeline_id = pipeline.pipeline_id)) AS snapshot_age_s,
       bad.quarantined, bad.records_beside,
       (SELECT count(*) FROM onceload.session
         WHERE session.pipeline_id = pipeline.pipeline_id
           AND session.lease_until > clock_timestamp()) AS sessions_alive,
       audit.passed AS audit_passed,
       pipeline.paused_at IS NOT NULL AS paused, pipeline.paused_at, pipeline.paused_by, pipeline.pause_reason,
       board.waiting, board.held, board.staged, board.dead, board.redeliveries,
       extract(epoch FROM clock_timestamp() - board.oldest_at) AS oldest_claim_age_s,
       extract(epoch FROM clock_timestamp() - board.oldest_unstaged_at) AS oldest_work_age_s
  FROM onceload.pipeline
  LEFT JOIN onceload.ledger AS last
         ON last.pipeline_id = pipeline.pipeline_id AND last.position = pipeline.position
  LEFT JOIN LATERAL (
       SELECT passed FROM onceload.audit
        WHERE audit.pipeline_id = pipeline.pipeline_id ORDER BY audit_id DESC LIMIT 1) AS audit ON true
 CROSS JOIN LATERAL (
       -- With how many records the commits had that quarantined them.
       SELECT CAST(coalesce(sum(held.records), 0) AS bigint) AS quarantined,
              CAST(coalesce(sum(entry.loaded + entry.filtered + entry.quarantined), 0) AS bigint) AS records_beside
         FROM (SELECT position, count(*) AS records FROM onceload.quarantine
                WHERE quarantine.pipeline_id = pipeline.pipeline_id AND quarantine.state = 'held'
                GROUP BY position) AS held
         LEFT JOIN onceload.ledger AS entry
                ON entry.pipeline_id = pipeline.pipeline_id AND entry.position = held.position) AS bad
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting,
              count(*) FILTER (WHERE state = 'held' AND work IS NOT NULL) AS held,
              count(*) FILTER (WHERE state = 'staged') AS staged,
              count(*) FILTER (WHERE state = 'dead') AS dead,
              coalesce(sum(greatest(tries - 1, 0)), 0) AS redeliveries,
              -- Without ended claims, which hold nothing, and dead letters, which wait for a person.
              min(offered_at) FILTER (WHERE state <> 'dead' AND (work IS NOT NULL OR deadline_at > clock_timestamp()))
                  AS oldest_at,
              -- Of these, without what waits for its audit.
              min(offered_at) FILTER (WHERE state <> 'dead' AND stage IS NULL
                                        AND (work IS NOT NULL OR deadline_at > clock_timestamp())) AS oldest_unstaged_at
         FROM onceload.delivery
        WHERE delivery.pipeline_id = pipeline.pipeline_id AND state <> 'abandoned') AS board
 WHERE CAST(:pipeline AS text) IS NULL OR pipeline.name = :pipeline
 ORDER BY pipeline.name;
