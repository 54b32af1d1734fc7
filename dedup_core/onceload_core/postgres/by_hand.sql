-- name: list_deliveries
-- With the claims of planners, which have no work of their own. Claims that have ended may still have a row.
SELECT delivery.delivery_id AS delivery, delivery.state, delivery.batch, session.name AS session, delivery.epoch,
       delivery.tries, delivery.deadline_at, delivery.offered_at,
       (SELECT min(producer.name) FROM onceload.delivery_span JOIN onceload.producer USING (producer_id)
         WHERE delivery_span.delivery_id = delivery.delivery_id) AS producer,
       (SELECT count(*) FROM onceload.delivery_span WHERE delivery_span.delivery_id = delivery.delivery_id) AS producers,
       (SELECT reason FROM onceload.delivery_failure AS failure
         WHERE failure.delivery_id = delivery.delivery_id ORDER BY failed_at DESC LIMIT 1) AS last_failure
  FROM onceload.delivery LEFT JOIN onceload.session USING (session_id)
 WHERE delivery.pipeline_id = :pipeline_id
   AND (delivery.work IS NOT NULL OR (delivery.deadline_at > clock_timestamp() AND delivery.epoch = session.epoch))
   AND (CAST(:state AS text) IS NULL OR delivery.state = :state)
 ORDER BY delivery.delivery_id LIMIT :at_most;

-- name: one_delivery
SELECT delivery.delivery_id AS delivery, pipeline.name AS pipeline, delivery.state, delivery.is_staged, delivery.batch,
       session.name AS session, delivery.epoch, delivery.tries, delivery.deadline_at, delivery.offered_at,
       delivery.parent_id
  FROM onceload.delivery JOIN onceload.pipeline USING (pipeline_id)
  LEFT JOIN onceload.session ON session.session_id = delivery.session_id
 WHERE delivery.delivery_id = :delivery_id

-- name: spans_of_delivery
SELECT coalesce(producer.name, 'a forgotten producer') AS producer, producer.generation,
       CAST(delivery_span.spans AS text) AS spans
  FROM onceload.delivery_span LEFT JOIN onceload.producer USING (producer_id)
 WHERE delivery_span.delivery_id = :delivery_id ORDER BY producer.name LIMIT :at_most;

-- name: failures_of_delivery
SELECT try, session, epoch, failed_at, reason FROM onceload.delivery_failure
 WHERE delivery_id = :delivery_id ORDER BY failed_at, try;

-- name: redrive
UPDATE onceload.delivery SET state = 'waiting', tries = 0, epoch = NULL WHERE delivery_id = :delivery_id;

-- name: abandon
DELETE FROM onceload.delivery WHERE delivery_id = :delivery_id;
