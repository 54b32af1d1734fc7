"""The pages of a Spark, as a program reads them."""

import json
from typing import Any
from urllib.request import urlopen


def jobs_of(ui: str) -> list[dict[str, Any]]:
    """The jobs of its only application."""
    with urlopen(f"{ui}/api/v1/applications") as answer:
        (application,) = json.load(answer)
    with urlopen(f"{ui}/api/v1/applications/{application['id']}/jobs") as answer:
        jobs: list[dict[str, Any]] = json.load(answer)
        return jobs
