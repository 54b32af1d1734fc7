#!/usr/bin/env bash
# Runs before all other services, at every start: creates or upgrades the schemas, and writes Airflow's password file.
set -euo pipefail

onceload init
airflow db migrate
# Airflow reads this file at its start, so it does not generate a password.
umask 077
printf '{"admin": "%s"}' "$AIRFLOW_PASSWORD" >"$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
