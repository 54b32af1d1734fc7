-- name: of_schema
-- The user, if the schema is there and the right is missing.
SELECT CAST(current_user AS text) FROM pg_namespace
 WHERE nspname = :schema AND NOT has_schema_privilege(oid, :right);

-- name: of_table
-- The rights that are missing; to insert or update, a right on some columns may be enough.
SELECT CAST(current_user AS text) AS user, array_agg(needed.name ORDER BY place) FILTER (WHERE NOT
       CASE WHEN needed.name IN ('SELECT', 'DELETE') THEN has_table_privilege(to_regclass(:table), needed.name)
            ELSE has_any_column_privilege(to_regclass(:table), needed.name) END) AS rights
  FROM unnest(CAST(:rights AS text[])) WITH ORDINALITY AS needed (name, place);
