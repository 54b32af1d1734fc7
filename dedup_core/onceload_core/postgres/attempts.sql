-- name: begin
-- Its last outcome stays until it ends.
INSERT INTO onceload.attempt (pipeline, batch) VALUES (:pipeline, :batch)
    ON CONFLICT (pipeline, batch) DO UPDATE SET begun_at = clock_timestamp()
RETURNING begun_at;

-- name: one_at_a_time
-- Loads of a pipeline that end at once would wait for each other's rows.
SELECT pg_advisory_xact_lock(hashtextextended('onceload.attempt ' || :pipeline, 0));

-- name: leave
-- Files that are left for the first time have been waiting since they came, but were not there when the last load that
-- read all new files began. A file of which something was loaded meanwhile waits from then on: the rest came later. This
-- runs before the outcome is stored.
INSERT INTO onceload.waiting_file (pipeline, name, since)
SELECT :pipeline, file.name,
       least(clock_timestamp(),
             greatest(to_timestamp(coalesce(file.modified_s, 'infinity')),
                      (SELECT max(looked_at) FROM onceload.attempt WHERE pipeline = :pipeline)))
  FROM unnest(CAST(:names AS text[]), CAST(:modified_s AS double precision[])) AS file (name, modified_s)
    ON CONFLICT (pipeline, name) DO UPDATE SET since = excluded.since
 WHERE CAST(:begun_at AS timestamptz) <= (
       SELECT max(ledger.committed_at)
         FROM onceload.producer
        CROSS JOIN LATERAL (
              SELECT pipeline_id, position FROM onceload.ledger_span
               WHERE ledger_span.producer_id = producer.producer_id AND records > 0
               ORDER BY position DESC LIMIT 1) AS last
         JOIN onceload.ledger ON ledger.pipeline_id = last.pipeline_id AND ledger.position = last.position
        WHERE producer.pipeline_id = (SELECT pipeline_id FROM onceload.pipeline WHERE name = :pipeline)
          AND producer.name = excluded.name);

-- name: end
-- Files that the load has not left were loaded, or are gone; one that was not about all files knows only its own.
-- Outcomes before this one no longer count, and a success also ends the loads that began before it and were killed.
-- The last outcome is the latest, whatever the clock showed when earlier ones were stored.
WITH loaded AS (
    DELETE FROM onceload.waiting_file AS file
     WHERE :knows AND file.pipeline = :pipeline AND file.name <> ALL(CAST(:names AS text[]))
       AND (:knows_all OR EXISTS (
           SELECT FROM onceload.ledger JOIN onceload.ledger_span AS receipt USING (pipeline_id, position)
            WHERE ledger.pipeline_id = (SELECT pipeline_id FROM onceload.pipeline WHERE name = :pipeline)
              AND ledger.batch = :batch AND receipt.producer = file.name))),
outdated AS (
    DELETE FROM onceload.attempt AS earlier
     WHERE earlier.pipeline = :pipeline AND earlier.batch <> :batch
       AND (:looked OR earlier.looked_at IS NULL) AND (:listed OR earlier.listed_at IS NULL)
       AND (earlier.ended_at >= earlier.begun_at
            OR (:exit_code = 0 AND earlier.begun_at < CAST(:begun_at AS timestamptz))))
INSERT INTO onceload.attempt (pipeline, batch, begun_at, ended_at, exit_code, reason, listed_at, looked_at)
VALUES (:pipeline, :batch, CAST(:begun_at AS timestamptz),
        greatest(clock_timestamp(), CAST(:begun_at AS timestamptz),
                 (SELECT max(ended_at) + interval '1 microsecond' FROM onceload.attempt
                   WHERE pipeline = :pipeline AND ended_at >= clock_timestamp())),
        :exit_code, :reason,
        CASE WHEN :listed THEN CAST(:begun_at AS timestamptz) END,
        CASE WHEN :looked THEN CAST(:begun_at AS timestamptz) END)
    ON CONFLICT (pipeline, batch) DO UPDATE
   SET ended_at = excluded.ended_at, exit_code = excluded.exit_code, reason = excluded.reason,
       listed_at = CASE WHEN :listed THEN attempt.begun_at ELSE attempt.listed_at END,
       looked_at = CASE WHEN :looked THEN attempt.begun_at ELSE attempt.looked_at END;

-- name: keep
-- A batch was staged and waits to be published. So it neither runs nor has an outcome.
UPDATE onceload.attempt SET listed_at = begun_at, looked_at = begun_at
 WHERE pipeline = :pipeline AND batch = :batch;

-- name: withdraw
-- The outcome before it counts, as if it had not begun.
WITH first AS (
    DELETE FROM onceload.attempt WHERE pipeline = :pipeline AND batch = :batch AND ended_at IS NULL)
UPDATE onceload.attempt SET begun_at = ended_at
 WHERE pipeline = :pipeline AND batch = :batch AND ended_at IS NOT NULL;

-- name: look
-- For each pipeline: how its last load ended, since when one has been running, and when all files were last listed and
-- read.
SELECT attempt.pipeline, last.batch, last.ended_at, last.exit_code, last.reason,
       greatest(0, extract(epoch FROM clock_timestamp() - last.ended_at)) AS ended_age_s,
       attempt.running, extract(epoch FROM clock_timestamp() - attempt.running_since) AS running_age_s,
       extract(epoch FROM clock_timestamp() - attempt.listed_at) AS listed_age_s,
       extract(epoch FROM attempt.looked_at) AS looked_at_s
  FROM (SELECT pipeline, max(listed_at) AS listed_at, max(looked_at) AS looked_at,
               min(begun_at) FILTER (WHERE is_running) AS running_since,
               (array_agg(batch ORDER BY begun_at) FILTER (WHERE is_running))[1] AS running
          FROM onceload.attempt
         CROSS JOIN LATERAL (
               SELECT coalesce(ended_at < begun_at, true) AND looked_at IS DISTINCT FROM begun_at AS is_running) AS each
         WHERE CAST(:pipeline AS text) IS NULL OR pipeline = :pipeline
         GROUP BY pipeline) AS attempt
  LEFT JOIN LATERAL (
       SELECT batch, ended_at, exit_code, reason FROM onceload.attempt AS ended
        WHERE ended.pipeline = attempt.pipeline AND ended_at IS NOT NULL
        ORDER BY ended_at DESC LIMIT 1) AS last ON true
 ORDER BY attempt.pipeline;

-- name: waiting
SELECT name, extract(epoch FROM since) AS since_s FROM onceload.waiting_file WHERE pipeline = :pipeline;
