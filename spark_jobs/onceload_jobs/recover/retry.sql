-- name: delete_late
-- Deletes staged rows whose key already has a newer row in the target.
DELETE FROM {rows} AS late USING {table} AS there WHERE {has_same_key}
   AND (there._producer_id, there._sequence) > (late._producer_id, late._sequence);
