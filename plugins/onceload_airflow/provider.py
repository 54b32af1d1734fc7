"""The entry of Onceload in Airflow's list of providers; Airflow finds it by an entry point."""

from typing import Any

RELABELING = {"schema": "Database", "extra": "Options of libpq, as JSON"}
PLACEHOLDERS = {"host": "db.example.org", "port": "5432", "extra": '{"sslmode": "verify-full"}'}


def provider_info() -> dict[str, Any]:
    # Airflow 3.1 takes the form of a connection from the hook, later versions take it from here.
    connection = {
        "connection-type": "onceload",
        "hook-class-name": "onceload_airflow.hook.OnceloadHook",
        "hook-name": "Onceload",
        "ui-field-behaviour": {"relabeling": RELABELING, "placeholders": PLACEHOLDERS},
    }
    return {
        "package-name": "onceload",
        "name": "Onceload",
        "description": "Loads files into Postgres exactly once.",
        "connection-types": [connection],
    }
