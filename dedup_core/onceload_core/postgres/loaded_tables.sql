-- name: look_up
-- The table that rows written to :target are in (the whole one, if it is a partition), with each recorded table that may
-- be it: it was renamed, became a part of it (`is_same`), or had its name (`is_named`). Or it had the name that the
-- pipeline has loaded it under before, and is gone (`is_earlier`). `root` is null if a recorded table was dropped, or if
-- its oid is that of another database.
WITH asked AS (
    SELECT pg_class.oid AS root,
           concat('"', replace(nspname, '"', '""'), '"."', replace(relname, '"', '""'), '"') AS name
      FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
     WHERE pg_class.oid = coalesce(CAST(pg_partition_root(to_regclass(:target)) AS oid), to_regclass(:target))
), recorded AS (
    SELECT table_id, name, coalesce(CAST(pg_partition_root(CAST(pg_class.oid AS regclass)) AS oid), pg_class.oid) AS root
      FROM onceload.loaded_table
      LEFT JOIN pg_class ON pg_class.oid = relation
           AND read_in = CAST(CAST('onceload.loaded_table' AS regclass) AS oid)
)
SELECT asked.root AS asked, asked.name, recorded.table_id, recorded.root,
       recorded.root = asked.root AS is_same, recorded.name = asked.name AS is_named,
       recorded.name = :before AND recorded.root IS NULL AS is_earlier
  FROM asked LEFT JOIN recorded
    ON recorded.root = asked.root OR recorded.name = asked.name
    OR recorded.name = :before AND EXISTS (
       SELECT FROM onceload.loaded_file
        WHERE loaded_file.table_id = recorded.table_id AND loaded_file.pipeline_id = :pipeline_id);

-- name: keep_table
-- Two pipelines may record the same table at the same moment.
INSERT INTO onceload.loaded_table AS kept (name, relation, read_in)
VALUES (:name, :root, CAST(CAST('onceload.loaded_table' AS regclass) AS oid))
ON CONFLICT ON CONSTRAINT loaded_tables_have_no_twins DO UPDATE SET name = excluded.name
RETURNING table_id;

-- name: join_files
-- A file that two pipelines have loaded already stays that of the pipeline which has it in the table.
INSERT INTO onceload.loaded_file (table_id, address, pipeline_id, name, is_compared)
SELECT :table_id, address, pipeline_id, name, is_compared
  FROM onceload.loaded_file WHERE table_id = ANY(CAST(:others AS bigint[]))
 ORDER BY table_id, address
ON CONFLICT ON CONSTRAINT loaded_files_have_one_pipeline DO NOTHING;

-- name: name_tables
UPDATE onceload.loaded_table
   SET name = concat('"', replace(nspname, '"', '""'), '"."', replace(relname, '"', '""'), '"')
  FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE table_id = ANY(CAST(:others AS bigint[])) AND pg_class.oid = relation;

-- name: drop_tables
WITH dropped AS (
    DELETE FROM onceload.loaded_table WHERE table_id = ANY(CAST(:others AS bigint[])) RETURNING table_id
)
DELETE FROM onceload.loaded_file USING dropped WHERE loaded_file.table_id = dropped.table_id;
