-- name: create_used
CREATE {kind} TABLE {table} (producer_id bigint, first bigint, "end" bigint, rows bigint) {until};

-- name: create_messages
CREATE {kind} TABLE {table} (_message bytea) {until};

-- name: offer
-- The advance of each producer. In producer order, so that an advance of many reads them page by page.
CREATE TEMPORARY TABLE onceload_offered ON COMMIT DROP AS
SELECT producer_id, range_agg(int8range(first, "end")) AS spans, CAST(sum(rows) AS bigint) AS rows
  FROM {table} GROUP BY producer_id ORDER BY producer_id;
ANALYZE onceload_offered;

-- name: recount
-- A producer may have no row, and a row may name no producer.
UPDATE onceload_offered AS offered SET rows = coalesce(counted.rows, 0)
  FROM onceload_offered AS own
  LEFT JOIN (SELECT _producer_id AS producer_id, count(*) AS rows FROM {rows} GROUP BY _producer_id) AS counted
 USING (producer_id)
 WHERE own.producer_id = offered.producer_id;

-- name: used_before
SELECT count(*) FROM {table} AS offered JOIN onceload.producer USING (producer_id)
 WHERE producer.consumed && int8range(offered.first, offered."end");

-- name: messages_before
SELECT count(*) FROM {table} AS offered
  JOIN onceload.message AS known ON known.message = offered._message
  JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name = :pipeline
   AND known.day >= CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) - pipeline.message_keep_days;
