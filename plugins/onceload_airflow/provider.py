"""The entry of Onceload in Airflow's list of providers; Airflow finds it by an entry point."""

from typing import Any


def provider_info() -> dict[str, Any]:
    return {
        "package-name": "onceload",
        "name": "Onceload",
        "description": "Loads files into Postgres exactly once.",
        "connection-types": [
            {"connection-type": "onceload", "hook-class-name": "onceload_airflow.hook.OnceloadHook"},
        ],
    }
