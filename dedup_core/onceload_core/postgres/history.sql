-- name: generations
-- Every generation of a name: as it is now or, if forgotten, as its receipts record it.
SELECT producer_id, name, generation, CAST(consumed AS text) AS consumed, size, condition, advanced_at,
       (SELECT count(*) FROM onceload.quarantine WHERE quarantine.producer_id = producer.producer_id) AS quarantined,
       (SELECT shared.name FROM onceload.producer AS shared WHERE shared.producer_id = producer.copy_of) AS copy_of,
       false AS is_forgotten
  FROM onceload.producer WHERE pipeline_id = :pipeline_id AND name = :name
UNION ALL
SELECT receipt.producer_id, receipt.producer, receipt.generation, CAST(receipt.spans AS text), receipt.size,
       receipt.condition, ledger.committed_at,
       (SELECT count(*) FROM onceload.quarantine WHERE quarantine.producer_id = receipt.producer_id), NULL, true
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger USING (pipeline_id, position)
 WHERE receipt.pipeline_id = :pipeline_id AND receipt.producer = :name AND ledger.kind = 'forget'
 ORDER BY 3, 1;

-- name: commits_of
-- Includes retried and discarded records, which were consumed before, and the earlier commits of a producer that got
-- this name later.
SELECT receipt.position, ledger.committed_at, ledger.batch, ledger.kind, receipt.generation,
       CAST(receipt.spans AS text) AS spans, receipt.rows, length(receipt.digest) > 0 AS is_of_file
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger USING (pipeline_id, position)
 WHERE receipt.pipeline_id = :pipeline_id AND NOT isempty(receipt.spans)
   AND (receipt.producer = :name OR receipt.producer_id IN (
        SELECT producer_id FROM onceload.producer WHERE pipeline_id = :pipeline_id AND name = :name))
   AND ledger.kind <> 'forget'
 ORDER BY receipt.position, receipt.generation;

-- name: live_claims_of
SELECT session.name AS session, CAST(delivery_span.spans AS text) AS spans, delivery.batch, delivery.state,
       delivery.delivery_id, delivery.deadline_at
  FROM onceload.claim
  JOIN onceload.delivery USING (delivery_id)
  LEFT JOIN onceload.session ON session.session_id = delivery.session_id AND delivery.state = 'held'
  JOIN onceload.delivery_span USING (delivery_id)
  JOIN onceload.producer USING (producer_id)
 WHERE producer.pipeline_id = :pipeline_id AND producer.name = :name AND delivery.delivery_id NOT IN ({lost})
 ORDER BY delivery.delivery_id LIMIT 20;

-- name: names
SELECT DISTINCT name FROM onceload.producer WHERE pipeline_id = :pipeline_id ORDER BY name LIMIT :at_most;
