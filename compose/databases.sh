#!/usr/bin/env bash
# The Postgres image runs this once, when it creates its data folder: users, rights and databases.
set -euo pipefail

psql --set=ON_ERROR_STOP=1 --username=postgres --dbname=postgres <<'SQL'
\getenv airflow_password AIRFLOW_DB_PASSWORD
\getenv loader_password LOADER_PASSWORD
\getenv reader_password READER_PASSWORD
-- Group roles without login; `onceload init` grants them their rights.
CREATE ROLE onceload_owner NOLOGIN;
CREATE ROLE onceload_loader NOLOGIN;
CREATE ROLE onceload_reader NOLOGIN;

CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE DATABASE airflow OWNER airflow;

CREATE ROLE loader LOGIN PASSWORD :'loader_password' IN ROLE onceload_loader;
ALTER ROLE loader SET role = 'onceload_loader';
CREATE ROLE reader LOGIN PASSWORD :'reader_password' IN ROLE onceload_reader;

CREATE DATABASE warehouse;
REVOKE ALL ON DATABASE airflow, warehouse FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE warehouse TO onceload_loader, onceload_reader, onceload_owner;
\connect warehouse
-- The default schema for target tables.
GRANT CREATE ON SCHEMA public TO onceload_loader;
SQL
