"""Loads over a resident Spark that may be killed, and the network between them, which may be cut."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch
from urllib.error import URLError

import psutil

from onceload import resident
from tests.fault.network import Condition, Network
from tests.loads.plugs import Stand, open_stand
from tests.loads.worker import HOSTS, Cluster, is_worker, spark_cluster
from tests.ports import free_port
from tests.spark_pages import jobs_of, tasks_of

#: So small that a job has many tasks.
_CHUNK_BYTES = 2**18


@dataclass(kw_only=True)
class ResidentStand:
    """Files and a database, the server of Spark, and the network before it."""

    loads: Stand
    network: Network
    home: Path
    port: int
    ui_port: int
    #: Its hosts, if it has several.
    cluster: Cluster | None = None
    spark: resident.Resident = field(init=False)

    def start(self) -> None:
        """Start the server, unless it runs, and let all that is sent arrive."""
        self.spark = resident.start(self.home, port=self.port, ui_port=self.ui_port)
        self.network.become(Condition.OPEN)

    def stop(self) -> None:
        resident.stop(self.home)

    @property
    def remote(self) -> str:
        return f"sc://localhost:{self.network.port}/;token={self.spark.token}"

    @property
    def jvm(self) -> psutil.Process:
        return psutil.Process(self.spark.pid)

    def workers(self) -> list[psutil.Process]:
        """The processes that carry out tasks."""
        if self.cluster is not None:
            return [each for host in HOSTS for each in self.cluster.workers_on(host)]
        return [each for each in self.jvm.children(recursive=True) if is_worker(each)]

    def daemons(self) -> list[psutil.Process]:
        """What they are forked from."""
        return list({daemon for each in self.workers() if (daemon := each.parent()) is not None})

    def is_working(self) -> bool:
        """Whether a job runs."""
        with suppress(URLError, ConnectionError):
            return any(job["status"] == "RUNNING" for job in jobs_of(self.spark.ui))
        return False

    def workers_on(self, host: str) -> list[psutil.Process]:
        assert self.cluster is not None
        return self.cluster.workers_on(host)

    def runs_on(self, host: str) -> bool:
        """Whether this host runs a task."""
        return any(task["host"] == host and task["status"] == "RUNNING" for task in tasks_of(self.spark.ui))

    def failed_tasks(self) -> int:
        return sum(job["numFailedTasks"] for job in jobs_of(self.spark.ui))

    def copies(self) -> int:
        """How many second copies of tasks began."""
        return sum(task["speculative"] for task in tasks_of(self.spark.ui))


@contextmanager
def pausing(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Stop them for as long as the block runs."""
    stopped = list(processes)
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def open_resident_stand(*, lines: int, cluster: Cluster | None = None) -> Iterator[ResidentStand]:
    with ExitStack() as opened:
        home = Path(opened.enter_context(TemporaryDirectory(prefix="onceload-resident-")))
        port = free_port()
        stand = ResidentStand(
            loads=opened.enter_context(open_stand(lines=lines, chunk_bytes=_CHUNK_BYTES)),
            network=opened.enter_context(Network(port)),
            home=home,
            port=port,
            ui_port=free_port(),
            cluster=cluster,
        )
        opened.callback(stand.stop)
        stand.start()
        yield stand


@contextmanager
def open_speculating_stand(*, lines: int) -> Iterator[ResidentStand]:
    """The same on two hosts: only there does Spark run a second copy of a task that it thinks slow."""
    of_server = resident.Server._settings
    with TemporaryDirectory(prefix="onceload-hosts-") as folder, spark_cluster(Path(folder)) as cluster:
        ours = {"spark.master": cluster.address, "spark.ui.enabled": "true"}

        def settings(server: resident.Server) -> dict[str, str]:
            return {**of_server(server), **cluster.settings, **ours}

        with (
            patch.object(resident.Server, "_settings", settings),
            open_resident_stand(lines=lines, cluster=cluster) as stand,
        ):
            yield stand
