-- name: clock
SELECT clock_timestamp();
