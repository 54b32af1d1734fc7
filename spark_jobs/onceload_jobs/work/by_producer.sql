-- name: create_called
-- What the records of a bucket call their producers, for one transaction.
CREATE TEMPORARY TABLE onceload_called (number bigint, called {type}, first bigint, last bigint) ON COMMIT DROP;

-- name: name_them
-- The names of the producers, with the collation of the names in the ledger.
CREATE TEMPORARY TABLE onceload_named ON COMMIT DROP AS
SELECT number, (:prefix || CAST({called} AS text)) COLLATE pg_catalog."default" AS name, first, last
  FROM onceload_called;
ANALYZE onceload_named;

-- name: look_up
-- The producer of each number, the end of what it has consumed, and whether a file has its name.
SELECT named.number, named.name, producer.producer_id, coalesce(upper(producer.consumed), 0) AS consumed_to,
       producer.fingerprint IS NOT NULL OR producer.name = ANY (CAST(:files AS text[])) AS is_file
  FROM onceload_named AS named
  JOIN onceload.producer ON producer.name = named.name AND producer.generation = :generation
  JOIN onceload.pipeline ON pipeline.pipeline_id = producer.pipeline_id AND pipeline.name = :pipeline
 ORDER BY named.number;

-- name: find_consumed
-- The consumed ids between the first and the last id of each number.
SELECT DISTINCT producer.producer_id, lower(span) AS first, upper(span) AS end
  FROM onceload_named AS named
  JOIN onceload.producer ON producer.name = named.name AND producer.generation = :generation
  JOIN onceload.pipeline ON pipeline.pipeline_id = producer.pipeline_id AND pipeline.name = :pipeline
 CROSS JOIN unnest(producer.consumed) AS span
 WHERE span && int8range(named.first, named.last + 1)
 ORDER BY 1, 2;
