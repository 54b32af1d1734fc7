-- name: has_changing
-- Whether a view calls a function whose result may differ between two statements of a transaction: a volatile one, or
-- a stable one that is not built in, because it may read tables. The tree of the query names all functions.
SELECT EXISTS (
    SELECT FROM pg_rewrite
      JOIN LATERAL regexp_matches(CAST(ev_action AS text), 'funcid (\d+)', 'g') AS called (ids) ON true
      JOIN pg_proc ON pg_proc.oid = CAST(called.ids[1] AS oid)
      JOIN pg_language ON pg_language.oid = prolang
     WHERE ev_class = to_regclass(:view)
       AND (provolatile = 'v' OR (provolatile = 's' AND lanname <> 'internal')));
