-- name: lock_timeout
SELECT set_config('lock_timeout', :timeout, true);

-- name: one_at_a_time
-- The lock under which loads create and change this table.
SELECT pg_advisory_xact_lock(hashtextextended('onceload.target ' || :table, 0));

-- name: is_vacuumed
-- Whether autovacuum holds the table or one of its partitions, no other transaction does, and it is soon canceled for one
-- that waits. Most roles do not see the type of a process, but that it has no user.
SELECT coalesce(bool_and(usesysid IS NULL), false)
       AND (SELECT CAST(setting AS integer) <= 5000 FROM pg_settings WHERE name = 'deadlock_timeout')
  FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN pg_database ON pg_database.oid = database
 WHERE granted AND pid <> pg_backend_pid() AND pg_database.datname = current_database()
   AND relation IN (SELECT to_regclass(:table) UNION SELECT relid FROM pg_partition_tree(to_regclass(:table)));

-- name: wait_for_deadlock_check
-- Postgres cancels an autovacuum when it looks for a deadlock of one that waits for it.
SELECT set_config('lock_timeout', CAST(setting AS integer) + 500 || 'ms', true)
  FROM pg_settings WHERE name = 'deadlock_timeout';

-- name: owner
SELECT CAST(pg_get_userbyid(relowner) AS text) AS name, CAST(current_user AS text) AS user,
       pg_has_role(relowner, 'USAGE') AS is_ours
  FROM pg_class WHERE oid = to_regclass(:table);

-- name: holders
-- The other transactions that hold the table or one of its partitions.
SELECT DISTINCT pid, CASE WHEN usesysid IS NULL THEN 'autovacuum' ELSE coalesce(CAST(usename AS text), CAST(usesysid AS text)) END AS name, application_name AS program
  FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN pg_database ON pg_database.oid = database
 WHERE granted AND pid <> pg_backend_pid() AND pg_database.datname = current_database()
   AND relation IN (SELECT to_regclass(:table) UNION SELECT relid FROM pg_partition_tree(to_regclass(:table)))
 ORDER BY pid;

-- name: not_free
-- The columns whose type cannot be changed for free: it would lose a collation of its own, or Postgres would check a
-- constraint or build an index of an expression or with a condition.
SELECT CAST(attname AS text)
  FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
 WHERE attrelid = to_regclass(:table) AND attname = ANY (CAST(:names AS text[])) AND NOT attisdropped
   AND (attcollation <> typcollation
        OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = attrelid AND contype = 'c' AND attnum = ANY (conkey))
        OR EXISTS (SELECT FROM pg_index JOIN pg_depend ON objid = indexrelid AND classid = to_regclass('pg_class')
                    WHERE indrelid = attrelid AND refobjid = attrelid AND refobjsubid = attnum
                      AND (indexprs IS NOT NULL OR indpred IS NOT NULL)))
 ORDER BY attnum;
