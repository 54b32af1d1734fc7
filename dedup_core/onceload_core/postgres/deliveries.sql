-- name: lock_board
-- Hand-outs in order are serialized.
SELECT pg_advisory_xact_lock(hashtextextended('onceload.board ' || CAST(:pipeline_id AS text), 0));

-- name: without_flush
-- A hand-out that a crash of the server loses is repeated, so there is no need to wait for the disk.
SET LOCAL synchronous_commit TO off;

-- name: add_sessions
INSERT INTO onceload.session (pipeline_id, name) SELECT :pipeline_id, unnest(CAST(:names AS text[]))
ON CONFLICT ON CONSTRAINT session_names_have_no_twins DO NOTHING;

-- name: end_claim
-- Deletes no row if the claim has already ended.
DELETE FROM onceload.delivery USING onceload.session
 WHERE delivery_id = :delivery_id AND state = 'held' AND work IS NULL AND delivery.epoch = :epoch
   AND deadline_at > clock_timestamp() AND session.session_id = delivery.session_id
   AND session.name = :session AND session.epoch = :epoch AND session.pipeline_id = :pipeline_id;

-- name: keep_claim
-- The same check for a claim that continues.
SELECT delivery_id FROM onceload.delivery JOIN onceload.session USING (session_id)
 WHERE delivery_id = :delivery_id AND state = 'held' AND work IS NULL AND delivery.epoch = :epoch
   AND deadline_at > clock_timestamp()
   AND session.name = :session AND session.epoch = :epoch AND session.pipeline_id = :pipeline_id
   FOR UPDATE OF delivery;

-- name: offer_deliveries
INSERT INTO onceload.delivery (pipeline_id, batch, state, work)
SELECT :pipeline_id, :batch, 'waiting', work
  FROM unnest(CAST(:works AS text[])) WITH ORDINALITY AS offered (work, number) ORDER BY number
RETURNING delivery_id;

-- name: offer_spans
INSERT INTO onceload.delivery_span (delivery_id, producer_id, spans)
SELECT * FROM unnest(CAST(:delivery_ids AS bigint[]), CAST(:producer_ids AS bigint[]),
                     CAST(:spans AS int8multirange[]));

-- name: line_up_session
-- Round robin over the fixed sessions, from where the last offer stopped.
WITH new AS (
    SELECT delivery_id, row_number() OVER (ORDER BY delivery_id) AS number
      FROM onceload.delivery
     WHERE pipeline_id = :pipeline_id AND delivery_id >= :first_id AND state = 'waiting'
), turn AS (
    UPDATE onceload.pipeline SET offered = offered + (SELECT count(*) FROM new) WHERE pipeline_id = :pipeline_id
    RETURNING offered - (SELECT count(*) FROM new) AS before
)
UPDATE onceload.delivery SET session_id = session.session_id
  FROM new, turn, onceload.session
 WHERE delivery.delivery_id = new.delivery_id AND session.pipeline_id = :pipeline_id
   AND session.name = CAST(1 + (turn.before + new.number - 1) % :sessions AS text);

-- name: line_up_ordered
-- To the session that keeps the line, if any.
UPDATE onceload.delivery SET session_id = (
       SELECT session_id FROM onceload.delivery AS older
        WHERE older.pipeline_id = :pipeline_id AND older.delivery_id < :first_id
          AND older.state IN ('waiting', 'held') AND older.work IS NOT NULL AND NOT older.is_staged
        ORDER BY older.delivery_id DESC LIMIT 1)
 WHERE pipeline_id = :pipeline_id AND delivery_id >= :first_id AND state = 'waiting';

-- name: line_up_key_shared
UPDATE onceload.delivery SET session_id = (
       SELECT older.session_id
         FROM onceload.delivery_span AS its
         JOIN onceload.delivery_span AS theirs USING (producer_id)
         JOIN onceload.delivery AS older ON older.delivery_id = theirs.delivery_id
        WHERE its.delivery_id = delivery.delivery_id AND older.delivery_id < :first_id
          AND older.state IN ('waiting', 'held') AND older.work IS NOT NULL AND NOT older.is_staged
        ORDER BY older.delivery_id DESC LIMIT 1)
 WHERE pipeline_id = :pipeline_id AND delivery_id >= :first_id AND state = 'waiting';

-- name: adopt_strays
-- In mode session: deliveries of no existing session go to the first one.
UPDATE onceload.delivery SET session_id = (
       SELECT session_id FROM onceload.session WHERE pipeline_id = :pipeline_id AND name = '1')
 WHERE pipeline_id = :pipeline_id AND state = 'waiting' AND work IS NOT NULL AND NOT is_staged
   AND NOT EXISTS (
       SELECT FROM onceload.session
        WHERE session.session_id = delivery.session_id AND name = ANY(CAST(:names AS text[])));

-- name: look_at_session
SELECT session_id, lease_until > clock_timestamp() AS is_alive
  FROM onceload.session WHERE pipeline_id = :pipeline_id AND name = :session FOR UPDATE;

-- name: version
SELECT version, declared_at
  FROM onceload.pipeline LEFT JOIN onceload.declaration USING (pipeline_id, version)
 WHERE pipeline_id = :pipeline_id;

-- name: open_session
-- The epoch is a time, as in the ledger's open_session: no failover or restore repeats it.
INSERT INTO onceload.session (pipeline_id, name, epoch, lease_until)
VALUES (:pipeline_id, :session, CAST(1000000 * extract(epoch FROM clock_timestamp()) AS bigint),
        clock_timestamp() + make_interval(secs => :ack_deadline_s))
ON CONFLICT ON CONSTRAINT session_names_have_no_twins DO UPDATE
   SET epoch = greatest(session.epoch + 1, excluded.epoch), opened_at = clock_timestamp(),
       lease_until = excluded.lease_until
RETURNING session_id, epoch;

-- name: share_out_again
UPDATE onceload.delivery SET session_id = NULL
 WHERE pipeline_id = :pipeline_id AND state = 'waiting' AND session_id IS NOT NULL AND NOT is_staged;

-- name: sessions_of_batch
SELECT session_id, name, epoch FROM onceload.session
 WHERE pipeline_id = :pipeline_id AND starts_with(name, :prefix)
 ORDER BY session_id FOR UPDATE;

-- name: end_sessions
-- What they have claimed and not kept is free.
WITH released AS (
    DELETE FROM onceload.delivery
     WHERE pipeline_id = :pipeline_id AND state = 'held' AND work IS NULL AND stage IS NULL
       AND session_id = ANY(CAST(:session_ids AS bigint[]))
)
UPDATE onceload.session SET epoch = epoch + 1, lease_until = least(lease_until, clock_timestamp())
 WHERE session_id = ANY(CAST(:session_ids AS bigint[]));

-- name: lock_batch
-- No session of the batch begins, and none takes a delivery, until the end of the transaction.
SELECT session_id FROM onceload.session
 WHERE pipeline_id = :pipeline_id AND starts_with(name, :prefix) ORDER BY session_id FOR UPDATE;

-- name: end_batch_and_give_back
-- Ends all sessions of a batch, unless a later epoch of its planner has begun. What they hold waits again, and this does
-- not count as a try. Also says whether there are staging tables, such as those of a killed load.
WITH ending AS MATERIALIZED (
    SELECT session_id FROM onceload.session
     WHERE pipeline_id = :pipeline_id AND starts_with(name, :prefix)
       AND EXISTS (SELECT FROM onceload.session AS planner
                    WHERE planner.pipeline_id = :pipeline_id AND planner.name = :name AND planner.epoch = :epoch)
), ended AS (
    UPDATE onceload.session SET epoch = session.epoch + 1, lease_until = least(lease_until, clock_timestamp())
      FROM ending WHERE session.session_id = ending.session_id
), given_back AS (
    UPDATE onceload.delivery SET state = 'waiting', epoch = NULL, deadline_at = NULL, tries = tries - 1
      FROM ending
     WHERE pipeline_id = :pipeline_id AND state = 'held' AND work IS NOT NULL
       AND delivery.session_id = ending.session_id
)
SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('onceload_stage'));

-- name: move_lease
UPDATE onceload.session SET lease_until = clock_timestamp() + make_interval(secs => :ack_deadline_s)
 WHERE session_id = :session_id AND epoch = :epoch;

-- name: move_deadlines
UPDATE onceload.delivery SET deadline_at = session.lease_until
  FROM onceload.session
 WHERE session.session_id = :session_id AND delivery.session_id = :session_id AND delivery.epoch = :epoch
   AND delivery.pipeline_id = :pipeline_id AND delivery.state = 'held' AND delivery.work IS NOT NULL;

-- name: end_lease
UPDATE onceload.session SET lease_until = clock_timestamp() WHERE session_id = :session_id AND epoch = :epoch;

-- name: take
-- Returns no row if a later epoch of the session took over, or another version of the declaration is in force.
WITH mine AS (
    UPDATE onceload.session SET lease_until = clock_timestamp() + make_interval(secs => :ack_deadline_s)
     WHERE session_id = :session_id AND epoch = :epoch
       AND EXISTS (SELECT FROM onceload.pipeline WHERE pipeline_id = :pipeline_id AND version = :version)
    RETURNING session_id, epoch, lease_until
), next AS (
    SELECT found.delivery_id FROM mine, ({next}) AS found
), kept AS (
    {kept}
), taken AS (
    UPDATE onceload.delivery
       SET state = 'held', session_id = mine.session_id, epoch = mine.epoch, deadline_at = mine.lease_until,
           tries = tries + 1
      FROM next, mine
     WHERE delivery.delivery_id = next.delivery_id AND delivery.state = 'waiting'
    RETURNING delivery.delivery_id, delivery.batch, delivery.work, delivery.tries
)
SELECT taken.* FROM mine LEFT JOIN taken ON true;

-- name: next_shared
SELECT delivery_id FROM onceload.delivery
 WHERE pipeline_id = :pipeline_id AND state = 'waiting' AND NOT is_staged
 ORDER BY delivery_id LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: next_session
SELECT delivery_id FROM onceload.delivery
 WHERE pipeline_id = :pipeline_id AND state = 'waiting' AND session_id = :session_id AND NOT is_staged
   AND NOT EXISTS (
       SELECT FROM onceload.delivery AS in_hand
        WHERE in_hand.pipeline_id = :pipeline_id AND in_hand.state = 'held' AND in_hand.session_id = :session_id
          AND in_hand.work IS NOT NULL)
 ORDER BY delivery_id LIMIT 1

-- name: next_ordered
SELECT delivery_id
  FROM onceload.delivery LEFT JOIN onceload.session AS keeper USING (session_id)
 WHERE delivery_id = (
       SELECT min(delivery_id) FROM onceload.delivery
        WHERE pipeline_id = :pipeline_id AND state IN ('waiting', 'held') AND work IS NOT NULL AND NOT is_staged)
   AND state = 'waiting'
   AND NOT EXISTS (
       SELECT FROM onceload.delivery AS in_hand
        WHERE in_hand.pipeline_id = :pipeline_id AND in_hand.state = 'held' AND in_hand.work IS NOT NULL
          AND NOT in_hand.is_staged)
   AND (session_id IS NULL OR session_id = :session_id OR keeper.lease_until <= clock_timestamp())

-- name: next_key_shared
SELECT delivery_id
  FROM onceload.delivery LEFT JOIN onceload.session AS keeper USING (session_id)
 WHERE delivery.pipeline_id = :pipeline_id AND delivery.state = 'waiting' AND NOT delivery.is_staged
   AND (session_id IS NULL OR session_id = :session_id OR keeper.lease_until <= clock_timestamp())
   -- No other delivery of its producers is held or waits before it.
   AND NOT EXISTS (
       SELECT FROM onceload.delivery_span AS its
         JOIN onceload.delivery_span AS theirs USING (producer_id)
         JOIN onceload.delivery AS other ON other.delivery_id = theirs.delivery_id
        WHERE its.delivery_id = delivery.delivery_id AND theirs.delivery_id <> its.delivery_id
          AND other.work IS NOT NULL AND NOT other.is_staged
          AND (other.state = 'held' OR (other.state = 'waiting' AND other.delivery_id < delivery.delivery_id)))
 ORDER BY delivery_id LIMIT 1

-- name: kept_none
SELECT

-- name: kept_ordered
UPDATE onceload.delivery SET session_id = :session_id
 WHERE pipeline_id = :pipeline_id AND state = 'waiting' AND NOT is_staged
   AND session_id IS DISTINCT FROM :session_id AND delivery_id <> (SELECT delivery_id FROM next)

-- name: kept_key_shared
UPDATE onceload.delivery SET session_id = :session_id
 WHERE state = 'waiting' AND NOT is_staged AND session_id IS DISTINCT FROM :session_id
   AND delivery_id IN (
       SELECT other.delivery_id
         FROM next JOIN onceload.delivery_span AS its USING (delivery_id)
         JOIN onceload.delivery_span AS other ON other.producer_id = its.producer_id
        WHERE other.delivery_id <> next.delivery_id)

-- name: fall_back
-- The error history records the session that held it. After the last try it becomes a dead letter.
WITH fallen AS (
    UPDATE onceload.delivery
       SET state = CASE WHEN tries < :deliveries_max THEN 'waiting' ELSE 'dead' END, epoch = NULL, deadline_at = NULL
      FROM (
           SELECT delivery_id AS lost_id, epoch AS lost_epoch FROM onceload.delivery
            WHERE pipeline_id = :pipeline_id AND state = 'held' AND work IS NOT NULL AND {which}) AS lost
     WHERE delivery_id = lost_id
    RETURNING delivery_id, tries, session_id, lost_epoch
)
INSERT INTO onceload.delivery_failure (delivery_id, try, session, epoch, reason)
SELECT delivery_id, tries, session.name, lost_epoch, :reason FROM fallen JOIN onceload.session USING (session_id)
RETURNING delivery_id, try AS tries, try >= :deliveries_max AS is_dead;

-- name: end_leases_of_another_clock
-- No lease can end this late, so the clock was ahead when it was taken, and was set back since. A holder that is alive
-- renews its lease or is refused at its commit. A kept batch stays for another lease.
WITH sessions AS (
    UPDATE onceload.session SET lease_until = clock_timestamp()
     WHERE pipeline_id = :pipeline_id AND lease_until > clock_timestamp() + make_interval(secs => :lease_max_s)
)
UPDATE onceload.delivery
   SET deadline_at = clock_timestamp() + make_interval(secs => CASE WHEN stage IS NULL THEN 0 ELSE :kept_s END)
 WHERE pipeline_id = :pipeline_id AND state = 'held'
   AND deadline_at > clock_timestamp() + make_interval(secs => :lease_max_s);

-- name: which_late
deadline_at <= clock_timestamp() FOR UPDATE SKIP LOCKED

-- name: which_late_strays
deadline_at <= clock_timestamp()
   AND (is_staged OR NOT EXISTS (
        SELECT FROM onceload.session
         WHERE session.session_id = delivery.session_id AND name = ANY(CAST(:names AS text[]))))
   FOR UPDATE SKIP LOCKED

-- name: which_one
delivery_id = :delivery_id AND session_id = :session_id AND epoch = :epoch FOR UPDATE

-- name: which_of_sessions
session_id = ANY(CAST(:session_ids AS bigint[])) FOR UPDATE

-- name: give_back
UPDATE onceload.delivery SET state = 'waiting', epoch = NULL, deadline_at = NULL, tries = tries - 1
 WHERE pipeline_id = :pipeline_id AND state = 'held' AND work IS NOT NULL
   AND session_id = ANY(CAST(:session_ids AS bigint[]));

-- name: note
-- Records progress for the next worker. No row changes if another session holds the delivery now.
UPDATE onceload.delivery SET work = :work
 WHERE delivery_id = :delivery_id AND state = 'held' AND session_id = :session_id AND epoch = :epoch;

-- name: set_aside
-- A part of a batch becomes a dead letter, with the failure of each try.
WITH apart AS (
    INSERT INTO onceload.delivery (pipeline_id, batch, state, session_id, tries, work, is_staged)
    SELECT :pipeline_id, :batch, 'dead', session_id, cardinality(CAST(:reasons AS text[])), :work, true
      FROM onceload.session WHERE pipeline_id = :pipeline_id AND name = :session
    RETURNING delivery_id
), failed AS (
    INSERT INTO onceload.delivery_failure (delivery_id, try, session, epoch, reason)
    SELECT delivery_id, try, :session, :epoch, reason
      FROM apart, unnest(CAST(:reasons AS text[])) WITH ORDINALITY AS failure (reason, try)
)
SELECT delivery_id FROM apart;

-- name: part_with
-- A part of a held delivery becomes a dead letter with all its failures. The rest stays in place and held.
WITH rest AS (
    UPDATE onceload.delivery SET work = :rest, tries = :tries
     WHERE delivery_id = :delivery_id AND state = 'held' AND session_id = :session_id AND epoch = :epoch
       -- If the answer of an earlier call was lost, no row changes, and the session returns the rest.
       AND work IS DISTINCT FROM :rest
    RETURNING pipeline_id, batch, session_id, parent_id, is_staged
), apart AS (
    INSERT INTO onceload.delivery (pipeline_id, batch, state, session_id, tries, parent_id, work, is_staged)
    SELECT pipeline_id, batch, 'dead', session_id, CAST(:deliveries_max AS integer), parent_id, :work, is_staged
      FROM rest
    RETURNING delivery_id
), its AS (
    DELETE FROM onceload.delivery_span USING apart
     WHERE delivery_span.delivery_id = :delivery_id AND producer_id = ANY(CAST(:producer_ids AS bigint[]))
    RETURNING apart.delivery_id, producer_id, spans
), moved AS (
    INSERT INTO onceload.delivery_span (delivery_id, producer_id, spans) SELECT * FROM its
), failed AS (
    INSERT INTO onceload.delivery_failure (delivery_id, try, session, epoch, reason, failed_at)
    SELECT apart.delivery_id, try, session, epoch, reason, failed_at
      FROM apart, onceload.delivery_failure AS failure WHERE failure.delivery_id = :delivery_id
    UNION ALL
    SELECT apart.delivery_id, :deliveries_max, :session, :epoch, :reason, clock_timestamp() FROM apart
)
SELECT delivery_id FROM apart;

-- name: open_deliveries
SELECT count(*) AS all, count(*) FILTER (WHERE state = 'waiting') AS waiting,
       coalesce(bool_or(batch = :batch), false) AS of_batch,
       coalesce(bool_or(session.name = CAST(:session AS text)), false) AS of_session
  FROM onceload.delivery LEFT JOIN onceload.session USING (session_id)
 WHERE delivery.pipeline_id = :pipeline_id AND work IS NOT NULL AND state IN ('waiting', 'held');

-- name: is_being_planned
SELECT EXISTS (
       SELECT FROM onceload.claim
        WHERE pipeline_id = :pipeline_id AND is_held AND delivery_id NOT IN ({lost}));

-- name: holders
-- Claims that have ended may still have a row. Kept batches are reported with their files.
SELECT session.name, min(coalesce(parent_id, delivery_id)) AS delivery, max(deadline_at) AS deadline_at
  FROM onceload.delivery JOIN onceload.session USING (session_id)
 WHERE delivery.pipeline_id = :pipeline_id AND delivery.state = 'held'
   AND (work IS NOT NULL OR (deadline_at > clock_timestamp() AND delivery.epoch = session.epoch))
   AND delivery.stage IS NULL
 GROUP BY session.name ORDER BY session.name LIMIT 5;
