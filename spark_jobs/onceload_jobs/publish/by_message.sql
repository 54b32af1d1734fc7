-- name: copy_new
-- The rows whose business id is not in the window of the pipeline, of the first record of each id.
-- A column of the target may have a collation in which different texts are equal, so ids are compared by their hashes.
CREATE UNLOGGED TABLE {by_message} AS
SELECT * FROM (
    SELECT *, {position} AS _position
      FROM (SELECT *, sha256(convert_to(CAST(json_build_array({values}) AS text), 'UTF8')) AS _message
              FROM {rows}) AS named
     WHERE NOT EXISTS (SELECT FROM onceload.message JOIN onceload.pipeline USING (pipeline_id)
                        WHERE pipeline.name = :pipeline AND message.message = _message
                          AND message.day >= CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)
                                             - pipeline.message_keep_days)) AS unknown
 WHERE _position = 1;
ANALYZE {by_message};
