-- name: pause
-- Under the lock of the pipeline, and only if it is not paused.
UPDATE onceload.pipeline SET paused_at = clock_timestamp(), paused_by = :by, pause_reason = :why
 WHERE pipeline_id = :pipeline_id
RETURNING paused_at;

-- name: resume
UPDATE onceload.pipeline SET paused_at = NULL, paused_by = NULL, pause_reason = NULL WHERE pipeline_id = :pipeline_id;

-- name: find_pause
SELECT paused_at, paused_by, pause_reason FROM onceload.pipeline WHERE name = :pipeline;
