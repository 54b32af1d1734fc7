-- name: status
SELECT pipeline.name AS pipeline, pipeline.position, pipeline.producers,
       coalesce(pipeline.guarantee, 'exactly_once') AS guarantee,
       last.committed_at AS last_commit, last.loaded AS last_loaded,
       (SELECT max(position) FROM onceload.snapshot WHERE snapshot.pipeline_id = pipeline.pipeline_id) AS snapshot,
       (SELECT count(*) FROM onceload.quarantine WHERE quarantine.pipeline_id = pipeline.pipeline_id
           AND quarantine.state = 'held') AS quarantined,
       pipeline.paused_at, pipeline.paused_by, pipeline.pause_reason
  FROM onceload.pipeline
  LEFT JOIN onceload.ledger AS last
         ON last.pipeline_id = pipeline.pipeline_id AND last.position = pipeline.position
 WHERE :pipeline IS NULL OR pipeline.name = :pipeline
 ORDER BY pipeline.name LIMIT :at_most;

-- name: producers
-- Without generations that were registered and never used, if there is another.
SELECT producer.producer_id AS id, producer.name, producer.generation, producer.condition,
       upper(producer.consumed) AS "end", CAST(producer.consumed AS text) AS consumed, producer.size, producer.advanced_at
  FROM onceload.producer JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name = :pipeline
   AND NOT (isempty(producer.consumed) AND producer.fingerprint IS NULL AND EXISTS (
       SELECT FROM onceload.producer AS used
        WHERE used.pipeline_id = producer.pipeline_id AND used.name = producer.name
          AND NOT (isempty(used.consumed) AND used.fingerprint IS NULL)))
 ORDER BY producer.name, producer.generation LIMIT :at_most;

-- name: ledger
SELECT ledger.position, ledger.kind, ledger.batch, ledger.loaded, ledger.duplicate, ledger.quarantined, ledger.filtered,
       ledger.bytes, ledger.session, ledger.epoch, ledger.dag_id, ledger.run_id, ledger.try_number, ledger.committed_at
  FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name = :pipeline AND ledger.batch = coalesce(:batch, ledger.batch)
 ORDER BY ledger.position DESC LIMIT :at_most;

-- name: sessions
SELECT session.name AS session, session.epoch,
       CASE WHEN session.lease_until > clock_timestamp() THEN 'alive' ELSE 'away' END AS state,
       session.opened_at, session.lease_until, session.last_position,
       count(delivery.delivery_id) FILTER (WHERE delivery.state = 'held') AS held,
       count(delivery.delivery_id) FILTER (WHERE delivery.state = 'waiting') AS waiting,
       min(delivery.deadline_at) AS next_deadline
  FROM onceload.session JOIN onceload.pipeline USING (pipeline_id)
  LEFT JOIN onceload.delivery ON delivery.session_id = session.session_id
        AND (delivery.state = 'waiting' OR (delivery.state = 'held' AND delivery.epoch = session.epoch
                                            AND delivery.deadline_at > clock_timestamp()))
 WHERE pipeline.name = :pipeline
 GROUP BY session.session_id ORDER BY session.lease_until DESC, session.name LIMIT :at_most;

-- name: snapshots
SELECT snapshot.position, snapshot.producers, snapshot.taken_at
  FROM onceload.snapshot JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name = :pipeline ORDER BY snapshot.position DESC LIMIT :at_most;

-- name: audits
SELECT audit.batch, audit.passed, result.expectation, result.about, result.severity, result.success, result.unexpected,
       audit.rows, audit.suite, result.checked, result.observed, result.sample, audit.audited_at
  FROM onceload.audit JOIN onceload.pipeline USING (pipeline_id)
  LEFT JOIN onceload.quality_result AS result USING (audit_id)
 WHERE pipeline.name = :pipeline AND audit.batch = coalesce(:batch, audit.batch)
 ORDER BY audit.audit_id DESC, result.number LIMIT :at_most;
