-- name: own_files
-- The files of a commit become those of its pipeline, unless they are already. Returns the refused ones: those that
-- another pipeline has, or this one under another name, unless it knows files by their content. It waits for the commit
-- of another pipeline that is under way, because their rows would have the same key. The order of the addresses is the
-- same for all, so that no two commits wait for each other.
WITH offered AS (
    SELECT DISTINCT name, sha256(convert_to(:folder || name, 'UTF8')) AS address
      FROM onceload.producer
     WHERE pipeline_id = :pipeline_id AND producer_id = ANY(CAST(:producer_ids AS bigint[]))
       AND (copy_of IS NOT NULL OR NOT isempty(consumed))
), missing AS (
    SELECT offered.name, offered.address FROM offered
     WHERE NOT EXISTS (
           SELECT FROM onceload.loaded_file
            WHERE loaded_file.address = offered.address AND loaded_file.table_id = :table_id
              AND loaded_file.pipeline_id = :pipeline_id AND loaded_file.is_compared
              AND (loaded_file.name = offered.name OR :is_by_content))
), owned AS (
    INSERT INTO onceload.loaded_file (table_id, address, pipeline_id, name)
    SELECT :table_id, address, :pipeline_id, name FROM missing ORDER BY address
    ON CONFLICT ON CONSTRAINT loaded_files_have_one_pipeline
    -- An update sees the latest version of a row, also one that was committed during the wait.
    DO UPDATE SET is_compared = true
     WHERE loaded_file.pipeline_id = excluded.pipeline_id AND (loaded_file.name = excluded.name OR :is_by_content)
    RETURNING address
)
SELECT name FROM missing WHERE address NOT IN (SELECT address FROM owned) ORDER BY name;

-- name: loaded_by_another
-- The files that another pipeline has loaded into a table, or the same one under another name.
SELECT asked.name, pipeline.name AS other, loaded_file.name AS name_before
  FROM unnest(CAST(:names AS text[])) AS asked (name)
  JOIN onceload.loaded_file ON loaded_file.address = sha256(convert_to(:folder || asked.name, 'UTF8'))
       AND loaded_file.table_id = ANY(CAST(:tables AS bigint[]))
  JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name <> :pipeline OR (loaded_file.name <> asked.name AND NOT :is_by_content)
UNION
-- A process of an earlier release has loaded them, and records no address.
SELECT asked.name, pipeline.name, producer.name
  FROM onceload.pipeline
  JOIN onceload.declaration USING (pipeline_id, version)
  JOIN unnest(CAST(:names AS text[])) AS asked (name)
    ON CASE WHEN pipeline.folder IS NOT NULL THEN starts_with(:folder || asked.name, pipeline.folder)
            -- Its folder is not known until it loads again. If the same text names both, they may be one.
            ELSE declaration.rest ->> 'source.path' = :path OR declaration.terms ->> 'source.root' = :root END
  JOIN onceload.producer ON producer.pipeline_id = pipeline.pipeline_id
       AND producer.name = coalesce(substr(:folder || asked.name, length(pipeline.folder) + 1), asked.name)
 WHERE pipeline.name <> :pipeline AND declaration.terms ->> 'target.table' = :target AND to_regclass(:target) IS NOT NULL
   AND producer.fingerprint IS NOT NULL AND (producer.copy_of IS NOT NULL OR NOT isempty(producer.consumed))
   AND (pipeline.folder IS NULL OR NOT EXISTS (
       SELECT FROM onceload.loaded_file
        WHERE loaded_file.pipeline_id = producer.pipeline_id AND loaded_file.name = producer.name))
 ORDER BY name;

-- name: others_by_content
-- Other pipelines that know files by their content, and have loaded some into a table.
SELECT pipeline.name, pipeline.folder
  FROM onceload.pipeline JOIN onceload.declaration USING (pipeline_id, version)
 WHERE pipeline.name <> :pipeline AND pipeline.folder IS NOT NULL
   AND declaration.terms ->> 'source.identity' = 'content'
   AND EXISTS (
       SELECT FROM onceload.loaded_file
        WHERE table_id = ANY(CAST(:tables AS bigint[])) AND loaded_file.pipeline_id = pipeline.pipeline_id)
 ORDER BY pipeline.name;

-- name: drop_files
-- Files of which nothing is loaded any more.
DELETE FROM onceload.loaded_file
 WHERE pipeline_id = :pipeline_id
   AND NOT EXISTS (
       SELECT FROM onceload.producer
        WHERE producer.pipeline_id = :pipeline_id AND producer.name = loaded_file.name
          AND (copy_of IS NOT NULL OR NOT isempty(consumed)));

-- name: add_files
-- Loaded files without an address: a release that recorded none has loaded them, or the table was damaged.
INSERT INTO onceload.loaded_file (table_id, address, pipeline_id, name, is_compared)
SELECT DISTINCT CAST(:table_id AS bigint), sha256(convert_to(pipeline.folder || producer.name, 'UTF8')), pipeline_id,
       producer.name, NOT pipeline.has_moved
  FROM onceload.pipeline JOIN onceload.producer USING (pipeline_id)
 WHERE pipeline_id = :pipeline_id AND pipeline.folder IS NOT NULL
   AND producer.fingerprint IS NOT NULL AND (producer.copy_of IS NOT NULL OR NOT isempty(producer.consumed))
   AND NOT EXISTS (
       SELECT FROM onceload.loaded_file
        WHERE loaded_file.pipeline_id = :pipeline_id AND loaded_file.name = producer.name)
 ORDER BY 2
ON CONFLICT ON CONSTRAINT loaded_files_have_one_pipeline DO NOTHING;

-- name: target
SELECT terms ->> 'target.table'
  FROM onceload.pipeline JOIN onceload.declaration USING (pipeline_id, version) WHERE pipeline_id = :pipeline_id;

-- name: set_folder
-- The first folder is not a move.
UPDATE onceload.pipeline SET folder = :folder, has_moved = has_moved OR folder IS NOT NULL
 WHERE pipeline_id = :pipeline_id;

-- name: follow_folder
-- The folder has another address, such as after a move of the project, on another machine, or in another working
-- directory: the files keep the earlier address too. Files of their names may be others here.
INSERT INTO onceload.loaded_file (table_id, address, pipeline_id, name, is_compared)
SELECT DISTINCT table_id, sha256(convert_to(:folder || name, 'UTF8')), pipeline_id, name, false
  FROM onceload.loaded_file WHERE pipeline_id = :pipeline_id
 ORDER BY 2
ON CONFLICT ON CONSTRAINT loaded_files_have_one_pipeline DO NOTHING;

-- name: move_files
-- Files that were loaded below a folder that was moved are below the new one now, also before they are read: by this
-- pipeline, which may read a part of it only, and by others.
INSERT INTO onceload.loaded_file (table_id, address, pipeline_id, name, is_compared)
SELECT table_id, sha256(convert_to(:folder || substr(pipeline.folder || loaded_file.name, length(:before) + 1), 'UTF8')),
       pipeline_id, loaded_file.name, false
  FROM onceload.loaded_file JOIN onceload.pipeline USING (pipeline_id)
 WHERE table_id = ANY(CAST(:tables AS bigint[]))
   AND starts_with(pipeline.folder || loaded_file.name, :before)
   -- It may have been refused before it loaded anything there.
   AND loaded_file.address = sha256(convert_to(pipeline.folder || loaded_file.name, 'UTF8'))
 ORDER BY 2
ON CONFLICT ON CONSTRAINT loaded_files_have_one_pipeline DO NOTHING;

-- name: distrust_files
-- The folder was moved to one whose files may be others, although some have the names and addresses of loaded ones.
UPDATE onceload.loaded_file SET is_compared = false
 WHERE pipeline_id = :pipeline_id AND address = sha256(convert_to(:folder || name, 'UTF8'));
