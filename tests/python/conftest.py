"""A pipeline for the Python API: its description, its folder and its database."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import onceload
from tests.loads.conftest import line
from tests.servers import execute


@dataclass
class Place:
    """A folder to load from, and a database to load into."""

    folder: Path
    dsn: str

    def describe(self, **changes: Any) -> dict[str, Any]:
        return {
            "pipeline": "events",
            "source": {"path": str(self.folder / "*.jsonl"), "format": "jsonl"},
            "columns": {"id": "bigint not null", "amount": "numeric(12,2)", "note": "text"},
            "target": {"table": "public.target"},
            **changes,
        }

    def pipeline(self, **changes: Any) -> onceload.Pipeline:
        return onceload.Pipeline.of(self.describe(**changes), dsn=self.dsn)

    def write(self, name: str, *numbers: int) -> None:
        with closing((self.folder / name).open("a", encoding="utf-8")) as file:
            file.writelines(map(line, numbers))

    def rows(self, columns: str = "id", table: str = "target") -> list[tuple[Any, ...]]:
        return execute(self.dsn, f"SELECT {columns} FROM {table} ORDER BY {columns}")


@pytest.fixture
def place(tmp_path: Path, dsn: str) -> Place:
    folder = tmp_path / "landing"
    folder.mkdir()
    return Place(folder=folder, dsn=dsn)
