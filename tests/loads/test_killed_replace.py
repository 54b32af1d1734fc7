"""A load that replaces a file is killed, and called again: each row is there once, and none of the old ones.

It waits at a gate, which is in the database at one moment of its life, until it is killed there.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from multiprocessing import get_context

import psycopg2
import pytest

from onceload.choices import chosen
from onceload_core.delivery import Rules
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.declared import Declared, Publish
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.counter import COLUMNS, Life, Place, Record, broken, commits_of, records_of
from tests.loads.worker import running_load
from tests.waiting import PATIENCE_S, until

_KEY = 20_261_122


class Moment(StrEnum):
    CLAIMED = "it has claimed what it will read"
    PART_WRITTEN = "a part of its rows is written"
    OLD_ROWS_DELETED = "in its commit the old rows have just been deleted"
    WRITTEN = "its commit has written all but its end"
    COMMIT_SENT = "its COMMIT is under way, and takes effect without it"
    COMMITTED = "its commit took effect, and it has not ended"
    STAGE_LEFT = "its commit took effect, and what was staged is still there"

    @property
    def has_taken_effect(self) -> bool:
        return self in (Moment.COMMIT_SENT, Moment.COMMITTED, Moment.STAGE_LEFT)

    @property
    def is_of_loading(self) -> bool:
        return self is not Moment.STAGE_LEFT

    @property
    def is_of_publishing(self) -> bool:
        return self not in (Moment.CLAIMED, Moment.PART_WRITTEN, Moment.COMMITTED)


#: The place of each, as a trigger that calls it.
_GATES = {
    Moment.CLAIMED: "TRIGGER gate BEFORE INSERT ON onceload.delivery FOR EACH ROW WHEN (NEW.work IS NULL)",
    Moment.PART_WRITTEN: "TRIGGER gate AFTER INSERT ON target",
    Moment.OLD_ROWS_DELETED: "TRIGGER gate AFTER DELETE ON target",
    Moment.WRITTEN: "TRIGGER gate AFTER INSERT ON onceload.ledger",
    Moment.COMMIT_SENT: "CONSTRAINT TRIGGER gate AFTER INSERT ON onceload.ledger INITIALLY DEFERRED FOR EACH ROW",
    Moment.COMMITTED: "TRIGGER gate AFTER UPDATE ON onceload.session FOR EACH ROW WHEN (NEW.epoch > OLD.epoch)",
    Moment.STAGE_LEFT: "EVENT TRIGGER gate ON ddl_command_start WHEN TAG IN ('DROP TABLE')",
}


@dataclass(frozen=True)
class Gate:
    """A process that comes to its moment waits until it is opened."""

    holder: psycopg2.extensions.connection

    def is_reached(self) -> bool:
        return self._count("NOT granted") > 0

    def open(self) -> None:
        """And wait until all who came through, though they may be dead, have ended their transactions."""
        self._ask(f"SELECT pg_advisory_unlock({_KEY})")
        until(lambda: self._count("true") == 0)

    def _count(self, condition: str) -> int:
        there = f"locktype = 'advisory' AND classid = 0 AND objid = {_KEY} AND {condition}"
        return int(self._ask(f"SELECT count(*) FROM pg_locks WHERE {there}"))

    def _ask(self, query: str) -> int:
        with self.holder.cursor() as cursor:
            cursor.execute(query)
            ((found,),) = cursor.fetchall()
            return int(found)


@contextmanager
def gate_at(moment: Moment, dsn: str) -> Iterator[Gate]:
    is_of_ddl = _GATES[moment].startswith("EVENT")
    new = "RETURN NEW;" if moment is Moment.CLAIMED else "RETURN NULL;"
    with closing(psycopg2.connect(dsn)) as holder, holder.cursor() as cursor:
        holder.autocommit = True
        cursor.execute(
            f"CREATE FUNCTION wait_at_gate() RETURNS {'event_trigger' if is_of_ddl else 'trigger'} LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_advisory_xact_lock({_KEY}); {'' if is_of_ddl else new} END $$"
        )
        cursor.execute(f"CREATE {_GATES[moment]} EXECUTE FUNCTION wait_at_gate()")
        cursor.execute(f"SELECT pg_advisory_lock({_KEY})")
        yield Gate(holder)


@dataclass(frozen=True, kw_only=True)
class Replacing:
    """A file that was rewritten, beside one that stays, one that is gone, and one that was not chosen yet."""

    loads: Loads
    before: str
    after: str
    #: The contents of the other files.
    others: dict[Life, bytes]

    def settings(self) -> LoadSettings:
        choice = chosen(self.loads.declared, files=["a.jsonl", "gone.jsonl"], replaces=True)
        # No timeout is quicker than the test that kills it, also on a slow machine.
        return LoadSettings(ledger=LedgerSettings(dsn=self.loads.dsn, lock_timeout_s=PATIENCE_S), choice=choice)

    def differences(self, *, times: int) -> list[str]:
        """Where the database differs from what it should hold once the file was replaced a number of times."""
        lives = {Life("a.jsonl", 1): self.before, **{Life("a.jsonl", 2 + each): self.after for each in range(times)}}
        of_lives = {life: records_of({life: content.encode()}) for life, content in lives.items()}
        gone: Counter[Record] = Counter()
        for life in [*lives][:-1]:
            gone += Counter({record: n for record, n in of_lives[life].items() if record.is_row})
        expected = sum(of_lives.values(), records_of(self.others))
        place = Place(pipeline="events", target="public.target")
        of_replacing = [({old}, {new}) for old, new in pairwise(lives)]
        commits = commits_of(self.loads.engine, "events", after=0)
        found = [(commit.replaced, {*commit.spans}) for commit in commits if commit.replaced]
        differences = broken(self.loads.engine, place, expected, gone=gone)
        return [*differences, *([] if found == of_replacing else [f"{found} was replaced by what came with it"])]


@pytest.fixture
def replacing(loads: Loads) -> Replacing:
    # Several pieces of it, and the wait for what a killed load held is short.
    source = replace(loads.declared.source, chunk_bytes=200)
    loads.declared = replace(loads.declared, source=source, delivery=Rules(ack_deadline_s=2))
    before = "".join(map(line, range(20)))
    after = "".join(map(line, range(15, 45))) + "no json\n"
    others = {Life("b.jsonl", 1): line(100).encode(), Life("gone.jsonl", 1): line(101).encode()}
    loads.write("a.jsonl", before)
    for life, content in others.items():
        loads.write(life.file, content)
    loads.load()
    loads.write("a.jsonl", after)
    (loads.folder / "gone.jsonl").unlink()
    loads.write("later.jsonl", line(102))
    return Replacing(loads=loads, before=before, after=after, others=others)


STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])


def _load(declared: Declared, settings: LoadSettings, batch: str) -> None:
    load(declared, settings, batch=Batch(batch), executor=InThisProcess())


def _publish(declared: Declared, settings: LoadSettings, batch: str) -> None:
    publish_batch(declared, settings, batch=Batch(batch))


@contextmanager
def killed_at(
    moment: Moment, replacing: Replacing, call: Callable[[Declared, LoadSettings, str], None]
) -> Iterator[None]:
    """Kill a call as batch `first`, and look at what it has left."""
    loads = replacing.loads
    with gate_at(moment, loads.admin_dsn) as gate:
        process = get_context("spawn").Process(target=call, args=(loads.declared, replacing.settings(), "first"))
        process.start()
        try:
            until(lambda: gate.is_reached() or not process.is_alive())
            assert gate.is_reached(), "it ended before it could be killed"
        finally:
            process.kill()
            process.join()
        gate.open()
        assert replacing.differences(times=1 if moment.has_taken_effect else 0) == []
        yield


@STAGED
@pytest.mark.parametrize("again", ["first", pytest.param("another", marks=pytest.mark.long)])
@pytest.mark.parametrize("moment", [moment for moment in Moment if moment.is_of_loading])
def test_a_load_that_is_killed_while_it_replaces_and_called_again_leaves_each_row_once(replacing, moment, again):
    declared, settings = replacing.loads.declared, replacing.settings()
    with killed_at(moment, replacing, _load):
        report = load(declared, settings, batch=Batch(again), executor=InThisProcess())

    is_replaced_again = moment.has_taken_effect and again == "another"
    assert (report.loaded > 0) == (is_replaced_again or not moment.has_taken_effect)
    is_noted = moment.has_taken_effect and again == "first"
    assert [note.name for note in report.notes] == (["a.jsonl"] if is_noted else [])
    assert replacing.differences(times=2 if is_replaced_again else 1) == []


@STAGED
@pytest.mark.parametrize("moment", [moment for moment in Moment if moment.is_of_publishing])
@pytest.mark.long
def test_a_staged_replacement_is_published_once_though_its_publisher_is_killed(replacing, moment):
    declared, settings = replacing.loads.declared, replacing.settings()
    load(declared, replace(settings, publishes=False), batch=Batch("first"), executor=InThisProcess())
    assert replacing.differences(times=0) == []

    with killed_at(moment, replacing, _publish):
        publish_batch(declared, settings, batch=Batch("first"))
        publish_batch(declared, settings, batch=Batch("first"))

    assert replacing.differences(times=1) == []


@pytest.mark.long
@STAGED
def test_the_command_is_killed_while_it_replaces_and_called_again(replacing, tmp_path):
    file = tmp_path / "events.yaml"
    columns = "\n".join(f"  {name}: {of_type}" for name, of_type in COLUMNS.items())
    file.write_text(
        f"pipeline: events\nsource: {{path: {replacing.loads.declared.source.path}, format: jsonl}}\n"
        f"columns:\n{columns}\ntarget: {{table: public.target}}\npublish: staged\n"
    )
    options = ["--only", "a.jsonl", "--replace"]

    with gate_at(Moment.OLD_ROWS_DELETED, replacing.loads.admin_dsn) as gate:
        with running_load(file, dsn=replacing.loads.dsn, batch="first", options=options) as struck:
            struck.wait_until(gate.is_reached)
            struck.kill_group()
            struck.end()
        gate.open()
        with running_load(file, dsn=replacing.loads.dsn, batch="first", options=options) as again:
            ended = again.end()

    assert (ended.exit_code, ended.document["quarantined"]) == (0, 1)
    assert replacing.differences(times=1) == []
