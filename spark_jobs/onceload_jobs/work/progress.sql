-- name: staged
-- How much of the batch is staged. Rows of a transform belong to no file, and do not count.
SELECT coalesce(sum(bytes), 0), coalesce(sum(records), 0) FROM {pieces};
