#!/usr/bin/env bash
# Run once, by the image of Postgres, when its data folder is made: the users, their rights and their databases.
set -euo pipefail

psql --set=ON_ERROR_STOP=1 --username=postgres --dbname=postgres <<'SQL'
\getenv airflow_password AIRFLOW_DB_PASSWORD
\getenv loader_password LOADER_PASSWORD
\getenv reader_password READER_PASSWORD
-- Nobody logs in as these; `onceload init` gives them their rights.
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
-- Where tables of pipelines are that name no other schema.
GRANT CREATE ON SCHEMA public TO onceload_loader;
SQL
