-- name: records
-- The producer's name comes from the receipt, because the producer itself may be forgotten.
SELECT quarantine.quarantine_id, quarantine.position, entry.version, quarantine.producer_id, quarantine.sequence_id,
       coalesce(receipt.producer, 'producer ' || quarantine.producer_id) AS file, receipt.generation,
       coalesce(producer.condition = 'replaced', false) AS is_replaced,
       substring(quarantine.raw FROM 1 FOR :raw_bytes_max) AS raw, octet_length(quarantine.raw) AS raw_bytes,
       quarantine.column_name, quarantine.reason, quarantine.quarantined_at, quarantine.state,
       quarantine.settled_position, pipeline.name AS pipeline
  FROM onceload.quarantine
  JOIN onceload.pipeline USING (pipeline_id)
  LEFT JOIN onceload.ledger AS entry
       ON entry.pipeline_id = quarantine.pipeline_id AND entry.position = quarantine.position
  LEFT JOIN onceload.ledger_span AS receipt ON receipt.pipeline_id = quarantine.pipeline_id
       AND receipt.position = quarantine.position AND receipt.producer_id = quarantine.producer_id
  LEFT JOIN onceload.producer ON producer.producer_id = quarantine.producer_id
 WHERE quarantine.quarantine_id > :after
   AND (:pipeline IS NULL OR pipeline.name = :pipeline)
   AND (:state IS NULL OR quarantine.state = :state)
   AND (:ids IS NULL OR quarantine.quarantine_id = ANY(CAST(:ids AS bigint[])))
   AND (:file IS NULL OR receipt.producer = :file)
   AND (:reason IS NULL OR strpos(lower(quarantine.reason), lower(:reason)) > 0
        OR strpos(lower(regexp_replace(quarantine.reason, :values, '…', 'g')), lower(:reason)) > 0)
 ORDER BY quarantine.quarantine_id LIMIT :at_most;

-- name: reasons
-- The same records, counted by their reasons without values, each with its oldest record as an example.
WITH kind AS (
SELECT count(*) AS records, quarantine.column_name, regexp_replace(quarantine.reason, :values, '…', 'g') AS reason,
       min(quarantine.quarantine_id) AS example_id
  FROM onceload.quarantine
  JOIN onceload.pipeline USING (pipeline_id)
  LEFT JOIN onceload.ledger_span AS receipt ON receipt.pipeline_id = quarantine.pipeline_id
       AND receipt.position = quarantine.position AND receipt.producer_id = quarantine.producer_id
 WHERE (:pipeline IS NULL OR pipeline.name = :pipeline)
   AND (:state IS NULL OR quarantine.state = :state)
   AND (:ids IS NULL OR quarantine.quarantine_id = ANY(CAST(:ids AS bigint[])))
   AND (:file IS NULL OR receipt.producer = :file)
   AND (:reason IS NULL OR strpos(lower(quarantine.reason), lower(:reason)) > 0
        OR strpos(lower(regexp_replace(quarantine.reason, :values, '…', 'g')), lower(:reason)) > 0)
 GROUP BY quarantine.column_name, regexp_replace(quarantine.reason, :values, '…', 'g')
 ORDER BY records DESC, example_id LIMIT :at_most)
SELECT kind.records, kind.column_name AS column, kind.reason, kind.example_id, example.reason AS example
  FROM kind JOIN onceload.quarantine AS example ON example.quarantine_id = kind.example_id
 ORDER BY kind.records DESC, kind.example_id;

-- name: root
-- The folder that the names of text files are relative to. Records of other files are numbered, and a producer that
-- records name is not a file.
SELECT declaration.terms ->> 'source.root' FROM onceload.pipeline JOIN onceload.declaration USING (pipeline_id, version)
 WHERE pipeline.name = :pipeline AND declaration.terms ->> 'source.format' NOT IN ('parquet', 'orc', 'avro', 'json')
   AND coalesce(declaration.terms ->> 'producer', '') = '';

-- name: declarations
SELECT declaration.version, declaration.terms, declaration.rest, declaration.layout
  FROM onceload.pipeline JOIN onceload.declaration USING (pipeline_id)
 WHERE pipeline.name = :pipeline AND declaration.version = ANY (CAST(:versions AS integer[]));

-- name: note_reasons
-- Only for display: records that were settled meanwhile keep their reason.
UPDATE onceload.quarantine SET reason = noted.reason, column_name = noted.column_name
  FROM unnest(CAST(:ids AS bigint[]), CAST(:reasons AS text[]), CAST(:columns AS text[]))
       AS noted (quarantine_id, reason, column_name)
 WHERE quarantine.quarantine_id = noted.quarantine_id AND quarantine.state = 'held'
   AND (quarantine.reason, quarantine.column_name) IS DISTINCT FROM (noted.reason, noted.column_name);
