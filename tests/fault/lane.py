"""A lane: a server with all that one run after another needs; several lanes run side by side."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, text

from onceload import schema
from onceload_core.names import ProducerId
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from tests.fault.laws import Place
from tests.fault.nursery import Nursery, nursery
from tests.fault.observer import Observer
from tests.fault.proxy import Proxy
from tests.fault.server import CrashableServer, crashable_server

_DATABASE = "faults"
#: Workers are another user than the one who checks, so that only they are hit.
_LOADER = "loader"


@dataclass(frozen=True, kw_only=True)
class Lane:
    server: CrashableServer
    proxy: Proxy
    proxy_folder: Path
    nursery: Nursery
    observer: Observer
    engine: Engine
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def new_place(self, rng: Random) -> tuple[Place, tuple[ProducerId, ...]]:
        """A pipeline, its producers, and a target without any index: what keeps its rows single is the ledger alone."""
        number = next(self._numbers)
        place = Place(pipeline=f"run {number}", target=f"public.target_{number}")
        ledger = PostgresLedger(self.engine)
        ledger.declare(Pipeline(name=place.pipeline, message_keep_days=2))
        names = [(f"producer {each}", 1) for each in range(rng.randint(2, 4))]
        producers = ledger.register(place.pipeline, names)
        with self.engine.begin() as connection:
            connection.execute(
                text(f"CREATE TABLE {place.target} (_producer_id bigint, _sequence bigint, payload text)")
            )
        self.proxy.doom_next_commit(None)
        self.observer.watch(place)
        return place, tuple(producers.values())

    def settings(self, *, through_proxy: bool = False, idle_timeout_s: float = 30.0) -> LedgerSettings:
        """How a worker reaches the database."""
        folder = self.proxy_folder if through_proxy else self.server.socket_folder
        dsn = self.server.dsn(dbname=_DATABASE, user=_LOADER, host=folder)
        return LedgerSettings(dsn=dsn, idle_timeout_s=idle_timeout_s)

    def end_backends_of_workers(self) -> int:
        """Answers with how many there were, once they are gone."""
        query = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = :loader"
        with self.engine.begin() as connection:
            return len(connection.execute(text(query), {"loader": _LOADER}).all())

    def crash_server(self) -> None:
        self.engine.dispose()
        self.server.crash()


@contextmanager
def open_lane() -> Iterator[Lane]:
    with ExitStack() as stack:
        server = stack.enter_context(crashable_server())
        server.create_database(_DATABASE)
        dsn = server.dsn(dbname=_DATABASE)
        engine = connect(LedgerSettings(dsn=dsn))
        stack.callback(engine.dispose)
        schema.upgrade(engine)
        with engine.begin() as connection:
            connection.execute(text(f"CREATE ROLE {_LOADER} SUPERUSER LOGIN"))
        proxy_folder = Path(stack.enter_context(TemporaryDirectory(prefix="onceload-proxy-")))
        yield Lane(
            server=server,
            proxy=stack.enter_context(Proxy(folder=proxy_folder, server_folder=server.socket_folder)),
            proxy_folder=proxy_folder,
            nursery=stack.enter_context(nursery()),
            observer=stack.enter_context(Observer(dsn)),
            engine=engine,
        )


@contextmanager
def open_lanes(number: int) -> Iterator[Sequence[Lane]]:
    with ExitStack() as stack:
        yield [stack.enter_context(open_lane()) for _ in range(number)]
