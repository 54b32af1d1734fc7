-- name: settings
-- The settings of each new connection.
SELECT set_config('lock_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
       set_config('timezone', 'UTC', false),
       -- Business ids and producer names are values as text. The text must never change.
       set_config('bytea_output', 'hex', false), set_config('extra_float_digits', '1', false),
       set_config('array_nulls', 'on', false),
       -- A load may take any time, and the session that holds a stage is idle while it is filled. The limits of the
       -- role or the database for other sessions must not end them.
       set_config('statement_timeout', '0', false), set_config('idle_session_timeout', '0', false),
       CASE WHEN current_setting('server_version_num')::int >= 170000
            THEN set_config('transaction_timeout', '0', false) END,
       -- A role may turn it off. Then a crash or failover could lose rows that were reported as loaded.
       set_config('synchronous_commit', coalesce(
           nullif(nullif(current_setting('synchronous_commit'), 'off'), 'local'), 'on'), false);
