"""The pages of a Spark, as a program reads them."""

import json
from typing import Any
from urllib.request import urlopen


def jobs_of(ui: str) -> list[dict[str, Any]]:
    """The jobs of its only application."""
    return _answer(f"{_application(ui)}/jobs")


def tasks_of(ui: str) -> list[dict[str, Any]]:
    """Each try of each task of its only application, of all stages that began."""
    application = _application(ui)
    stages = [each for each in _answer(f"{application}/stages") if each["status"] not in ("PENDING", "SKIPPED")]
    pages = (f"{application}/stages/{each['stageId']}/{each['attemptId']}/taskList?length=10000" for each in stages)
    return [task for page in pages for task in _answer(page)]


def _application(ui: str) -> str:
    (application,) = _answer(f"{ui}/api/v1/applications")
    return f"{ui}/api/v1/applications/{application['id']}"


def _answer(address: str) -> list[dict[str, Any]]:
    with urlopen(address) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found
