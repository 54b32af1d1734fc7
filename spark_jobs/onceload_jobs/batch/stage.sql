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

-- name: create_proof
-- Its first row exists from the start. It is missing once a crash has emptied the stage.
CREATE UNLOGGED TABLE {proof} (number integer PRIMARY KEY, proof text NOT NULL);
INSERT INTO {proof} VALUES (0, '');

-- name: write_proof
-- No row is written if the first one is missing.
INSERT INTO {proof} SELECT :number, :encoded WHERE EXISTS (SELECT FROM {proof} WHERE number = 0)
    ON CONFLICT (number) DO UPDATE SET proof = excluded.proof;

-- name: read_proof
SELECT proof FROM {proof} ORDER BY number;

-- name: is_there
SELECT EXISTS (SELECT FROM {proof} WHERE number = 0);
