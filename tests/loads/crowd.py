"""A million messages over a crowd of sessions that are struck again and again: none twice, none lost.

The crowd is processes of `onceload consume`, the partitions of an `onceload load`, or both at once. They are killed,
stopped past their lease, cut off from the database, or the server itself crashes; a process that ends early is started
again, under the same name or, where the mode does not name its sessions, another. In the end an independent count looks
at the target, which has no unique index, and a checker at the answers that each process got.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import psutil
import psycopg2

from onceload import schema
from onceload_core.delivery import Mode
from onceload_core.postgres import LedgerSettings, connect
from tests.fault.server import CrashableServer, crashable_server
from tests.loads.history import Entry, Offered, out_of_order, read_history, spans_of, violations
from tests.servers import execute
from tests.waiting import PATIENCE_S

_ROOT = Path(__file__).resolve().parents[2]
_RECORDED = Path(__file__).parent / "recorded"
_LEASE_S = 2
_PACE_S = 0.05
_FILES = 16
#: A delivery that is struck again and again is not poison.
_DELIVERIES_MAX = 1_000
_CALL_AGAIN = (1, 3)
_WAS_DOWN = "the database cannot be reached"


class Way(StrEnum):
    CONSUME = "consume"
    SPARK = "Spark"
    BOTH = "both"


class Strike(StrEnum):
    KILLED = "killed"
    STOPPED = "stopped past the lease"
    CUT = "cut off"
    CRASHED = "server crashed"


@dataclass(frozen=True, kw_only=True)
class Size:
    messages: int
    chunk_bytes: int
    strikes: int
    sessions: int = 8
    #: Far fewer than there are, so that they are planned in many rounds.
    open_max: int = 1_000
    publish: str = "direct"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a crowd lost, repeated or broke; and what was done to it."""

    what: str
    seed: int
    messages: int
    lost: int
    repeated: int
    broken: tuple[str, ...]
    strikes: Counter[str]
    commits: int
    operations: Counter[str]
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.repeated or self.broken)


@dataclass
class Member:
    """One process of the crowd."""

    name: str
    process: subprocess.Popen[bytes]
    words: Path
    stopped_until: float | None = None

    @property
    def is_there(self) -> bool:
        return self.process.poll() is None


@dataclass
class Crowd:
    """All of it, and what is done to it."""

    way: Way
    mode: Mode
    size: Size
    server: CrashableServer
    folder: Path
    rng: Random
    members: list[Member] = field(default_factory=list)
    strikes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _looking: psycopg2.extensions.connection | None = None

    @property
    def pipeline_file(self) -> Path:
        return self.folder / "crowd.yaml"

    @property
    def history(self) -> Path:
        return self.folder / "history"

    # Processes that take part.

    def gather(self) -> None:
        consumers = {Way.CONSUME: self.size.sessions, Way.SPARK: 0, Way.BOTH: self.size.sessions // 2}[self.way]
        if self.way is not Way.CONSUME:
            self.members.append(self._load())
        for number in range(1, consumers + 1):
            self.members.append(self._consumer(str(number)))

    def _consumer(self, name: str) -> Member:
        return self._started(name, "consume", str(self.pipeline_file), "--session", name, "--wait", "60s")

    def _load(self) -> Member:
        sessions = self.size.sessions if self.way is Way.SPARK else self.size.sessions // 2
        options = ["--batch", "crowd", "--master", f"local[{sessions},10000]", "--wait", "60s"]
        return self._started("load", "load", str(self.pipeline_file), *options)

    def _started(self, name: str, *arguments: str) -> Member:
        words = self.folder / f"words-{next(self._numbers)}.txt"
        environment = {
            **os.environ,
            "ONCELOAD_DSN": self.server.dsn(),
            "ONCELOAD_HISTORY": str(self.history),
            "PYTHONPATH": f"{_RECORDED}{os.pathsep}{_ROOT}",
        }
        with words.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "onceload", *arguments],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Member(name=name, process=process, words=words)

    def keep_up(self) -> None:
        """Restart processes that ended and were not done, and wake up those that were stopped for long enough."""
        for number, member in enumerate(self.members):
            if member.stopped_until is not None and time.monotonic() >= member.stopped_until:
                self._wake(member)
            if member.is_there or member.process.returncode == 0:
                continue
            if self._is_strange(member):
                self.broken.append(f"{member.name} ended with {member.process.returncode}: {member.words.read_text()}")
            self.members[number] = self._again(member)

    def _is_strange(self, member: Member) -> bool:
        """Whether it ended otherwise than killed, to be called again, or because the server was just down."""
        code = member.process.returncode
        return code > 0 and code not in _CALL_AGAIN and _WAS_DOWN not in member.words.read_text()

    def _again(self, member: Member) -> Member:
        if member.name == "load":
            return self._load()
        is_gone_for_good = self.mode is not Mode.SESSION and self.rng.random() < 0.3
        return self._consumer(f"new-{next(self._numbers)}" if is_gone_for_good else member.name)

    def _wake(self, member: Member) -> None:
        member.stopped_until = None
        for process in self._tree(member):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    # Faults.

    def strike(self) -> bool:
        """Strike some process, somehow; false if there was none to strike."""
        strike = self.rng.choices(list(Strike), weights=(10, 6, 6, 1))[0]
        if strike is Strike.CRASHED:
            self._stop_looking()
            self.server.crash()
            self.server.start()
        elif strike is Strike.CUT:
            if not self._cut():
                return False
        else:
            victims = self._victims()
            if not victims:
                return False
            member, process = self.rng.choice(victims)
            with suppress(psutil.NoSuchProcess):
                if strike is Strike.KILLED:
                    process.kill()
                else:
                    process.suspend()
                    member.stopped_until = time.monotonic() + _LEASE_S * self.rng.uniform(1.1, 2)
        self.strikes[strike] += 1
        return True

    def _victims(self) -> list[tuple[Member, psutil.Process]]:
        """Consumers, Spark's workers, and now and then the driver of a load."""
        found: list[tuple[Member, psutil.Process]] = []
        for member in self.members:
            if not member.is_there or member.stopped_until is not None:
                continue
            tree = self._tree(member)
            workers = [each for each in tree if _is_worker(each)] if member.name == "load" else tree[:1]
            if member.name == "load" and tree and self.rng.random() < 0.05:
                workers = tree[:1]
            found += [(member, each) for each in workers]
        return found

    def _tree(self, member: Member) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(member.process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def _cut(self) -> bool:
        pids = self.ask(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'onceload' AND backend_type = 'client backend'"
        )
        if not pids:
            return False
        return bool(self.ask(f"SELECT pg_terminate_backend({self.rng.choice(pids)[0]})"))

    # Observations.

    def ask(self, statement: str) -> list[tuple]:
        try:
            if self._looking is None:
                self._looking = psycopg2.connect(self.server.dsn(application_name="crowd"))
                self._looking.autocommit = True
            with self._looking.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall()
        except psycopg2.Error:
            self._stop_looking()
            return []

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.close()
        self._looking = None

    def loaded(self) -> int:
        """How many messages are loaded, by the ledger."""
        found = self.ask("SELECT coalesce(sum(loaded), 0) FROM onceload.ledger")
        return int(found[0][0]) if found else -1

    def disperse(self) -> None:
        """Nothing of it is left."""
        self._stop_looking()
        for member in self.members:
            for process in self._tree(member):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            member.process.wait()


def _is_worker(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return "pyspark.daemon" in process.cmdline() and parent is not None and "pyspark.daemon" in parent.cmdline()
    except psutil.Error:
        return False


@contextmanager
def gathered(way: Way, mode: Mode, size: Size, seed: int) -> Iterator[Crowd]:
    with TemporaryDirectory(prefix="onceload-crowd-") as folder, crashable_server() as server, ExitStack() as ending:
        engine = connect(LedgerSettings(dsn=server.dsn()))
        schema.upgrade(engine)
        engine.dispose()
        execute(server.dsn(), _KEEP_OFFERS)
        crowd = Crowd(way=way, mode=mode, size=size, server=server, folder=Path(folder), rng=Random(seed))
        ending.callback(crowd.disperse)
        crowd.history.mkdir()
        _write(crowd)
        yield crowd


#: An acked delivery is deleted; so a test keeps what was offered, and in mode session to which one.
_KEEP_OFFERS = """
CREATE TABLE public.offered_span (delivery_id bigint, producer_id bigint, spans int8multirange);
CREATE TABLE public.offered_to (delivery_id bigint, session_id bigint);
CREATE FUNCTION public.keep_span() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.offered_span SELECT NEW.delivery_id, NEW.producer_id, NEW.spans
     WHERE EXISTS (SELECT FROM onceload.delivery WHERE delivery_id = NEW.delivery_id AND work IS NOT NULL);
    RETURN NULL;
END $$;
CREATE FUNCTION public.keep_line() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.offered_to VALUES (NEW.delivery_id, NEW.session_id); RETURN NULL; END $$;
CREATE TRIGGER keep_span AFTER INSERT ON onceload.delivery_span FOR EACH ROW EXECUTE FUNCTION public.keep_span();
CREATE TRIGGER keep_line AFTER UPDATE ON onceload.delivery FOR EACH ROW
  WHEN (OLD.session_id IS NULL AND OLD.state = 'waiting' AND NEW.state = 'waiting' AND NEW.session_id IS NOT NULL)
  EXECUTE FUNCTION public.keep_line();
"""


def _write(crowd: Crowd) -> None:
    landing = crowd.folder / "landing"
    landing.mkdir()
    size = crowd.size
    for number in range(_FILES):
        numbers = range(size.messages * number // _FILES, size.messages * (number + 1) // _FILES)
        lines = "".join(
            f'{{"id": {each}, "note": "message {each} of many, and some more words"}}\n' for each in numbers
        )
        (landing / f"{number:02}.jsonl").write_text(lines)
    crowd.pipeline_file.write_text(
        "pipeline: crowd\n"
        f"source: {{path: {landing}/*.jsonl, format: jsonl, chunk_bytes: {size.chunk_bytes}}}\n"
        "columns: {id: bigint not null, note: text}\n"
        "target: {table: public.messages}\n"
        f"publish: {size.publish}\n"
        f"delivery: {{mode: {crowd.mode}, sessions: {size.sessions}, ack_deadline: {_LEASE_S}s,"
        f" deliveries_max: {_DELIVERIES_MAX}, open_max: {size.open_max}}}\n"
    )


def run_crowd(way: Way, mode: Mode, size: Size, *, seed: int, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Strike a crowd a number of times while it loads, evenly over all that there is to load."""
    started = time.monotonic()
    with gathered(way, mode, size, seed) as crowd:
        crowd.gather()
        _strike_until_done(crowd, tell)
        crowd.disperse()
        return _judged(crowd, seed=seed, started=started)


def _strike_until_done(crowd: Crowd, tell: Callable[[str], None]) -> None:
    size, most, seen_at = crowd.size, 0, time.monotonic()
    while not all(not member.is_there and member.process.returncode == 0 for member in crowd.members):
        loaded = crowd.loaded()
        if loaded > most:
            most, seen_at = loaded, time.monotonic()
        if time.monotonic() - seen_at > PATIENCE_S:
            said = [f"{each.name} ({each.process.returncode}): {each.words.read_text()}" for each in crowd.members]
            crowd.broken.append(f"no progress for {PATIENCE_S:.0f} s: {said}")
            return
        # The last is struck before the last messages come.
        if loaded > 0 and crowd.strikes.total() < size.strikes * min(1, (loaded / size.messages + 0.02) / 0.98):
            crowd.strike()
            if crowd.strikes.total() % 20 == 0:
                tell(f"{crowd.strikes.total()} strikes, {loaded} messages")
        crowd.keep_up()
        time.sleep(_PACE_S)
    if crowd.strikes.total() < size.strikes:
        crowd.broken.append(f"only {crowd.strikes.total()} strikes of {size.strikes}")


def _judged(crowd: Crowd, *, seed: int, started: float) -> Outcome:
    size = crowd.size
    with closing(psycopg2.connect(crowd.server.dsn())) as connection, connection.cursor() as cursor:

        def ask(statement: str) -> list[tuple]:
            cursor.execute(statement)
            return cursor.fetchall()

        ((rows, ids, least, highest),) = ask("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM messages")
        entries = _entries(
            ask(
                "SELECT position, session, epoch, producer_id, CAST(spans AS text) FROM"
                " onceload.ledger JOIN onceload.ledger_span USING (pipeline_id, position)"
                " WHERE NOT isempty(spans) ORDER BY position, producer_id"
            )
        )
        committed = ask(
            "SELECT position, producer_id, lower(spans), session FROM onceload.ledger_span"
            " JOIN onceload.ledger USING (pipeline_id, position) WHERE NOT isempty(spans) ORDER BY position"
        )
        offered = [
            Offered(delivery=row[0], producer=row[1], first=row[2], end=row[3], session=row[4])
            for row in ask(
                "SELECT delivery_id, producer_id, lower(spans), upper(spans), session.name FROM offered_span"
                " LEFT JOIN offered_to USING (delivery_id) LEFT JOIN onceload.session USING (session_id)"
                " ORDER BY delivery_id"
            )
        ]
        ((gaps,),) = ask("SELECT max(position) - count(*) FROM onceload.ledger")
        ((left,),) = ask("SELECT count(*) FROM onceload.delivery WHERE work IS NOT NULL")
    operations, opened = read_history(crowd.history)
    broken = [*crowd.broken, *violations(operations, opened, entries)]
    if size.publish == "direct":
        broken += out_of_order(crowd.mode, offered, committed)
    if gaps:
        broken.append(f"{gaps} positions are missing")
    if left:
        broken.append(f"{left} deliveries are left")
    if rows and (least, highest) != (0, size.messages - 1):
        broken.append(f"ids from {least} to {highest}, which were never written")
    return Outcome(
        what=f"{crowd.way}, {crowd.mode}",
        seed=seed,
        messages=size.messages,
        lost=size.messages - ids,
        repeated=rows - ids,
        broken=tuple(broken),
        strikes=crowd.strikes,
        commits=len(entries),
        operations=Counter(str(each.told) for each in operations),
        seconds=time.monotonic() - started,
    )


def _entries(rows: Sequence[tuple[int, str, int, int, str]]) -> list[Entry]:
    found: dict[int, tuple[str, int, dict[int, str]]] = {}
    for position, session, epoch, producer, spans in rows:
        found.setdefault(position, (session, epoch, {}))[2][producer] = spans
    return [
        Entry(position=position, session=session, epoch=epoch, spans=spans_of(spans))
        for position, (session, epoch, spans) in found.items()
    ]
