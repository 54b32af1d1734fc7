"""A primary that dies while loads run; `make faults` has twenty drills of all kinds."""

from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest

from onceload import schema
from onceload_core.errors import SessionFenced
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.executor.executor import Raised, called
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import NothingKept, publish_batch
from onceload_jobs.pipeline.declared import Publish
from tests.fault.sizes import chosen_seed
from tests.fault.standby import Successor, open_site
from tests.loads.conftest import InThisProcess, Loads, declared_for, line
from tests.loads.failover import Drill, Way, run_drill


@pytest.mark.long
def test_loads_whose_primary_dies_land_each_record_once_on_its_successor():
    seed = chosen_seed()
    print(f"ONCELOAD_FAULT_SEED={seed}")
    rng = Random(seed)
    way = rng.choice([way for way in Way if way is not Way.AIRFLOW])
    drill = Drill(successor=rng.choice(list(Successor)), way=way, seed=str(seed))

    outcome = run_drill(drill)

    assert outcome.is_good, outcome


@pytest.mark.long
def test_a_kept_batch_is_staged_again_on_a_standby_where_its_stage_is_empty(tmp_path):
    with open_site(Successor.SYNCHRONOUS) as site, opened(tmp_path, site.dsn) as loads:
        site.prepare()
        loads.write("a.jsonl", line(1) + line(2))
        stage(loads)
        site.fail_over()
        loads.engine.dispose()

        with pytest.raises(NothingKept, match=r"a standby took over\. Nothing of it was published"):
            publish(loads)
        stage(loads)

        assert publish(loads).loaded == 2
        assert loads.rows() == [1, 2]
        assert loads.load().loaded == 0


@pytest.mark.long
def test_a_worker_of_a_life_that_a_failover_lost_commits_nothing(tmp_path):
    """Ids that the old primary gave away after its standby was cut off are given away again, to another file."""
    with open_site(Successor.ASYNCHRONOUS) as site, opened(tmp_path, site.dsn) as loads:
        loads.declared = replace(loads.declared, publish=Publish.DIRECT)
        loads.write("z.jsonl", line(0))
        loads.load()
        site.prepare()
        site.part()
        loads.write("b.jsonl", line(1))
        with pytest.raises(SessionFenced):
            load_with(loads, lambda zombie: fail_over_and_load(site, loads, zombie))

        assert loads.load().loaded == 0
        assert loads.rows() == [0, 1, 2]


def fail_over_and_load(site, loads, zombie):
    site.fail_over()
    loads.engine.dispose()
    loads.write("a.jsonl", line(2))

    def refuse_the_zombie_first(work):
        with pytest.raises(SessionFenced):
            zombie()
        work()

    load_with(loads, refuse_the_zombie_first)


class InHand(InThisProcess):
    """A task has its chunk, and something happens before it loads it."""

    def __init__(self, happens):
        self._happens = happens

    def each(self, function, items):
        (item,) = items
        outcomes = []

        def work():
            outcomes.append(called(function, item))
            if isinstance(outcomes[-1], Raised):
                raise outcomes[-1].error

        self._happens(work)
        yield 0, outcomes[-1]


@contextmanager
def opened(folder, dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    schema.upgrade(engine)
    declared = replace(declared_for(folder), publish=Publish.STAGED)
    yield Loads(folder=folder, engine=engine, dsn=dsn, admin_dsn=dsn, declared=declared)
    engine.dispose()


def load_with(loads, happens):
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    load(loads.declared, settings, batch=Batch("run"), executor=InHand(happens))


def stage(loads):
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, publishes=False)
    load(loads.declared, settings, batch=Batch("one"), executor=InThisProcess())


def publish(loads):
    return publish_batch(
        loads.declared, LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0), batch=Batch("one")
    )
