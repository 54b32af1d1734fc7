-- name: kinds
-- The newest held records by their reasons without values; older ones are not read.
WITH newest AS (
    SELECT quarantine_id, column_name, reason, quarantined_at FROM onceload.quarantine
     WHERE pipeline_id = :pipeline_id AND state = 'held' ORDER BY quarantine_id DESC LIMIT :read_at_most),
kind AS (
    SELECT count(*) AS records, column_name, regexp_replace(reason, :values, '…', 'g') AS kind,
           max(quarantine_id) AS example_id, max(quarantined_at) AS newest_at
      FROM newest GROUP BY column_name, kind)
SELECT kind.records, kind.column_name, kind.kind, kind.example_id, kind.newest_at, newest.reason AS example,
       (SELECT count(*) FROM newest) AS read
  FROM kind JOIN newest ON newest.quarantine_id = kind.example_id
 ORDER BY kind.records DESC, kind.example_id DESC LIMIT :at_most;

-- name: newest
SELECT coalesce(max(quarantine_id), 0) FROM onceload.quarantine WHERE pipeline_id = :pipeline_id AND state = 'held';

-- name: ids_of_kind
SELECT record.quarantine_id FROM onceload.quarantine AS record
 WHERE record.pipeline_id = :pipeline_id AND record.state = 'held'
   AND record.quarantine_id <= :seen AND record.column_name IS NOT DISTINCT FROM CAST(:column AS text)
   AND regexp_replace(record.reason, :values, '…', 'g') = :kind
   AND (CAST(:file AS text) IS NULL
        OR record.producer_id IN (SELECT producer_id FROM onceload.producer
                                   WHERE pipeline_id = :pipeline_id AND name = :file))
 ORDER BY record.quarantine_id LIMIT :at_most;

-- name: records
SELECT record.quarantine_id, record.position, record.producer_id, record.sequence_id, record.column_name,
       record.reason, record.quarantined_at, record.state, record.settled_position,
       substring(record.raw FROM 1 FOR :raw_bytes_max) AS raw, octet_length(record.raw) AS raw_bytes,
       coalesce(producer.name, 'producer ' || record.producer_id) AS file, producer.generation
  FROM onceload.quarantine AS record
  LEFT JOIN onceload.producer ON producer.producer_id = record.producer_id
 WHERE record.pipeline_id = :pipeline_id AND record.state = 'held' AND record.quarantine_id < :before
   AND (CAST(:kind AS text) IS NULL OR (regexp_replace(record.reason, :values, '…', 'g') = :kind
                                         AND record.column_name IS NOT DISTINCT FROM CAST(:column AS text)))
   AND (CAST(:file AS text) IS NULL OR producer.name = :file)
 ORDER BY record.quarantine_id DESC LIMIT :at_most;
