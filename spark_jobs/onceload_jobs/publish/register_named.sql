-- name: find_strange
-- A row with an invalid name of its producer or an invalid sequence id, if there is one.
SELECT {full_name}, {sequence} FROM {rows} AS staged
 WHERE (octet_length({full_name}) <= :name_bytes_max AND {sequence} >= 0 AND {sequence} < :sequence_end) IS NOT TRUE
 LIMIT 1;

-- name: gather
-- Per name: the first and last id, the number of rows, and the number of different ids.
-- Sixty-four ids share a word of bits, so that different ids are counted without sorting the batch.
-- The name has the collation of the names in the ledger, which sorts their index.
CREATE UNLOGGED TABLE {named} AS
SELECT called, (:prefix || called) COLLATE pg_catalog."default" AS name, min(first) AS first, max(last) AS last,
       CAST(sum(rows) AS bigint) AS rows, CAST(sum(ids) AS bigint) AS ids
  FROM (SELECT {called} AS called, min({sequence}) AS first, max({sequence}) AS last, count(*) AS rows,
               bit_count(CAST(bit_or(CAST(1 AS bigint) << CAST({sequence} & 63 AS integer)) AS bit(64))) AS ids
          FROM {rows} AS staged GROUP BY 1, {sequence} >> 6) AS words
 GROUP BY called;
ANALYZE {named};

-- name: find_file
-- A name that is also the name of a file of the same pipeline, read before or in this batch, if there is one.
SELECT named.name
  FROM {named} AS named
  JOIN onceload.producer ON producer.name = named.name AND producer.generation = :generation
  JOIN onceload.pipeline ON pipeline.pipeline_id = producer.pipeline_id AND pipeline.name = :pipeline
 WHERE producer.fingerprint IS NOT NULL OR producer.producer_id = ANY (CAST(:read AS bigint[]))
 ORDER BY 1 LIMIT 1;
