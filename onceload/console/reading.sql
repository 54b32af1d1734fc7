-- name: only_read
-- All queries of a page see the same commits.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;

-- name: limit_time
SELECT set_config('statement_timeout', :limit, true);
