-- name: commits
-- Each with the rewind that rolled it back, if one did.
SELECT ledger.position, ledger.kind, ledger.batch, ledger.session, ledger.dag_id, ledger.run_id, ledger.try_number,
       ledger.loaded, ledger.duplicate, ledger.quarantined, ledger.filtered, ledger.bytes, ledger.committed_at,
       ledger.rewound_to, ledger.version,
       (SELECT min(rewind.position) FROM onceload.ledger AS rewind
         WHERE rewind.pipeline_id = ledger.pipeline_id AND rewind.kind = 'rewind'
           AND rewind.position > ledger.position AND rewind.rewound_to < ledger.position) AS rolled_back_by
  FROM onceload.ledger
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.position < :before
 ORDER BY ledger.position DESC LIMIT :at_most;

-- name: files
-- The names are found in the index alone.
WITH named AS (
    SELECT name, generation FROM onceload.producer
     WHERE pipeline_id = :pipeline_id AND (name, generation) > (:after, :after_generation) AND (:search = '' OR strpos(name, :search) > 0)
     ORDER BY name, generation LIMIT :at_most)
SELECT producer.producer_id, producer.name, producer.generation, producer.condition, producer.size,
       producer.advanced_at, upper(producer.consumed) AS "end", isempty(producer.consumed) AS is_empty,
       (SELECT shared.name FROM onceload.producer AS shared WHERE shared.producer_id = producer.copy_of) AS copy_of,
       (SELECT count(*) FROM onceload.quarantine AS record
         WHERE record.producer_id = producer.producer_id AND record.state = 'held') AS quarantined,
       -- The worst: dead before held before waiting.
       (SELECT min(delivery.state) FROM onceload.delivery_span JOIN onceload.delivery USING (delivery_id)
         WHERE delivery_span.producer_id = producer.producer_id
           AND delivery.state IN ('waiting', 'held', 'dead')
           AND (delivery.work IS NOT NULL OR delivery.deadline_at > clock_timestamp())) AS work
  FROM named JOIN onceload.producer ON producer.pipeline_id = :pipeline_id
       AND producer.name = named.name AND producer.generation = named.generation
 ORDER BY producer.name, producer.generation;

-- name: audits
SELECT audit.audit_id, audit.batch, audit.suite, audit.passed, audit.rows, audit.audited_at, audit.kept_until,
       (SELECT count(*) FROM onceload.quality_result AS result
         WHERE result.audit_id = audit.audit_id AND NOT result.success) AS failed
  FROM onceload.audit WHERE audit.pipeline_id = :pipeline_id
 ORDER BY audit.audit_id DESC LIMIT :at_most;

-- name: snapshots
SELECT snapshot.position, snapshot.producers, snapshot.taken_at,
       pipeline.position - snapshot.position AS commits_since
  FROM onceload.snapshot JOIN onceload.pipeline USING (pipeline_id)
 WHERE snapshot.pipeline_id = :pipeline_id ORDER BY snapshot.position DESC LIMIT :at_most;

-- name: declarations
SELECT declaration.version, declaration.declared_at, declaration.terms, declaration.rest
  FROM onceload.declaration WHERE declaration.pipeline_id = :pipeline_id
 ORDER BY declaration.version DESC LIMIT :at_most;

-- name: commits_of_batch
SELECT ledger.position, ledger.kind, ledger.batch, ledger.session, ledger.dag_id, ledger.run_id, ledger.try_number,
       ledger.loaded, ledger.duplicate, ledger.quarantined, ledger.filtered, ledger.bytes, ledger.committed_at,
       ledger.rewound_to, ledger.version, ledger.engine, ledger.spark_ui,
       (SELECT min(rewind.position) FROM onceload.ledger AS rewind
         WHERE rewind.pipeline_id = ledger.pipeline_id AND rewind.kind = 'rewind'
           AND rewind.position > ledger.position AND rewind.rewound_to < ledger.position) AS rolled_back_by
  FROM onceload.ledger
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.batch = :batch
 ORDER BY ledger.position DESC LIMIT :at_most;

-- name: receipts_of_batch
SELECT receipt.position, receipt.producer, receipt.generation, receipt.rows, receipt.records,
       CAST(receipt.spans AS text) AS spans
  FROM onceload.ledger JOIN onceload.ledger_span AS receipt USING (pipeline_id, position)
 WHERE ledger.pipeline_id = :pipeline_id AND ledger.batch = :batch
 ORDER BY receipt.position DESC, receipt.producer LIMIT :at_most;

-- name: findings_of_batch
SELECT audit.passed, audit.suite, audit.audited_at, audit.rows, result.expectation, result.about, result.severity,
       result.success, result.unexpected, result.checked, result.observed, result.sample
  FROM onceload.audit LEFT JOIN onceload.quality_result AS result USING (audit_id)
 WHERE audit.pipeline_id = :pipeline_id AND audit.batch = :batch
 ORDER BY audit.audit_id DESC, result.success, result.number LIMIT :at_most;
