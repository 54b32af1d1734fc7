-- name: columns
-- All columns of a table: their types, and whether the table fills them itself.
SELECT CAST(attname AS text) AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS is_not_null,
       atthasdef OR attidentity <> '' OR attgenerated <> '' AS is_filled,
       attidentity = 'a' OR attgenerated <> '' AS is_generated
  FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum;

-- name: schema
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = :schema) AS is_there,
       has_database_privilege(current_database(), 'CREATE') AS may_make, CAST(current_user AS text) AS user;

-- name: places
-- How many columns a table has ever had: dropped ones still count towards the limit.
SELECT coalesce(max(attnum), 0) FROM pg_attribute WHERE attrelid = to_regclass(:table);

-- name: keys
-- The unique indexes that ON CONFLICT can use: of columns alone, of all rows, and checked at once.
SELECT array_agg(CAST(attname AS text)) AS names
  FROM pg_index JOIN pg_attribute
    ON attrelid = indrelid AND attnum = ANY ((CAST(indkey AS smallint[]))[0:indnkeyatts - 1])
 WHERE indrelid = to_regclass(:table) AND indisunique AND indisvalid AND indimmediate
   AND indpred IS NULL AND indexprs IS NULL
 GROUP BY indexrelid;

-- name: fit
-- The table and its partitions, with the reasons why a commit would not control all of their rows, how many of their rows
-- this transaction has deleted, and whether triggers may delete more; the types of the table's columns, which its
-- partitions share; and the columns that the table itself always fills.
SELECT CAST(CAST(oid AS regclass) AS text) AS name, CAST(relkind AS text) AS kind,
       CAST(relpersistence AS text) AS persistence, row_security_active(oid) AS has_row_security,
       (SELECT CAST(min(rulename) AS text) FROM pg_rewrite
         WHERE ev_class = pg_class.oid AND ev_type <> '1') AS rule,
       oid = to_regclass(:table) AS is_target,
       CASE WHEN oid = to_regclass(:table) THEN
            (SELECT json_object_agg(attname, format_type(atttypid, atttypmod)) FROM pg_attribute
              WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped) END AS types,
       (SELECT array_agg(CAST(attname AS text) ORDER BY attnum) FROM pg_attribute
         WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
           AND (attidentity = 'a' OR attgenerated <> '')) AS generated,
       coalesce(pg_stat_get_xact_tuples_deleted(oid), 0) AS deleted,
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = pg_class.oid AND NOT tgisinternal AND tgenabled <> 'D')
       AS has_triggers,
       CAST(current_setting('track_counts') AS boolean) AS is_counted
  FROM pg_class
 WHERE oid = to_regclass(:table) OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass(:table)))
 ORDER BY 1;

-- name: lock
-- Two loads may find the table missing at the same time. The second waits, and finds it.
SELECT pg_advisory_xact_lock(hashtextextended('onceload.target ' || :table, 0));

-- name: is_known
-- Whether any pipeline has loaded into the table by its present or an earlier declaration (an earlier release records no
-- table), or whether this user, who may insert, has no right to look at the rows.
SELECT NOT has_column_privilege(:table, '_producer_id', 'SELECT') OR EXISTS (
       SELECT FROM onceload.declaration JOIN onceload.pipeline USING (pipeline_id)
        WHERE declaration.terms ->> 'target.table' = :table AND pipeline.position > 0);

-- name: has_loaded_rows
SELECT EXISTS (SELECT FROM {table} WHERE _producer_id IS NOT NULL);
