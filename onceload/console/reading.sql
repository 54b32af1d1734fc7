-- name: only_read
SELECT set_config('transaction_read_only', 'on', true), set_config('statement_timeout', :limit, true);
