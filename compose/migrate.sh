#!/usr/bin/env bash
# Run before all others, at every start: what the databases and the volume of Airflow have to hold.
set -euo pipefail

onceload init
airflow db migrate
# Airflow reads it at its own start, and makes none of its own.
umask 077
printf '{"admin": "%s"}' "$AIRFLOW_PASSWORD" >"$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
