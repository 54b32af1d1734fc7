-- name: keep_stage
-- From now on the batch holds the claim of its planner. No row changes if the claim has ended: then another session may
-- hold its spans.
UPDATE onceload.delivery
   SET stage = :stage, deadline_at = clock_timestamp() + make_interval(secs => :lease_s)
  FROM onceload.session, onceload.pipeline
 WHERE delivery_id = :delivery_id AND state = 'held' AND delivery.epoch = :epoch
   AND session.session_id = delivery.session_id AND session.name = :session AND session.epoch = :epoch
   AND pipeline.pipeline_id = session.pipeline_id AND pipeline.name = :pipeline;

-- name: kept_batch
-- Only of the latest epoch of its planner: a later epoch has planned again.
SELECT delivery.delivery_id, delivery.stage, pipeline.version, declaration.declared_at, session.epoch,
       coalesce((SELECT passed FROM onceload.audit
                  WHERE audit.stage = delivery.stage AND audit.asked = :asked ORDER BY audit_id DESC LIMIT 1), false) AS has_passed
  FROM onceload.delivery
  JOIN onceload.session USING (session_id)
  JOIN onceload.pipeline ON pipeline.pipeline_id = session.pipeline_id
  JOIN onceload.declaration
    ON declaration.pipeline_id = pipeline.pipeline_id AND declaration.version = pipeline.version
 WHERE pipeline.name = :pipeline AND session.name = :session AND delivery.batch = :batch
   AND delivery.stage IS NOT NULL AND delivery.state = 'held' AND delivery.epoch = session.epoch;

-- name: published_at
-- The position at which the latest epoch of the planner published the batch. Entries of the plan itself have no bytes.
SELECT max(ledger.position)
  FROM onceload.ledger
  JOIN onceload.pipeline USING (pipeline_id)
  JOIN onceload.session ON session.pipeline_id = ledger.pipeline_id AND session.name = ledger.session
       AND session.epoch = ledger.epoch
 WHERE pipeline.name = :pipeline AND session.name = :session AND ledger.batch = :batch
   AND ledger.kind = 'load' AND ledger.bytes > 0
   -- A session that was deleted starts at its first epoch again.
   AND ledger.committed_at >= session.opened_at;

-- name: give_up
-- Releases the claim of a batch. The next staging deletes its stage. A stage of a later epoch is not touched.
DELETE FROM onceload.delivery USING onceload.session, onceload.pipeline
 WHERE delivery_id = :delivery_id AND delivery.epoch = :epoch AND delivery.stage IS NOT NULL
   AND session.session_id = delivery.session_id AND session.name = :session
   AND pipeline.pipeline_id = session.pipeline_id AND pipeline.name = :pipeline
RETURNING delivery.batch;

-- name: is_held
SELECT EXISTS (
       SELECT FROM onceload.delivery
         JOIN onceload.session USING (session_id)
         JOIN onceload.pipeline ON pipeline.pipeline_id = session.pipeline_id
        WHERE pipeline.name = :pipeline AND session.name = :session AND delivery.work IS NULL
          AND delivery.state = 'held' AND delivery.epoch = session.epoch);

-- name: record_audit
INSERT INTO onceload.audit (pipeline_id, batch, stage, suite, asked, rows, passed, kept_until)
VALUES (:pipeline_id, :batch, :stage, :suite, :asked, :rows, :passed,
        clock_timestamp() + make_interval(secs => CAST(:kept_s AS double precision)))
RETURNING audit_id;

-- name: keep_no_other
-- A pipeline whose audits fail every few minutes keeps one stage, not all of them.
UPDATE onceload.audit SET kept_until = NULL
 WHERE pipeline_id = :pipeline_id AND audit_id <> :audit_id AND kept_until IS NOT NULL;

-- name: drop_evidence
UPDATE onceload.audit SET kept_until = NULL FROM onceload.pipeline
 WHERE pipeline.pipeline_id = audit.pipeline_id AND pipeline.name = :pipeline
   AND audit.batch = :batch AND kept_until > clock_timestamp()
RETURNING audit.stage;

-- name: record_results
INSERT INTO onceload.quality_result (audit_id, number, expectation, about, severity, success, unexpected, checked,
                                     observed, sample)
SELECT :audit_id, found.number, found.expectation, found.about, found.severity, found.success, found.unexpected,
       found.checked, found.observed, found.sample
  FROM unnest(
    CAST(:expectations AS text[]), CAST(:abouts AS text[]), CAST(:severities AS text[]), CAST(:successes AS boolean[]),
    CAST(:unexpecteds AS bigint[]), CAST(:checkeds AS bigint[]), CAST(:observeds AS text[]), CAST(:samples AS text[])
  ) WITH ORDINALITY
    AS found (expectation, about, severity, success, unexpected, checked, observed, sample, number);

-- name: lock_batch
-- Held by the connection, against other audits and publishes of the batch.
SELECT pg_advisory_lock(hashtextextended('onceload.batch ' || :stage, 0));
