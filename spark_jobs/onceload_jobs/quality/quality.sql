-- name: batches
-- How many batches loads have brought, and how many rows the smallest and the largest had. A retry of records with ids
-- of their own has an entry of a load too, by the same session.
SELECT count(*) AS batches, min(rows) AS fewest, max(rows) AS most
  FROM (SELECT sum(loaded) AS rows FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id)
         WHERE name = :pipeline AND kind = 'load' AND loaded > 0
           AND NOT EXISTS (SELECT FROM onceload.ledger AS retry
                            WHERE retry.pipeline_id = ledger.pipeline_id AND retry.batch = ledger.batch
                              AND retry.kind = 'retry' AND retry.session = ledger.session
                              AND retry.epoch = ledger.epoch)
         GROUP BY batch) AS loaded;

-- name: guess_rows
-- The planner's guess of how many rows a table has.
EXPLAIN (FORMAT JSON) SELECT FROM {table};

-- name: look
-- How many rows a sample has, and the statistics of each column.
-- Rows are stored roughly in the order in which they arrived.
WITH seen AS MATERIALIZED (SELECT {taken} FROM {table} {sample})
SELECT {statistics} FROM seen;

-- name: of_others
-- A part of look.
json_build_object('count', count({value}))

-- name: of_numbers
-- A part of look. The server cannot hold the squares of numbers from 1e100 on.
json_build_object(
    'count', count({value}),
    'min', CAST(min({value}) AS text),
    'max', CAST(max({value}) AS text),
    'most', CAST(percentile_disc(ARRAY[0.01, 0.99]) WITHIN GROUP (ORDER BY {value}) AS text[]),
    'distinct', count(DISTINCT {value}),
    'growth', corr(CASE WHEN abs(CAST({value} AS double precision)) < 1e100
                        THEN CAST({value} AS double precision) END, came))

-- name: of_times
-- A part of look.
json_build_object(
    'count', count({value}),
    'min', to_char(min({value}), 'YYYY-MM-DD'),
    'max', to_char(max({value}), 'YYYY-MM-DD'),
    'earliest', CASE WHEN isfinite(min({value})) AND min({value}) >= '0100-01-01'
                     THEN to_char(min({value}) - interval '1 year', 'YYYY-MM-DD') END)

-- name: of_texts
-- A part of look. The shape of a text has 9 for its digits, and a for its letters too if it is spelled.
json_build_object(
    'count', count({value}),
    'distinct', count(DISTINCT {value}),
    'shortest', min({length}),
    'longest', max({length}),
    'numbered_shapes', count(DISTINCT regexp_replace({value}, '[0-9]+', '9', 'g')),
    'numbered_shape', min(regexp_replace({value}, '[0-9]+', '9', 'g')),
    'spelled_shapes',
    count(DISTINCT regexp_replace(regexp_replace({value}, '[0-9]+', '9', 'g'), '[A-Za-z]+', 'a', 'g')),
    'spelled_shape',
    min(regexp_replace(regexp_replace({value}, '[0-9]+', '9', 'g'), '[A-Za-z]+', 'a', 'g')),
    'values', (SELECT json_agg(each ORDER BY value)
                 FROM (SELECT {value} AS value, count(*) AS times FROM seen
                        WHERE {value} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC LIMIT {values_max}) AS each))

-- name: names
SELECT producer_id, name FROM onceload.producer WHERE producer_id = ANY (:ids);

-- name: find_view_by_name
-- The schema comes last, because an expectation may query other tables by their bare names.
SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), %s), false);

-- name: create_audited
-- The rows to publish, with the columns of the target. A killed audit of the same stage may have left the view.
CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {source};
