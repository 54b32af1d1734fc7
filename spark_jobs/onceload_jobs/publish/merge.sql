-- name: find_twice
-- A key that several rows of one record have, or several rows without lineage, if there is one.
SELECT FROM {source} GROUP BY {key}, _producer_id, _sequence HAVING count(*) > 1 LIMIT 1;

-- name: delete_overtaken
-- Deletes rows of the source whose key already has a newer row in the target.
DELETE FROM {source} AS latest USING {table} AS there WHERE {has_same_key}
   AND (there._producer_id, there._sequence) > (latest._producer_id, latest._sequence);

-- name: make_latest
-- The last row of each key.
CREATE TEMPORARY TABLE latest ON COMMIT DROP AS
SELECT DISTINCT ON ({key}) * FROM {source} ORDER BY {key}, _producer_id DESC, _sequence DESC;

-- name: count_deleted
-- How many rows of the target are to be deleted.
-- The lock keeps these rows until they are deleted, whatever other transactions commit.
WITH found AS (SELECT FROM {table} AS there JOIN latest ON {is_deleted} FOR UPDATE OF there)
SELECT count(*) FROM found;

-- name: delete
-- A row whose key comes with a newer row that marks it as deleted goes.
DELETE FROM {table} AS there USING latest WHERE {is_deleted};

-- name: write
-- A row of the target is replaced by a newer one only.
INSERT INTO {table} AS there ({names}) SELECT {arriving} FROM latest WHERE {is_kept}
    ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE {is_newer};

-- name: count_rows
-- How many rows are merged.
SELECT count(*) FROM {source};

-- name: count_kept
-- How many rows the write offers to the target.
SELECT count(*) FROM latest WHERE {is_kept};

-- name: analyze
-- For the join that follows.
ANALYZE latest;

-- name: count_overtaken
-- How many rows were not written because of a newer one.
-- Rows of this transaction do not explain why others were not written.
SELECT count(*) FROM latest JOIN {table} AS there ON {has_same_key}
 WHERE {is_kept} AND NOT ({is_newer}) AND there.xmin <> CAST(pg_current_xact_id() AS xid);
