-- name: find_airflow
-- A row if Airflow's database exists.
SELECT FROM pg_database WHERE datname = 'airflow';

-- name: create_airflow
CREATE DATABASE airflow;
