-- name: make_pipeline
-- Does nothing if the pipeline exists. Its settings are set under its lock.
INSERT INTO onceload.pipeline (name, guarantee, producers_max, islands_max, forget_idle_after_s, message_keep_days,
                               snapshot_every_commits, snapshot_every_s, snapshots_kept)
VALUES (:name, :guarantee, :producers_max, :islands_max, :forget_idle_after_s, :message_keep_days,
        :snapshot_every_commits, :snapshot_every_s, :snapshots_kept)
ON CONFLICT ON CONSTRAINT pipeline_names_have_no_twins DO NOTHING;

-- name: set_limits
-- Limits that do not affect records follow the file without a new version. A load of another version must not set
-- them. A window without business ids stays as it was, so that the remembered ids are kept until they are that old.
UPDATE onceload.pipeline
   SET guarantee = :guarantee, producers_max = :producers_max, islands_max = :islands_max,
       forget_idle_after_s = :forget_idle_after_s,
       message_keep_days = coalesce(nullif(:message_keep_days, 0), message_keep_days),
       snapshot_every_commits = :snapshot_every_commits, snapshot_every_s = :snapshot_every_s,
       snapshots_kept = :snapshots_kept
 WHERE name = :name AND version = :version
   AND (guarantee, producers_max, islands_max, forget_idle_after_s, message_keep_days, snapshot_every_commits,
        snapshot_every_s, snapshots_kept)
       IS DISTINCT FROM (:guarantee, :producers_max, :islands_max, :forget_idle_after_s, :message_keep_days,
                         :snapshot_every_commits, :snapshot_every_s, :snapshots_kept);

-- name: find_declaration
-- The version in force.
SELECT pipeline.*, declaration.declared_at, declaration.terms, declaration.rest,
       declaration.layout IS NOT NULL AS has_layout
  FROM onceload.pipeline JOIN onceload.declaration USING (pipeline_id, version) WHERE pipeline.name = :pipeline;

-- name: in_use
-- What depends on the terms in force. Under the pipeline's lock, no commit can change it.
SELECT EXISTS (
       SELECT FROM onceload.producer
        WHERE pipeline_id = :pipeline_id AND NOT (isempty(consumed) AND fingerprint IS NULL)) AS is_loaded,
       to_regclass(:table) IS NULL OR EXISTS (
       SELECT FROM onceload.loaded_table JOIN onceload.loaded_file USING (table_id)
        WHERE relation = to_regclass(:table_after) AND pipeline_id = :pipeline_id
          AND read_in = CAST(CAST('onceload.loaded_table' AS regclass) AS oid)) AS is_table_gone;

-- name: take_version
-- Commits compare their own version with this one.
UPDATE onceload.pipeline SET version = version + 1 WHERE pipeline_id = :pipeline_id RETURNING version;

-- name: keep_declaration
INSERT INTO onceload.declaration (pipeline_id, version, terms, rest, layout)
VALUES (:pipeline_id, :version, CAST(:terms AS jsonb), CAST(:rest AS jsonb), CAST(:layout AS jsonb))
RETURNING declared_at;

-- name: keep_layout
-- A layout is written once: that of an earlier version stays.
UPDATE onceload.declaration SET layout = CAST(:layout AS jsonb)
 WHERE pipeline_id = :pipeline_id AND version = :version AND layout IS NULL;

-- name: remembered
-- The columns of the remembered business ids: those of the last version that had any.
SELECT terms ->> :key FROM onceload.declaration
 WHERE pipeline_id = :pipeline_id AND terms ->> :key <> '' ORDER BY version DESC LIMIT 1;

-- name: end_window
-- These ids are not comparable with ids of other columns.
DELETE FROM onceload.message WHERE pipeline_id = :pipeline_id;

-- name: drop_deliveries
-- Claims, deliveries, kept batches and dead letters of earlier versions are planned again under this one.
DELETE FROM onceload.delivery WHERE pipeline_id = :pipeline_id;

-- name: find_pipeline
SELECT pipeline.pipeline_id, position, message_keep_days, version, declared_at
  FROM onceload.pipeline LEFT JOIN onceload.declaration USING (pipeline_id, version) WHERE name = :pipeline;

-- name: lock_pipeline
-- The lock that commits take when they count up the position: under it, the state does not change.
-- NO KEY: snapshots (hold_pipeline) and foreign keys do not wait for it, nor it for them.
-- A version that was taken during the wait has no time here, so that it is no other one.
SELECT pipeline_id, position, producers, producers_max, version, declared_at, folder, paused_at, paused_by,
       pause_reason
  FROM onceload.pipeline LEFT JOIN onceload.declaration USING (pipeline_id, version)
 WHERE name = :pipeline FOR NO KEY UPDATE OF pipeline;

-- name: lock_pipeline_against_snapshots
-- The same for recovery and rewind: they also wait for running snapshots, and no snapshot starts before they end.
SELECT pipeline_id, position FROM onceload.pipeline WHERE name = :pipeline FOR UPDATE;

-- name: hold_pipeline
-- The counterpart for snapshots: a recovery or rewind waits for the snapshot of this transaction. If it came first, a
-- view that is older than its end gets a serialization error here, so no snapshot of the earlier state is kept.
SELECT pipeline_id, position FROM onceload.pipeline WHERE name = :pipeline FOR KEY SHARE;

-- name: pipeline_names
SELECT name FROM onceload.pipeline ORDER BY name;

-- name: register_producers
-- Registering consumes nothing, so it can be repeated.
INSERT INTO onceload.producer (pipeline_id, name, generation)
SELECT :pipeline_id, offered.name, offered.generation
  FROM unnest(CAST(:names AS text[]), CAST(:generations AS integer[])) AS offered (name, generation)
ON CONFLICT ON CONSTRAINT producer_generations_have_no_twins DO NOTHING;

-- name: count_producers
UPDATE onceload.pipeline SET producers = :producers WHERE pipeline_id = :pipeline_id AND producers <> :producers;

-- name: producer_ids
SELECT producer.name, producer.generation, producer.producer_id
  FROM unnest(CAST(:names AS text[]), CAST(:generations AS integer[])) AS asked (name, generation)
  JOIN onceload.producer ON producer.pipeline_id = :pipeline_id
       AND producer.name = asked.name AND producer.generation = asked.generation;

-- name: latest_generations
-- A generation that was registered but never used counts only if there is no other.
-- Files are elsewhere if the folder was ever another one, by an edit or without it, and no file that was compared with
-- them has their name there. A process that only looks may see the folder of the last load at another address.
WITH moved AS MATERIALIZED (
    SELECT CASE WHEN now.terms ->> 'source.root' = :root THEN pipeline.folder ELSE :folder END AS folder
      FROM onceload.pipeline JOIN onceload.declaration AS now USING (pipeline_id, version)
     WHERE pipeline_id = :pipeline_id AND CAST(:root AS text) IS NOT NULL
       AND (pipeline.has_moved
            OR EXISTS (
                SELECT FROM onceload.declaration
                 WHERE declaration.pipeline_id = :pipeline_id AND declaration.terms ->> 'source.root' <> :root))
)
SELECT DISTINCT ON (producer.name) producer.name, producer.producer_id,
       CASE WHEN moved.folder IS NULL THEN false
            ELSE NOT EXISTS (
                 SELECT FROM onceload.loaded_file
                  WHERE loaded_file.address = sha256(convert_to(moved.folder || producer.name, 'UTF8'))
                    AND loaded_file.pipeline_id = :pipeline_id AND loaded_file.is_compared) END AS is_elsewhere
  FROM unnest(CAST(:names AS text[])) AS asked (name)
  JOIN onceload.producer ON producer.pipeline_id = :pipeline_id AND producer.name = asked.name
  LEFT JOIN moved ON true
 ORDER BY producer.name, isempty(producer.consumed) AND producer.fingerprint IS NULL, producer.generation DESC;

-- name: find_session
SELECT session_id FROM onceload.session JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name = :pipeline AND session.name = :session AND session.epoch = :epoch;

-- name: renew_claims
UPDATE onceload.delivery SET deadline_at = clock_timestamp() + make_interval(secs => :lease_s)
 WHERE session_id = :session_id AND epoch = :epoch AND state = 'held' AND work IS NULL
   -- Kept batches have a longer lease.
   AND stage IS NULL
   AND deadline_at > clock_timestamp();

-- name: open_session
-- A new epoch for each call, which fences all earlier ones. Epochs are times in microseconds: a failover or restore may
-- lose the last epoch, and with a counter the next one could get the same number.
INSERT INTO onceload.session (pipeline_id, name, epoch)
VALUES (:pipeline_id, :session, CAST(1000000 * extract(epoch FROM clock_timestamp()) AS bigint))
ON CONFLICT ON CONSTRAINT session_names_have_no_twins DO UPDATE
   SET epoch = greatest(session.epoch + 1, excluded.epoch), opened_at = clock_timestamp()
RETURNING epoch;

-- name: opened_session
-- A session that this transaction has opened, with what a load needs to know of its pipeline.
SELECT session.epoch, pipeline.position, pipeline.version, declared_at,
       pipeline.position - coalesce(last.position, 0) AS commits_since,
       extract(epoch FROM clock_timestamp() - coalesce(last.taken_at, (
           SELECT min(committed_at) FROM onceload.ledger WHERE ledger.pipeline_id = pipeline.pipeline_id)))
       AS seconds_since
  FROM onceload.session JOIN onceload.pipeline USING (pipeline_id)
  LEFT JOIN onceload.declaration USING (pipeline_id, version)
  LEFT JOIN LATERAL (SELECT position, taken_at FROM onceload.snapshot
                      WHERE snapshot.pipeline_id = pipeline.pipeline_id ORDER BY position DESC LIMIT 1) AS last ON true
 WHERE session.pipeline_id = :pipeline_id AND session.name = :session;

-- name: producer_states
SELECT producer_id, name, generation, CAST(consumed AS text) AS consumed, fingerprint, size, condition, copy_of
  FROM onceload.producer
 WHERE pipeline_id = :pipeline_id AND producer_id = ANY(CAST(:producer_ids AS bigint[]));

-- name: known
-- The same with what others claim: without the session's own claims, but with deliveries, which belong to no session until
-- they are committed. One statement sees one moment, so that no span is neither claimed nor consumed.
WITH claimed AS (
    SELECT delivery_span.producer_id, range_agg(span) AS spans
      FROM onceload.claim
      LEFT JOIN onceload.session USING (session_id)
      JOIN onceload.delivery_span USING (delivery_id)
     CROSS JOIN LATERAL unnest(delivery_span.spans) AS span
     WHERE claim.pipeline_id = :pipeline_id AND NOT (claim.is_held AND session.name = :session)
       AND claim.delivery_id NOT IN ({lost})
       AND delivery_span.producer_id = ANY(CAST(:producer_ids AS bigint[]))
     GROUP BY delivery_span.producer_id
)
SELECT producer_id, name, generation, CAST(consumed AS text) AS consumed, fingerprint, size, condition, copy_of,
       CAST(claimed.spans AS text) AS claimed
  FROM onceload.producer LEFT JOIN claimed USING (producer_id)
 WHERE pipeline_id = :pipeline_id AND producer_id = ANY(CAST(:producer_ids AS bigint[]));

-- name: outlook
-- The position, and in each row a producer that others claim or that a dead letter has: of those of kept batches, the
-- batch and the end of its lease; of dead letters, the first.
WITH claimed AS (
    SELECT producer.name, max(delivery.batch) FILTER (WHERE delivery.stage IS NOT NULL) AS kept_by,
           max(delivery.deadline_at) FILTER (WHERE delivery.stage IS NOT NULL) AS kept_until
      FROM onceload.claim
      LEFT JOIN onceload.session USING (session_id)
      JOIN onceload.delivery USING (delivery_id)
      JOIN onceload.delivery_span USING (delivery_id)
      JOIN onceload.producer USING (producer_id)
     WHERE claim.pipeline_id = :pipeline_id AND NOT (claim.is_held AND session.name = :session)
       AND claim.delivery_id NOT IN ({lost})
     GROUP BY producer.name
), dead AS (
    SELECT producer.name, min(delivery.delivery_id) AS delivery_id
      FROM onceload.delivery JOIN onceload.delivery_span USING (delivery_id) JOIN onceload.producer USING (producer_id)
     WHERE delivery.pipeline_id = :pipeline_id AND delivery.state = 'dead' AND delivery.parent_id IS NULL
     GROUP BY producer.name
)
SELECT pipeline.position, of_producer.*
  FROM onceload.pipeline
  LEFT JOIN (SELECT name, kept_by, kept_until, CAST(NULL AS bigint) AS dead_letter FROM claimed UNION ALL
             SELECT name, NULL, NULL, delivery_id FROM dead) AS of_producer ON true
 WHERE pipeline.pipeline_id = :pipeline_id;

-- name: committed_names
-- The producers of all entries after a position.
SELECT DISTINCT producer FROM onceload.ledger_span WHERE pipeline_id = :pipeline_id AND position > :position;

-- name: drop_ended_claims
-- Claims of planners that have expired or lost their stage, with the deliveries of their batches. Their commits find
-- no claim to ack, and are refused. Deliveries that commit themselves expire instead.
DELETE FROM onceload.delivery USING onceload.session
 WHERE delivery.session_id = session.session_id AND delivery.work IS NULL
   AND delivery.pipeline_id = :pipeline_id AND delivery.state = 'held'
   AND (delivery.deadline_at <= clock_timestamp() OR delivery.epoch <> session.epoch
        OR delivery.delivery_id IN ({lost}));

-- name: claim
-- Returns no row if a later epoch of the session took over.
WITH held AS (
    INSERT INTO onceload.delivery (pipeline_id, batch, state, session_id, epoch, tries, deadline_at)
    SELECT :pipeline_id, :batch, 'held', session_id, epoch, 1, clock_timestamp() + make_interval(secs => :lease_s)
      FROM onceload.session WHERE pipeline_id = :pipeline_id AND name = :session AND epoch = :epoch
    RETURNING delivery_id
), of_producers AS (
    INSERT INTO onceload.delivery_span (delivery_id, producer_id, spans)
    SELECT held.delivery_id, offered.producer_id, offered.spans
      FROM held CROSS JOIN unnest(CAST(:producer_ids AS bigint[]), CAST(:spans AS int8multirange[]))
           AS offered (producer_id, spans)
)
SELECT delivery_id FROM held;

-- name: release_claim
-- The planner cannot release what its batch keeps.
DELETE FROM onceload.delivery USING onceload.session, onceload.pipeline
 WHERE delivery_id = :delivery_id AND state = 'held' AND delivery.epoch = :epoch AND stage IS NULL
   AND session.session_id = delivery.session_id AND session.name = :session
   AND pipeline.pipeline_id = session.pipeline_id AND pipeline.name = :pipeline;

-- name: transaction_id
SELECT CAST(pg_current_xact_id() AS text);

-- name: take_position
-- Takes the pipeline's commit lock. Positions have no gaps, because a rollback returns the position.
UPDATE onceload.pipeline SET position = position + 1 WHERE name = :pipeline
RETURNING pipeline_id, position, guarantee, islands_max, message_keep_days, version;

-- name: take_position_of_session
-- The same, with the pause, if there is one: a pause takes the same lock, so it is seen by every commit after it.
-- And the fence: `is_latest` is false if a later epoch of the session took over.
-- The statement sees the sessions as they were before it waited for the lock. But an UPDATE, unlike a SELECT, locks the
-- latest version of a row and checks it again, so a session that was taken over during the wait is found.
-- The session is locked after the pipeline, whatever the plan, because no row is updated before `taken` returned one.
WITH taken AS (
    UPDATE onceload.pipeline SET position = position + 1 WHERE name = :pipeline
    RETURNING pipeline_id, position, guarantee, islands_max, message_keep_days, version, folder,
              paused_at, paused_by, pause_reason
), latest AS (
    UPDATE onceload.session SET last_position = taken.position FROM taken
     WHERE session.pipeline_id = taken.pipeline_id AND session.name = :session AND session.epoch = :epoch
       -- A commit of another version is refused, and does not wait for the session.
       AND taken.version = :version
    RETURNING session_id
)
SELECT taken.*, declaration.declared_at, declaration.terms ->> 'target.table' AS target,
       declaration.terms ->> 'source.identity' AS identity,
       (SELECT table_id FROM onceload.loaded_table
         WHERE relation = coalesce(pg_partition_root(to_regclass(declaration.terms ->> 'target.table')),
                                   to_regclass(declaration.terms ->> 'target.table'))
           AND read_in = CAST(CAST('onceload.loaded_table' AS regclass) AS oid)) AS table_id,
       EXISTS (SELECT FROM latest) AS is_latest, CAST(pg_current_xact_id() AS text) AS transaction_id
  FROM taken LEFT JOIN onceload.declaration USING (pipeline_id, version);

-- name: register_all
-- The pipeline's lock excludes other registrations. Sorted by name, so that the index grows at its end.
INSERT INTO onceload.producer (pipeline_id, name, generation)
SELECT :pipeline_id, name, :generation FROM {table} AS named
 WHERE NOT EXISTS (
       SELECT FROM onceload.producer
        WHERE producer.pipeline_id = :pipeline_id AND producer.name = named.name
          AND producer.generation = :generation)
 ORDER BY name;

-- name: names_to_swap
SELECT producer_id, name, generation, isempty(consumed) AS is_empty FROM onceload.producer
 WHERE pipeline_id = :pipeline_id AND producer_id IN (:producer_id, :other_id);

-- name: rename_producer
UPDATE onceload.producer SET name = :name, generation = :generation WHERE producer_id = :producer_id;

-- name: keep_name
-- The old name becomes a copy with all that was known of the producer, and gets a receipt that proves it.
WITH kept AS (
    UPDATE onceload.producer AS kept
       SET copy_of = shared.producer_id, fingerprint = shared.fingerprint, size = shared.size,
           condition = shared.condition
      FROM onceload.producer AS shared
     WHERE kept.producer_id = :other_id AND shared.producer_id = :producer_id
    RETURNING kept.*
)
INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows, fingerprint,
                                  size, condition, shares_with)
SELECT :pipeline_id, :position, producer_id, name, generation, '{}', 0, fingerprint, size, condition, copy_of FROM kept;

-- name: offered_in_arrays
SELECT * FROM unnest(
    CAST(:producer_ids AS bigint[]), CAST(:spans AS int8multirange[]), CAST(:rows AS bigint[]),
    CAST(:records AS bigint[]), CAST(:digests AS bytea[]), CAST(:fingerprints AS bytea[]), CAST(:sizes AS bigint[]),
    CAST(:conditions AS text[]), CAST(:copies_of AS bigint[]), CAST(:share_with AS bigint[])
) AS offered (producer_id, spans, rows, records, digest, fingerprint, size, condition, copy_of, shares_with)

-- name: offered_in_a_table
SELECT producer_id, spans, rows, 0 AS records, CAST(NULL AS bytea) AS digest,
       CAST(NULL AS bytea) AS fingerprint, CAST(NULL AS bigint) AS size, 'open' AS condition,
       CAST(NULL AS bigint) AS copy_of, CAST(NULL AS bigint) AS shares_with
  FROM {table}

-- name: advance_producers
-- Compare-and-set, with the receipt in the same statement: a producer that has consumed any part of the spans gets
-- neither, and the count shows it.
WITH offered AS (
    {offered}
), advanced AS (
    UPDATE onceload.producer
       SET consumed = producer.consumed + offered.spans, advanced_at = clock_timestamp(),
           -- Chunks may commit in any order. The one that is furthest in the file determines these columns.
           fingerprint = CASE WHEN upper(offered.spans) < upper(producer.consumed) THEN producer.fingerprint ELSE offered.fingerprint END,
           size = CASE WHEN upper(offered.spans) < upper(producer.consumed) THEN producer.size ELSE offered.size END,
           -- A file that was read again without anything new stays sealed: its last line may have no newline.
           condition = CASE WHEN upper(offered.spans) < upper(producer.consumed)
                                 OR (isempty(offered.spans) AND offered.condition = 'open')
                            THEN producer.condition ELSE offered.condition END,
           copy_of = offered.copy_of
      FROM offered
     -- The bounds repeat the join condition, so that a batch reads its part of the producers, not all of them.
     WHERE producer.producer_id = offered.producer_id AND producer.producer_id BETWEEN :first_id AND :last_id
       AND producer.pipeline_id = :pipeline_id
       AND (:repeats_allowed OR NOT producer.consumed && offered.spans)
       -- A producer that a later generation replaced must not get rows again.
       AND producer.condition <> 'replaced'
       -- A producer that has consumed anything cannot become a copy.
       AND (offered.copy_of IS NULL OR isempty(producer.consumed))
    RETURNING producer.name, producer.generation, producer.consumed, offered.producer_id, offered.spans, offered.rows,
              offered.records, offered.digest, producer.fingerprint, producer.size, producer.condition,
              -- The receipt of a copy has no spans. It names the producer that consumes them.
              coalesce(offered.shares_with, offered.copy_of) AS shares_with
), receipts AS (
    INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows,
                                      records, digest, fingerprint, size, condition, shares_with)
    SELECT :pipeline_id, :position, producer_id, name, generation, spans, rows,
           records, digest, fingerprint, size, condition, shares_with
      FROM advanced
)
SELECT count(*) AS advanced, (SELECT count(*) FROM offered) AS offered,
       -- Nearly every producer has one span, and checking for that is cheaper than counting.
       coalesce(max(CASE WHEN consumed <> int8multirange(range_merge(consumed))
                         THEN (SELECT count(*) FROM unnest(consumed)) ELSE 1 END), 0) AS islands
  FROM advanced;

-- name: producers_refused
-- The producers of an advance that got no receipt, or were offered twice. The name is null if the producer is missing.
SELECT producer.name
  FROM ({offered}) AS offered
  LEFT JOIN onceload.producer ON producer.producer_id = offered.producer_id AND producer.pipeline_id = :pipeline_id
 GROUP BY offered.producer_id, producer.name
HAVING count(*) > 1 OR NOT EXISTS (
       SELECT FROM onceload.ledger_span
        WHERE ledger_span.pipeline_id = :pipeline_id AND ledger_span.position = :position
          AND ledger_span.producer_id = offered.producer_id)
 ORDER BY producer.name LIMIT 6;

-- name: messages_in_an_array
SELECT * FROM unnest(CAST(:messages AS bytea[])) AS offered (message)

-- name: messages_in_a_table
SELECT _message AS message FROM {table}

-- name: count_messages
SELECT count(DISTINCT message) FROM ({offered}) AS offered;

-- name: record_messages
-- An id that was recorded inside the window is not recorded again, and the row count shows it.
-- Commits of a pipeline are serialized here, so no other commit can record an id in between.
WITH today AS MATERIALIZED (SELECT CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) AS day)
INSERT INTO onceload.message (pipeline_id, message, day, position)
SELECT :pipeline_id, offered.message, (SELECT day FROM today), :position
  FROM (SELECT DISTINCT message FROM ({offered}) AS offered) AS offered
 WHERE NOT EXISTS (
       SELECT FROM onceload.message AS seen
        WHERE seen.pipeline_id = :pipeline_id AND seen.message = offered.message
          AND seen.day >= (SELECT day FROM today) - :keep_days)
 -- In the order of the index: hashes are random, and each would go to another page of it.
 ORDER BY offered.message;

-- name: record_quarantine
INSERT INTO onceload.quarantine (pipeline_id, position, producer_id, sequence_id, raw, column_name, reason)
SELECT :pipeline_id, :position, * FROM unnest(
    CAST(:producer_ids AS bigint[]), CAST(:sequence_ids AS bigint[]), CAST(:raws AS bytea[]),
    CAST(:columns AS text[]), CAST(:reasons AS text[]))
ON CONFLICT ON CONSTRAINT quarantined_records_have_no_twins DO NOTHING;

-- name: settle_quarantine
-- Compare-and-set: records that are already settled, or that have other bytes than were read, are not counted, and the
-- row count shows it. Records of a producer that a later generation replaced must not be loaded.
UPDATE onceload.quarantine SET state = :state, settled_position = :position
  FROM unnest(CAST(:producer_ids AS bigint[]), CAST(:sequence_ids AS bigint[]), CAST(:digests AS text[]))
       AS offered (producer_id, sequence_id, digest)
 WHERE quarantine.producer_id = offered.producer_id AND quarantine.sequence_id = offered.sequence_id
   AND quarantine.pipeline_id = :pipeline_id AND quarantine.state = 'held'
   AND (offered.digest IS NULL OR encode(sha256(quarantine.raw), 'hex') = offered.digest)
   AND (:state = 'discarded' OR NOT EXISTS (
        SELECT FROM onceload.producer
         WHERE producer.producer_id = offered.producer_id AND producer.condition = 'replaced'));

-- name: settlements_refused
-- The records that a settlement did not change. Null ids are records that do not exist.
SELECT quarantine.quarantine_id, quarantine.state, quarantine.settled_position
  FROM unnest(CAST(:producer_ids AS bigint[]), CAST(:sequence_ids AS bigint[])) AS offered (producer_id, sequence_id)
  LEFT JOIN onceload.quarantine ON quarantine.producer_id = offered.producer_id
        AND quarantine.sequence_id = offered.sequence_id AND quarantine.pipeline_id = :pipeline_id
 WHERE quarantine.settled_position IS DISTINCT FROM :position
 ORDER BY quarantine.quarantine_id LIMIT 6;

-- name: record_settlement
-- The producer's name comes from the receipt of the quarantine, because the producer may be forgotten.
INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows, condition)
SELECT :pipeline_id, :position, offered.producer_id, receipt.producer, receipt.generation, offered.spans, offered.rows,
       receipt.condition
  FROM unnest(CAST(:producer_ids AS bigint[]), CAST(:spans AS int8multirange[]), CAST(:rows AS bigint[]))
       AS offered (producer_id, spans, rows)
  JOIN onceload.quarantine ON quarantine.producer_id = offered.producer_id
       AND quarantine.sequence_id = lower(offered.spans)
  JOIN onceload.ledger_span AS receipt ON receipt.pipeline_id = :pipeline_id
       AND receipt.position = quarantine.position AND receipt.producer_id = offered.producer_id;

-- name: record_entry
-- Writes no row if the position exists or does not follow the last one: then the pipeline's row was changed.
INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, session, epoch, version, dag_id, run_id, try_number,
                             loaded, duplicate, quarantined, filtered, bytes, engine, spark_ui)
SELECT :pipeline_id, CAST(:position AS bigint), :kind, :batch, :session, CAST(:epoch AS bigint),
       CAST(:version AS integer), :dag_id, :run_id, CAST(:try_number AS integer), :loaded, :duplicate, :quarantined,
       :filtered, :bytes, :engine, :spark_ui
 WHERE CAST(:position AS bigint) = 1
    OR EXISTS (SELECT FROM onceload.ledger
                WHERE pipeline_id = :pipeline_id AND position = CAST(:position AS bigint) - 1)
ON CONFLICT ON CONSTRAINT ledger_positions_have_no_twins DO NOTHING;

-- name: ack_delivery
-- Deletes no row if the delivery was taken away before its commit. The ledger is the record of the ack.
DELETE FROM onceload.delivery USING onceload.session, onceload.pipeline
 WHERE delivery_id = :delivery_id AND state = 'held' AND delivery.epoch = :epoch
   AND session.session_id = delivery.session_id AND session.name = :session
   AND pipeline.pipeline_id = session.pipeline_id AND pipeline.name = :pipeline;

-- name: keep_delivery
-- The same check for a delivery that this commit does not end. It cannot be taken away before COMMIT.
-- It has made progress, so the earlier tries no longer count.
UPDATE onceload.delivery SET tries = 1
  FROM onceload.session, onceload.pipeline
 WHERE delivery_id = :delivery_id AND state = 'held' AND delivery.epoch = :epoch
   AND session.session_id = delivery.session_id AND session.name = :session
   AND pipeline.pipeline_id = session.pipeline_id AND pipeline.name = :pipeline;

-- name: hold_delivery
-- The same for a delivery whose pieces are staged: it cannot be taken away before this transaction ends.
SELECT delivery_id FROM onceload.delivery
  JOIN onceload.session USING (session_id) JOIN onceload.pipeline ON pipeline.pipeline_id = session.pipeline_id
 WHERE delivery_id = :delivery_id AND state = 'held' AND delivery.epoch = :epoch
   AND session.name = :session AND pipeline.name = :pipeline
   FOR SHARE OF delivery;

-- name: forget_producers
-- Only if the pipeline declares it, only producers that were idle all that time, never one that a live worker claims,
-- and never one with a fingerprint: that is a file, which may still exist and would be loaded again.
WITH forgotten AS (
    DELETE FROM onceload.producer USING onceload.pipeline
     WHERE producer.pipeline_id = :pipeline_id AND pipeline.pipeline_id = :pipeline_id
       AND producer.fingerprint IS NULL
       AND producer.advanced_at < clock_timestamp() - make_interval(secs => pipeline.forget_idle_after_s)
       AND NOT EXISTS (
           SELECT FROM onceload.delivery_span JOIN onceload.claim USING (delivery_id)
            WHERE delivery_span.producer_id = producer.producer_id)
    RETURNING producer.*
), receipts AS (
    INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows,
                                      fingerprint, size, condition)
    SELECT :pipeline_id, :position, producer_id, name, generation, consumed, 0, fingerprint, size, condition
      FROM forgotten
), counted AS (
    UPDATE onceload.pipeline SET producers = producers - (SELECT count(*) FROM forgotten)
     WHERE pipeline_id = :pipeline_id
)
SELECT name FROM forgotten ORDER BY name;

-- name: ledger_entries
SELECT position, kind, batch, session, epoch, dag_id, run_id, try_number,
       loaded, duplicate, quarantined, filtered, bytes, committed_at
  FROM onceload.ledger
 WHERE pipeline_id = :pipeline_id AND position > :after ORDER BY position LIMIT :at_most;

-- name: outcome
-- Without a commit of the batch, the position is that of the last commit.
SELECT coalesce(max(position), (SELECT position FROM onceload.pipeline WHERE pipeline_id = :pipeline_id)) AS position,
       CAST(coalesce(sum(loaded), 0) AS bigint) AS loaded, CAST(coalesce(sum(duplicate), 0) AS bigint) AS duplicate,
       CAST(coalesce(sum(quarantined), 0) AS bigint) AS quarantined,
       CAST(coalesce(sum(filtered), 0) AS bigint) AS filtered, CAST(coalesce(sum(bytes), 0) AS bigint) AS bytes,
       EXISTS (SELECT FROM onceload.ledger WHERE pipeline_id = :pipeline_id AND batch = :batch AND quarantined > 0)
       AS has_quarantined,
       EXISTS (SELECT FROM onceload.ledger JOIN onceload.ledger_span USING (pipeline_id, position)
                WHERE pipeline_id = :pipeline_id AND position > :after AND batch = :batch AND condition = 'replaced')
       AS has_replaced
  FROM onceload.ledger
 WHERE pipeline_id = :pipeline_id AND position > :after AND batch = :batch;

-- name: replaced_by
-- The generations that a batch has replaced since a position.
SELECT ledger_span.producer_id
  FROM onceload.ledger JOIN onceload.ledger_span USING (pipeline_id, position)
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.position > :after AND ledger.batch = :batch
   AND ledger_span.condition = 'replaced';

-- name: all_bad
-- For each producer from which this batch loaded no row: the number of its records still in quarantine.
SELECT read.producer, count(*) AS records
  FROM (SELECT producer_id, producer, array_agg(position) AS positions
          FROM onceload.ledger JOIN onceload.ledger_span USING (pipeline_id, position)
         WHERE pipeline_id = :pipeline_id AND batch = :batch
         GROUP BY producer_id, producer HAVING sum(rows) = 0) AS read
  JOIN onceload.quarantine
    ON quarantine.producer_id = read.producer_id AND position = ANY (positions) AND state = 'held'
 GROUP BY read.producer ORDER BY read.producer;

-- name: done_by
-- The files that a batch has replaced, and those that it has loaded since a position, each with its last position.
SELECT producer, max(position) AS position
  FROM onceload.ledger_in_force AS ledger JOIN onceload.ledger_span USING (pipeline_id, position)
 WHERE pipeline_id = :pipeline_id AND batch = :batch AND ledger.kind = 'load'
   AND (ledger_span.condition = 'replaced' OR position > CAST(:after AS bigint))
 GROUP BY producer;

-- name: ledger_receipts
SELECT position, producer_id, producer, generation, CAST(spans AS text) AS spans, rows, records, digest, fingerprint,
       size, condition
  FROM onceload.ledger_span
 WHERE pipeline_id = :pipeline_id AND position BETWEEN :first AND :last ORDER BY position, producer_id;

-- name: rows_promised
-- The rows of some producers that loads and retries wrote, without rewound entries.
SELECT producer.producer_id, producer.name, CAST(coalesce(sum(receipt.rows), 0) AS bigint) AS rows
  FROM onceload.producer
  LEFT JOIN (SELECT ledger_span.producer_id, ledger_span.rows
               FROM onceload.ledger_span JOIN onceload.ledger_in_force AS ledger USING (pipeline_id, position)
              WHERE ledger_span.pipeline_id = :pipeline_id AND ledger.kind IN ('load', 'retry')
                AND ledger_span.producer_id = ANY(CAST(:producer_ids AS bigint[]))) AS receipt USING (producer_id)
 WHERE producer.producer_id = ANY(CAST(:producer_ids AS bigint[]))
 GROUP BY producer.producer_id, producer.name ORDER BY producer.name;

-- name: rows_unattributed
-- The commits of some producers that loaded more rows than their receipts count: rows without a producer id.
WITH mine AS (
    SELECT position, min(producer) AS name
      FROM onceload.ledger_span
     WHERE pipeline_id = :pipeline_id AND producer_id = ANY(CAST(:producer_ids AS bigint[])) AND NOT isempty(spans)
     GROUP BY position
), attributed AS (
    SELECT position, sum(rows) AS rows
      FROM onceload.ledger_span WHERE pipeline_id = :pipeline_id AND position IN (SELECT position FROM mine)
     GROUP BY position
)
SELECT mine.name, ledger.position, CAST(ledger.loaded - attributed.rows AS bigint) AS rows
  FROM mine JOIN attributed USING (position)
  JOIN onceload.ledger_in_force AS ledger ON ledger.pipeline_id = :pipeline_id AND ledger.position = attributed.position
 WHERE ledger.kind = 'load' AND ledger.loaded <> attributed.rows
 ORDER BY ledger.position;

-- name: proof
-- All receipts, or those that end before a sequence id.
SELECT CAST(coalesce(sum(records), 0) AS bigint) AS records,
       coalesce(string_agg(digest, '' ORDER BY position), '') AS digests
  FROM onceload.ledger_span JOIN onceload.ledger_in_force AS ledger USING (pipeline_id, position)
 WHERE pipeline_id = :pipeline_id AND producer_id = :producer_id AND ledger.kind = 'load'
   AND (CAST(:end AS bigint) IS NULL OR upper(ledger_span.spans) <= :end);

-- name: live_states
SELECT producer_id, name, generation, CAST(consumed AS text) AS consumed, fingerprint, size, condition
  FROM onceload.producer
 WHERE pipeline_id = :pipeline_id AND NOT isempty(consumed) ORDER BY producer_id;

-- name: database_now
SELECT clock_timestamp() AS now;

-- name: today
SELECT CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date);

-- name: prepare_message_days
SELECT onceload.prepare_message_days();
