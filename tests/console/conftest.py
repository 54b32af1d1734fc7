"""A day of loads: pipelines that load well, and some that do not, loaded by real loads into a real database."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from onceload import cli
from onceload.console.standalone import TokenAccess, make_standalone_app
from onceload.settings import Settings
from onceload_core.errors import ExitCode
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.read import new_content as loading
from onceload_jobs.read.checked_parts import read_parts
from tests.servers import execute, temporary_database
from tests.waiting import until

PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/{name}/*.jsonl", format: jsonl, chunk_bytes: 500}}
columns: {{n: bigint not null, note: text}}
target: {{table: public.{name}}}
publish: direct
schedule: "*/5 * * * *"
quality: {{quarantined_max: 100%}}
delivery: {{deliveries_max: 2}}
"""
MARKUP = "<script>alert(1)</script>"
_TWO_HOURS_S = 7200


@dataclass(frozen=True)
class Day:
    folder: Path
    dsn: str
    engine: Engine

    def write(self, name: str, content: str, *, age_s: float = 0) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (time.time() - age_s,) * 2)

    def load(self, name: str, *, code: ExitCode = ExitCode.DONE) -> None:
        pipeline = self.folder / "pipelines" / f"{name}.yaml"
        found = cli.main(["consume", str(pipeline), "--session", "one"], {**os.environ, "ONCELOAD_DSN": self.dsn})
        assert found == code

    def access(self, *, writes: bool) -> TokenAccess:
        settings = Settings(dsn=self.dsn)
        return TokenAccess(self.engine, settings, folder=self.folder / "pipelines", token="secret", writes=writes)

    def ask(self, statement: str) -> list[Any]:
        return execute(self.dsn, statement)


@pytest.fixture(scope="package")
def day(server_dsn, template, tmp_path_factory) -> Iterator[Day]:
    with day_of(server_dsn, template, tmp_path_factory.mktemp("day")) as day:
        yield day


@contextmanager
def day_of(server_dsn: str, template: str, folder: Path) -> Iterator[Day]:
    """`well` is fine, `late` has a file of two hours ago, `rewritten` and `poison` need a person, `new` has no load."""
    with temporary_database(server_dsn, template=template) as dsn:
        engine = connect(LedgerSettings(dsn=dsn))
        day = Day(folder=folder, dsn=dsn, engine=engine)
        for name in ("well", "late", "rewritten", "poison", "new"):
            (day.folder / name).mkdir()
            day.write(f"pipelines/{name}.yaml", PIPELINE.format(name=name, folder=day.folder))
        with pytest.MonkeyPatch.context() as patched:
            _load_all(day, patched)
        yield day
        engine.dispose()


def _load_all(day: Day, patched: pytest.MonkeyPatch) -> None:
    day.write("well/a.jsonl", f'{{"n": 1}}\n{{"n": "x{MARKUP}"}}\n{{"n": 3, "note": "{MARKUP}"}}\n')
    day.load("well")
    day.write("well/b.jsonl", '{"n": 4}\n{"n": "y"}\n')
    day.load("well")
    day.write("late/a.jsonl", '{"n": 1}\n')
    day.load("late")
    day.ask("UPDATE onceload.attempt SET looked_at = looked_at - interval '3 hours' WHERE pipeline = 'late'")
    day.write("late/b.jsonl", '{"n": 2}\n', age_s=_TWO_HOURS_S)
    day.write("rewritten/a.jsonl", '{"n": 1}\n{"n": 2}\n')
    day.load("rewritten")
    day.write("rewritten/a.jsonl", '{"n": 7}\n{"n": 8}\n')

    def fails(chunk, source):
        raise ValueError("poison")
        yield from read_parts(chunk, source)

    day.write("poison/a.jsonl", '{"n": 1}\n')
    patched.setattr(loading, "read_parts", fails)
    day.load("poison", code=ExitCode.NEEDS_A_PERSON)


@pytest.fixture(scope="package")
def pages(day) -> Iterator[TestClient]:
    """The pages, after the files were listed once."""
    access = day.access(writes=False)
    with TestClient(make_standalone_app(access, hosts=["testserver"])) as client:
        assert client.get("/?token=secret").status_code == 200
        # They are listed one after the other.
        of_each = [f"/attention?pipeline={name}" for name in ("late", "rewritten", "well")]
        until(lambda: all("not been listed" not in client.get(path).text for path in of_each))
        yield client
