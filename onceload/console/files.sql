-- name: generations
SELECT producer.producer_id, producer.name, producer.generation, producer.size, producer.condition,
       producer.advanced_at, CAST(producer.consumed AS text) AS consumed,
       (SELECT shared.name FROM onceload.producer AS shared WHERE shared.producer_id = producer.copy_of) AS copy_of,
       (SELECT count(*) FROM onceload.quarantine AS record
         WHERE record.producer_id = producer.producer_id AND record.state = 'held') AS quarantined
  FROM onceload.producer WHERE producer.pipeline_id = :pipeline_id AND producer.name = :name
 ORDER BY producer.generation DESC LIMIT :at_most;

-- name: known
-- Which of these files a load has registered.
SELECT DISTINCT name FROM onceload.producer WHERE pipeline_id = :pipeline_id AND name = ANY(CAST(:names AS text[]));

-- name: receipts
-- What loads read of these producers, the newest first. An index finds the receipts that have read records.
SELECT receipt.position, receipt.producer_id, receipt.generation, CAST(receipt.spans AS text) AS spans, receipt.rows,
       receipt.records, ledger.batch, ledger.kind, ledger.session, ledger.dag_id, ledger.run_id, ledger.committed_at
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger USING (pipeline_id, position)
 WHERE receipt.producer_id = ANY(CAST(:producer_ids AS bigint[])) AND receipt.records > 0
   AND receipt.pipeline_id = :pipeline_id
 ORDER BY receipt.position DESC LIMIT :at_most;

-- name: bad_records
SELECT record.quarantine_id, record.producer_id, record.sequence_id
  FROM onceload.quarantine AS record
 WHERE record.producer_id = ANY(CAST(:producer_ids AS bigint[])) AND record.state = 'held'
 ORDER BY record.producer_id, record.sequence_id LIMIT :at_most;

-- name: work
-- Parts that wait, are in progress, or are dead letters.
SELECT delivery.delivery_id, delivery.state, delivery.batch, delivery.deadline_at, session.name AS session,
       delivery_span.producer_id, CAST(delivery_span.spans AS text) AS spans
  FROM onceload.delivery_span
  JOIN onceload.delivery USING (delivery_id)
  LEFT JOIN onceload.session ON session.session_id = delivery.session_id AND delivery.state = 'held'
 WHERE delivery_span.producer_id = ANY(CAST(:producer_ids AS bigint[]))
   AND delivery.state IN ('waiting', 'held', 'dead')
   AND (delivery.work IS NOT NULL OR delivery.deadline_at > clock_timestamp())
 ORDER BY delivery.delivery_id LIMIT :at_most;

-- name: producer
SELECT producer.producer_id, producer.name, producer.generation, producer.condition,
       producer.consumed @> CAST(:sequence AS bigint) AS is_consumed
  FROM onceload.producer
 WHERE producer.pipeline_id = :pipeline_id AND producer.producer_id = :producer_id;

-- name: commit_of_row
-- The commit that consumed a record; a rewind may have rolled back an earlier one.
SELECT receipt.position, receipt.producer, receipt.generation, receipt.rows, CAST(receipt.spans AS text) AS spans,
       ledger.kind, ledger.batch, ledger.session, ledger.dag_id, ledger.run_id, ledger.try_number, ledger.committed_at,
       ledger.version
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger USING (pipeline_id, position)
 WHERE receipt.producer_id = :producer_id AND receipt.records > 0 AND receipt.pipeline_id = :pipeline_id
   AND receipt.spans @> CAST(:sequence AS bigint)
 ORDER BY receipt.position DESC LIMIT 1;

-- name: bad_record
SELECT record.quarantine_id, record.state, record.settled_position, record.reason
  FROM onceload.quarantine AS record
 WHERE record.producer_id = :producer_id AND record.sequence_id = :sequence AND record.pipeline_id = :pipeline_id;

-- name: digests
-- The loaded parts of a file, with the digests of its bytes; without commits that a rewind rolled back.
SELECT receipt.position, receipt.rows, receipt.records, receipt.digest, ledger.batch, ledger.dag_id, ledger.run_id,
       ledger.committed_at
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger USING (pipeline_id, position)
 WHERE receipt.producer_id = :producer_id AND receipt.records > 0 AND receipt.pipeline_id = :pipeline_id
   AND ledger.kind = 'load' AND receipt.digest IS NOT NULL
   AND NOT EXISTS (SELECT FROM onceload.ledger AS rewind
                    WHERE rewind.pipeline_id = ledger.pipeline_id AND rewind.kind = 'rewind'
                      AND rewind.position > ledger.position AND rewind.rewound_to < ledger.position)
 ORDER BY receipt.position LIMIT :at_most;

-- name: rows_of_file
-- Receipts of retries read no records of the file: their rows are the quarantined records that were retried.
SELECT CAST(coalesce(sum(receipt.rows), 0) AS bigint)
       + (SELECT count(*) FROM onceload.quarantine AS record
           WHERE record.producer_id = :producer_id AND record.state = 'retried')
  FROM onceload.ledger_span AS receipt JOIN onceload.ledger USING (pipeline_id, position)
 WHERE receipt.producer_id = :producer_id AND receipt.records > 0 AND receipt.pipeline_id = :pipeline_id
   AND ledger.kind = 'load'
   AND NOT EXISTS (SELECT FROM onceload.ledger AS rewind
                    WHERE rewind.pipeline_id = ledger.pipeline_id AND rewind.kind = 'rewind'
                      AND rewind.position > ledger.position AND rewind.rewound_to < ledger.position);
