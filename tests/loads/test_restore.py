"""A database that is restored to an earlier time lost rows and state together, and gets both back."""

import shutil
import subprocess

from onceload import schema
from onceload.embedded import running
from onceload_core.names import Position
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.replay import replay
from tests.loads.conftest import Loads, declared_for, line
from tests.servers import temporary_home


def test_a_restored_database_is_made_whole_by_the_next_load(tmp_path):
    with temporary_home() as home:
        with running(home) as dsn:
            loads = opened(tmp_path, dsn)
            loads.write("a.jsonl", "".join(line(number) for number in range(100)))
            loads.load()
            loads.engine.dispose()
        backup = tmp_path / "backup"
        subprocess.run(["cp", "-a", str(home), str(backup)], check=True)
        with running(home) as dsn:
            loads = opened(tmp_path, dsn)
            with (loads.folder / "a.jsonl").open("a") as file:
                file.write("".join(line(number) for number in range(100, 150)))
            loads.write("b.jsonl", "".join(line(number) for number in range(150, 200)) + "{bad\n")
            assert loads.load().position == 2
            loads.engine.dispose()
        shutil.rmtree(home)
        subprocess.run(["cp", "-a", str(backup), str(home)], check=True)
        with running(home) as dsn:
            loads = opened(tmp_path, dsn)
            lost = len(loads.rows())

            report = loads.load()

            assert (lost, report.loaded, report.quarantined, report.position) == (100, 100, 1, 2)
            assert loads.rows() == list(range(200))
            entries = loads.ledger.entries("events", after=Position(0))
            assert replay({}, entries) == loads.ledger.states("events").states
            assert loads.load().loaded == 0
            loads.engine.dispose()


def opened(folder, dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    schema.upgrade(engine)
    (folder / "landing").mkdir(exist_ok=True)
    return Loads(
        folder=folder / "landing", engine=engine, dsn=dsn, admin_dsn=dsn, declared=declared_for(folder / "landing")
    )
