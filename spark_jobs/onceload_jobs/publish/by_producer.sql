-- name: look_up
-- The consumed ids of each name, as the rest of this transaction uses them.
CREATE UNLOGGED TABLE {ids} AS
SELECT producer.producer_id, producer.consumed, named.called, named.first, named.last, named.rows, named.ids
  FROM {named} AS named
  JOIN onceload.producer ON producer.name = named.name AND producer.generation = :generation
  JOIN onceload.pipeline ON pipeline.pipeline_id = producer.pipeline_id AND pipeline.name = :pipeline;
ANALYZE {ids};

-- name: count_forgotten
-- How many names have no producer.
SELECT (SELECT count(*) FROM {named}) - (SELECT count(*) FROM {ids});

-- name: are_all_new
-- True if no id is consumed, and none is repeated in the batch.
SELECT bool_and(rows = ids AND {all_new}) FROM {ids};

-- name: rows
-- A part of statements: the staged rows whose id is new, with the lineage of the producer that they name.
(SELECT {staged_names}, staged._producer_id AS _of_file, staged._sequence AS _in_file,
        ends.producer_id AS _producer_id, {sequence} AS _sequence
   FROM {staged} AS staged JOIN {ids} AS ends ON ends.called = {called}
  WHERE {is_new}) AS records

-- name: copy_new
-- The rows whose id is not consumed, of the first record of each id.
CREATE UNLOGGED TABLE {by_producer} AS
SELECT {names} FROM (SELECT *, {position} AS _position FROM {rows}) AS ranked WHERE _position = 1;

-- name: count_new
-- Per producer: the first and last of the new ids, and the numbers of their rows and of them.
CREATE UNLOGGED TABLE {new_ids} AS
SELECT ends.producer_id, ends.consumed, new.first, new.last, new.rows, new.ids
  FROM (SELECT _producer_id AS producer_id, min(_sequence) AS first, max(_sequence) AS last,
               count(*) AS rows, {count_of_ids} AS ids
          FROM {by_producer} GROUP BY 1) AS new
  JOIN {ids} AS ends USING (producer_id);

-- name: counts
-- A part of statements: how many rows each producer has, if all rows of its ids are published.
SELECT producer_id, rows FROM {ids_to_consume}

-- name: offer_any
-- The advance of each producer: exactly its new ids. Usually they are contiguous, and their ends are enough.
-- In producer order, so that an advance of many reads them page by page.
CREATE UNLOGGED TABLE {offered} AS
SELECT producer_id, coalesce(islands.spans, int8multirange(int8range(first, last + 1))) AS spans,
       coalesce(counted.rows, 0) AS rows
  FROM {ids_to_consume} AS ends
  LEFT JOIN (SELECT _producer_id AS producer_id, range_agg(int8range(_sequence, _sequence + 1)) AS spans
               FROM {rows_to_consume} JOIN {ids_to_consume} AS ends ON ends.producer_id = _producer_id
              WHERE ends.last - ends.first + 1 <> ends.ids GROUP BY _producer_id) AS islands USING (producer_id)
  LEFT JOIN ({counts}) AS counted USING (producer_id)
 ORDER BY producer_id;
ANALYZE {offered};

-- name: offer_ordered
-- The advance of each ordered producer, up to its last new id: skipped ids are consumed too, and refused later.
-- In producer order, so that an advance of many reads them page by page.
CREATE UNLOGGED TABLE {offered} AS
SELECT producer_id, int8multirange(int8range(coalesce(upper(ends.consumed), 0), last + 1)) AS spans,
       coalesce(counted.rows, 0) AS rows
  FROM {ids_to_consume} AS ends
  LEFT JOIN ({counts}) AS counted USING (producer_id)
 ORDER BY producer_id;
ANALYZE {offered};

-- name: count_offered
-- How many rows the commit loads.
SELECT CAST(coalesce(sum(rows), 0) AS bigint) FROM {offered};
