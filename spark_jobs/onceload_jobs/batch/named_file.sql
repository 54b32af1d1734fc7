-- name: empty_names
-- A name has the same collation as in the ledger. Otherwise the index of the ledger could not be used.
CREATE UNLOGGED TABLE IF NOT EXISTS {names} (number bigint NOT NULL, name text NOT NULL);
TRUNCATE {names};

-- name: look_up
-- Of the registered names: their numbers, their ids, and the ends of what each has consumed.
-- LIMIT makes the planner use one index lookup for each name, with any number of producers and without statistics.
SELECT array_agg(names.number) AS numbers, array_agg(known.producer_id) AS ids,
       array_agg(coalesce(upper(known.consumed), 0)) AS ends, count(known.fingerprint) AS names_of_files
  FROM {names} AS names
  JOIN onceload.pipeline ON pipeline.name = :pipeline
 CROSS JOIN LATERAL (
       SELECT producer_id, consumed, fingerprint FROM onceload.producer
        WHERE producer.pipeline_id = pipeline.pipeline_id AND producer.name = names.name
          AND producer.generation = :generation
        LIMIT 1) AS known;
