-- name: hold
-- Held by the connection, to distinguish a stage in use from one whose owner is gone.
SELECT pg_advisory_lock(hashtextextended('onceload.stage ' || :name, 0));

-- name: try_hold
SELECT pg_try_advisory_lock(hashtextextended('onceload.stage ' || :name, 0));

-- name: release
SELECT pg_advisory_unlock(hashtextextended('onceload.stage ' || :name, 0));

-- name: stages
-- The tables of all stages, or of one, that no delivery and no audit keeps.
SELECT stage, CAST(array_agg(relname) AS text[]) AS tables
  FROM (SELECT split_part(relname, ' ', 1) AS stage, CAST(relname AS text) AS relname FROM pg_class
         WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r') AS there
 WHERE (CAST(:name AS text) IS NULL OR stage = :name)
   AND NOT EXISTS (SELECT FROM onceload.delivery WHERE delivery.stage = there.stage)
   AND NOT EXISTS (SELECT FROM onceload.audit WHERE audit.stage = there.stage AND kept_until > clock_timestamp())
 GROUP BY stage;

-- name: create_rows
-- With the columns of the target, and its constraints.
CREATE UNLOGGED TABLE {rows} (LIKE {target} INCLUDING GENERATED INCLUDING CONSTRAINTS);

-- name: create_pieces
CREATE UNLOGGED TABLE {pieces} (delivery integer, number integer, is_last boolean NOT NULL,
    rows bigint NOT NULL, bytes bigint NOT NULL, records bigint NOT NULL, proof text NOT NULL, file text,
    PRIMARY KEY (delivery, number));

-- name: add_opened
-- The piece that exists from the start. It is missing once a crash has emptied the stage.
INSERT INTO {pieces} VALUES ({opened}, 0, true, 0, 0, 0, '');
