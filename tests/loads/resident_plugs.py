"""Faults that hit loads over a resident Spark: at its parts, at the network before it, at the load, and at its stage.

The first call is struck while its tasks run, and each strike proves that it hit. The next call has to finish, however
the first one ended. The other laws are in `plugs.py`.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from random import Random

import psutil

from onceload import Pipeline
from onceload_jobs.batch.folders import MARK
from onceload_jobs.load.settings import Engine
from onceload_jobs.pipeline.declared import Publish
from tests.fault.network import Condition
from tests.loads.plugs import Outcome, Plugged, Way
from tests.loads.resident_stand import ResidentStand, pausing
from tests.loads.worker import HOSTS, Ended, NotAsPlanned, RunningLoad
from tests.waiting import until

#: How much the network has carried to a load when it is struck: rows, and not only answers.
_CARRIED_BYTES = 2**18
#: Where the driver keeps its files if no worker may see them: to each process, this is its own folder.
_SEEN_BY_DRIVER_ALONE = Path("/proc/self/cwd")
#: A stage that has room for some pieces, and not for all.
_SMALL_BYTES, _ROW_BYTES_MIN = 4 * 2**20, 40
#: While the load is paused.
_WRITES_ON_IN_S = 60.0
_CALLS = 3
_SESSION_OF_OTHER = """
SELECT FROM onceload.session JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name = '{pipeline}' AND starts_with(session.name, 'other')"""


class Fault(StrEnum):
    WORKERS_KILLED = "workers killed"
    DAEMON_KILLED = "Python daemon killed"
    JVM_KILLED = "server killed"
    RESTARTED = "server stopped and started again"
    DRIVER_KILLED = "load killed"
    TAKEN_OVER = "load paused while the next call of it ends"
    JOINED = "another load with the same stage"
    NETWORK_INTERRUPTED = "network cut for a moment"
    NETWORK_CUT = "network cut"
    NETWORK_SILENT = "network silent"
    NETWORK_SLOW = "network slow"
    STAGE_FULL = "stage full"
    STAGE_GONE = "stage removed"
    STAGE_CHANGED = "bytes of the stage changed"
    STAGE_CUT = "bytes of the stage lost"
    #: On a Spark of two hosts.
    SPECULATED = "host stalled, its tasks run elsewhere"

    @property
    def is_of_network(self) -> bool:
        return self.name.startswith("NETWORK_")

    @property
    def is_of_stage(self) -> bool:
        return self.name.startswith("STAGE_")

    @property
    def engines(self) -> tuple[Engine, ...]:
        of_any = self.is_of_stage or self in (Fault.DRIVER_KILLED, Fault.TAKEN_OVER, Fault.JOINED)
        return (Engine.SPARK, Engine.LOCAL) if of_any else (Engine.SPARK,)

    def happens_to(self, way: Way) -> bool:
        match self:
            case Fault.NETWORK_SILENT:
                # It is noticed after minutes.
                return way is Way.STAGED
            case Fault.STAGE_FULL if os.geteuid():
                # Only root may make a small disk.
                return False
            case _ if self.is_of_stage:
                return way.publish is Publish.STAGED
            case _:
                return True


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run, to be had again from its seed."""

    fault: Fault
    way: Way
    engine: Engine
    seed: str

    @property
    def what(self) -> str:
        return f"{self.fault}, {self.way}, {'resident Spark' if self.engine is Engine.SPARK else self.engine}"


def trials(faults: Iterable[Fault], *, repeats: int, seed: int) -> list[Trial]:
    """Each fault with each of its ways and engines, a number of times."""
    return [
        Trial(fault=fault, way=way, engine=engine, seed=f"{seed}:{fault.name}:{way.name}:{engine}:{number}")
        for fault in faults
        for way in Way
        if fault.happens_to(way)
        for engine in fault.engines
        if engine is Engine.SPARK or way is not Way.TRANSFORMED_BY_SPARK
        for number in range(repeats)
    ]


def run_trial(stand: ResidentStand, trial: Trial) -> Outcome:
    """Strike the first call; the others are left alone."""
    started = time.monotonic()
    with stand.loads.new_plugged(trial.way) as plugged, _opened(stand, plugged, trial) as strike:
        calls, broken = strike.struck_call()
        stand.start()
        while len(calls) < _CALLS:
            with strike.load() as load:
                calls.append(load.end())
        outcome = plugged.judged(calls, what=trial.what, seed=trial.seed, started=started, broken=broken)
        return replace(outcome, broken=(*outcome.broken, *_unfinished(calls), *_unverified(plugged)))


def _unfinished(calls: Sequence[Ended]) -> Iterator[str]:
    if calls[1].exit_code:
        yield f"the call after the one that was struck should finish, but ended with {calls[1].exit_code}"


def _unverified(plugged: Plugged) -> Iterator[str]:
    """What the product itself finds wrong with its rows and its ledger."""
    found = Pipeline.read(plugged.pipeline_file, dsn=plugged.dsn).verify(deep=True, engine="local")
    if found.differing:
        yield f"verify: {found.differences[:3]}"


@contextmanager
def _opened(stand: ResidentStand, plugged: Plugged, trial: Trial) -> Iterator["_Strike"]:
    small = plugged.folder / "small"
    with _small_disk(small) if trial.fault is Fault.STAGE_FULL else nullcontext():
        yield _Strike(stand, plugged, trial)


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SMALL_BYTES}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@dataclass
class _Strike:
    """One load that is struck, and what proves that it was."""

    stand: ResidentStand
    plugged: Plugged
    trial: Trial
    #: Each says what is missing.
    _proofs: list[Callable[[Ended], str | None]] = field(default_factory=list)

    @contextmanager
    def load(self, *, batch: str = "run") -> Iterator[RunningLoad]:
        options = ["--engine", "local"] if self.trial.engine is Engine.LOCAL else ["--remote", self.stand.remote]
        with self.plugged.load(options, batch=batch, temporary=self._temporary) as load:
            yield load

    @property
    def _temporary(self) -> Path:
        if self.trial.fault.is_of_network:
            return _SEEN_BY_DRIVER_ALONE
        return self.plugged.folder / ("small" if self.trial.fault is Fault.STAGE_FULL else "")

    def struck_call(self) -> tuple[list[Ended], list[str]]:
        """How the call ended that was struck, and what is missing of the proof that it was."""
        with self.load() as load:
            try:
                self._wait_until_it_works(load)
                self._strike(load)
            except NotAsPlanned as error:
                return [load.end()], [f"not struck: {error}"]
            ended = load.end()
        return [ended], [f"the strike is not proven: {why}" for proof in self._proofs if (why := proof(ended))]

    def _wait_until_it_works(self, load: RunningLoad) -> None:
        """Until there is something to lose, and more to come."""
        network, seen = self.stand.network, Random(self.trial.seed).randint(1, 5)
        if self.trial.fault is Fault.STAGE_FULL:
            load.wait_until(lambda: bool(self._pieces()))
        elif self.trial.fault.is_of_network and self.trial.way.publish is Publish.STAGED:
            before = network.carried(Condition.OPEN)
            load.wait_until(lambda: network.carried(Condition.OPEN) - before > seen * _CARRIED_BYTES)
        else:
            load.wait_until(lambda: self.plugged.progress() >= seen)

    def _check_more_comes(self) -> None:
        """Another task has to end, which it cannot while this looks."""
        if self.trial.engine is Engine.SPARK:
            with pausing(self.stand.workers()):
                if not self.stand.is_working():
                    raise NotAsPlanned("no job of Spark runs any more")

    def _pieces(self) -> set[Path]:
        """The files of rows that workers have begun."""
        found = (path for path in self._temporary.glob("onceload-rows-*/*") if path.name != MARK)
        return {path for path in found if path.stat().st_size}

    def _strike(self, load: RunningLoad) -> None:
        match self.trial.fault:
            case Fault.TAKEN_OVER | Fault.JOINED:
                self._load_beside(load)
            case Fault.STAGE_GONE | Fault.STAGE_CHANGED | Fault.STAGE_CUT:
                self._change_stage(load)
            case _:
                self._check_more_comes()
                self._strike_at_once(load)

    def _strike_at_once(self, load: RunningLoad) -> None:
        fault, stand = self.trial.fault, self.stand
        match fault:
            case Fault.WORKERS_KILLED:
                self._kill_workers(stand.workers())
            case Fault.DAEMON_KILLED:
                self._kill_workers([*stand.daemons(), *stand.workers()])
            case Fault.JVM_KILLED:
                stand.jvm.kill()
                self._proofs.append(_failed)
            case Fault.RESTARTED:
                stand.stop()
                stand.start()
            case Fault.DRIVER_KILLED:
                load.kill_driver()
                self._proofs.append(lambda ended: None if ended.exit_code < 0 else "the load was not killed")
            case Fault.STAGE_FULL:
                # There is no room for all.
                assert stand.loads.lines * _ROW_BYTES_MIN > _SMALL_BYTES
            case Fault.SPECULATED:
                self._stall_a_host(load)
            case _:
                self._change_network()

    def _kill_workers(self, processes: Sequence[psutil.Process]) -> None:
        failed = self.stand.failed_tasks()
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._proofs.append(lambda _: None if self.stand.failed_tasks() > failed else "no task failed")

    def _change_network(self) -> None:
        network, is_staged = self.stand.network, self.trial.way.publish is Publish.STAGED
        match self.trial.fault:
            case Fault.NETWORK_INTERRUPTED:
                assert network.connections
                network.become(Condition.CUT)
                network.become(Condition.OPEN)
            case Fault.NETWORK_SLOW:
                before = network.carried(Condition.SLOW)
                network.become(Condition.SLOW)
                self._proofs.append(lambda _: None if network.carried(Condition.SLOW) > before else "nothing was slow")
            case fault:
                network.become(Condition.CUT if fault is Fault.NETWORK_CUT else Condition.SILENT)
                # The rest of its rows cannot come.
                self._proofs += [_failed] if is_staged else []

    def _load_beside(self, load: RunningLoad) -> None:
        """Another one begins while this one is paused; under its name, it also ends."""
        takes_over = self.trial.fault is Fault.TAKEN_OVER
        there = _SESSION_OF_OTHER.format(pipeline=self.plugged.place.pipeline)
        with ExitStack() as running:
            with load.pausing_driver():
                self._check_more_comes()
                other = running.enter_context(self.load(batch="run" if takes_over else "other"))
                other.look_until(lambda: not takes_over and bool(self.plugged.ask(there)))
            ended = other.end()
        self._proofs.append(lambda _: f"the other load ended with {ended}" if ended.exit_code else None)

    def _stall_a_host(self, load: RunningLoad) -> None:
        """Its workers are paused until copies of their tasks run elsewhere, and wake up behind them."""
        before = self.stand.copies()
        with ExitStack() as paused:
            load.wait_until(lambda: any(self._is_stalled(host, paused) for host in HOSTS))
            load.look_until(lambda: self.stand.copies() > before)
        self._proofs.append(lambda _: None if self.stand.copies() > before else "no copy of a task began")

    def _is_stalled(self, host: str, paused: ExitStack) -> bool:
        """Pause the workers of a host, if it runs a task."""
        with ExitStack() as pausing_host:
            pausing_host.enter_context(pausing(self.stand.workers_on(host)))
            if self.stand.runs_on(host):
                paused.push(pausing_host.pop_all())
                return True
        return False

    def _change_stage(self, load: RunningLoad) -> None:
        """The load is paused, so it has not copied yet what workers write meanwhile."""
        with load.pausing_driver():
            before = self._pieces()
            self._check_more_comes()
            written = until(
                lambda: self._pieces() - before, "workers write on", timeout_s=_WRITES_ON_IN_S, error=NotAsPlanned
            )
            for path in written:
                _DAMAGES[self.trial.fault](path)


def _failed(ended: Ended) -> str | None:
    return None if ended.exit_code else "the call finished"


def _remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)


def _change_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        at = path.stat().st_size // 2
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


_DAMAGES: dict[Fault, Callable[[Path], None]] = {
    Fault.STAGE_GONE: _remove_folder,
    Fault.STAGE_CHANGED: _change_a_byte,
    Fault.STAGE_CUT: _cut,
}
