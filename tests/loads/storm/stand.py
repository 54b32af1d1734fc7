"""Where sequences are carried out."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import psycopg2
from sqlalchemy import Engine

from onceload import resident, schema
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.work.spark.connect import connected
from onceload_jobs.work.spark.spark import Spark
from onceload_jobs.write import evolve
from onceload_jobs.write import patience as loading
from tests.loads.storm.drawing import Drawn, Theme
from tests.loads.storm.folder import Folder
from tests.loads.storm.strikes import listening
from tests.loads.storm.world import World
from tests.ports import free_port
from tests.servers import (
    execute,
    temporary_database,
    temporary_server,
    temporary_server_with_icu,
    version_with_icu,
)

_ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Stand:
    """A database, in which each sequence has a pipeline and a target of its own."""

    dsn: str
    server_dsn: str
    engine: Engine
    #: A collation in which case makes no difference, if the server has one.
    caseless: str | None = None
    #: What runs the workers of loads, if not this process.
    spark: Spark | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def fault_of(self, sequence: Drawn) -> BaseException | None:
        """How it breaks a law; nothing, if all hold."""
        number = next(self._numbers)
        root = Path(tempfile.mkdtemp(prefix="storm-"))
        world = World(
            name=f"storm {number}",
            target=f"storm_{number}",
            folder=Folder(root),
            dsn=self.dsn,
            server_dsn=self.server_dsn,
            engine=self.engine,
            words=sequence.words,
            caseless=self.caseless,
            spark=self.spark,
        )
        try:
            for operation in sequence.operations:
                world.do(operation)
            world.finish()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding.
            return error
        finally:
            self.outcomes += world.outcomes
            world.drop()
            shutil.rmtree(root)
        return None


@contextmanager
def open_server(theme: Theme | None) -> Iterator[str]:
    """A server that has what the theme is about, if there is one here."""
    version = version_with_icu() if theme is Theme.CASES else None
    with temporary_server(18) if version is None else temporary_server_with_icu(version) as server_dsn:
        yield server_dsn


def _caseless(dsn: str) -> str | None:
    """Make a collation in which case makes no difference; a server without ICU has none."""
    with suppress(psycopg2.errors.FeatureNotSupported):
        execute(dsn, "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        return "caseless"
    return None


@contextmanager
def open_spark(theme: Theme | None) -> Iterator[str | None]:
    """The address of a resident Spark, if the theme is about it; its workers import what these tests send them."""
    if theme is not Theme.RESIDENT:
        yield None
        return
    with TemporaryDirectory(prefix="onceload-resident-") as home:
        with patch.dict(os.environ, PYTHONPATH=str(_ROOT)):
            spark = resident.start(Path(home), port=free_port(), ui_port=free_port())
        try:
            yield spark.remote
        finally:
            resident.stop(Path(home))


@contextmanager
def open_stand(server_dsn: str, *, remote: str | None = None) -> Iterator[Stand]:
    with temporary_database(server_dsn) as dsn, ExitStack() as opened:
        spark = opened.enter_context(connected("storm", remote, batch="")) if remote else None
        # Nothing here crashes the server, and what it has said is all that counts.
        execute(
            dsn,
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
        )
        engine = connect(LedgerSettings(dsn=dsn))
        schema.upgrade(engine)
        # A load may wait for one that is stopped in the same process, which goes on only when this gives up.
        before, loading._PATIENCE_S = loading._PATIENCE_S, 3.0
        evolve._PATIENCE_S, of_table = 3.0, evolve._PATIENCE_S
        try:
            with listening():
                yield Stand(dsn=dsn, server_dsn=server_dsn, engine=engine, caseless=_caseless(dsn), spark=spark)
        finally:
            loading._PATIENCE_S, evolve._PATIENCE_S = before, of_table
            engine.dispose()
