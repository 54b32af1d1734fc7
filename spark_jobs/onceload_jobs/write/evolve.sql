-- name: lock_timeout
SELECT set_config('lock_timeout', :timeout, true);

-- name: one_at_a_time
-- The lock under which loads create and change this table.
SELECT pg_advisory_xact_lock(hashtextextended('onceload.target ' || :table, 0));

-- name: owner
SELECT CAST(pg_get_userbyid(relowner) AS text) AS name, CAST(current_user AS text) AS user,
       pg_has_role(relowner, 'USAGE') AS is_ours
  FROM pg_class WHERE oid = to_regclass(:table);

-- name: holders
-- The other transactions that hold the table or one of its partitions.
SELECT DISTINCT pid, coalesce(CAST(usename AS text), backend_type) AS name, application_name AS program
  FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN pg_database ON pg_database.oid = database
 WHERE granted AND pid <> pg_backend_pid() AND pg_database.datname = current_database()
   AND relation IN (SELECT to_regclass(:table) UNION SELECT relid FROM pg_partition_tree(to_regclass(:table)))
 ORDER BY pid;
