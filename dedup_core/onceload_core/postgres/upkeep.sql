-- name: pipelines
SELECT name FROM onceload.pipeline ORDER BY name;

-- name: drop_ended_sessions
-- Sessions of old batches whose processes cannot be running any more. Sessions that hold anything stay.
DELETE FROM onceload.session
 WHERE pipeline_id = :pipeline_id AND strpos(name, :of_batch) > 0
   AND greatest(opened_at, lease_until) < clock_timestamp() - make_interval(secs => :kept_s)
   AND NOT EXISTS (SELECT FROM onceload.delivery WHERE delivery.session_id = session.session_id);

-- name: drop_old_audits
DELETE FROM onceload.audit
 WHERE pipeline_id = :pipeline_id AND audited_at < clock_timestamp() - make_interval(secs => :kept_s)
   AND coalesce(kept_until < clock_timestamp(), true);

-- name: forget_attempts
-- How loads ended whose pipeline the database does not know: they all failed, or the pipeline was deleted.
WITH forgotten AS (
    DELETE FROM onceload.attempt
     WHERE pipeline NOT IN (SELECT name FROM onceload.pipeline)
       AND greatest(begun_at, ended_at) < clock_timestamp() - make_interval(secs => :kept_s)
    RETURNING pipeline
), waits AS (
    DELETE FROM onceload.waiting_file WHERE pipeline IN (SELECT pipeline FROM forgotten))
SELECT count(*) FROM forgotten;

-- name: forget_messages
SELECT onceload.forget_messages();
