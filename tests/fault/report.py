"""Pull plugs for hours, and write down what was lost or repeated: `make faults`.

The core is commits alone, by worker processes of these tests; loads are those of `onceload load`, with Spark; crowds
are many sessions at once; failover is a primary that dies; airflow is the whole running stack. `--only` pulls the plugs
of one of them, and the page keeps what it says of the others.
`--seed` repeats a run with the same work and the same faults; `--divided-by 10` is a quick look that writes nothing.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from sqlalchemy import text

from onceload_core.delivery import Mode
from tests.fault import control_plane
from tests.fault.lane import Lane, open_lanes
from tests.fault.sizes import (
    CROWDS_IN_FULL,
    DRILLS_IN_FULL,
    IN_FULL,
    LANES,
    LOADS_IN_FULL,
    SEQUENCES_IN_FULL,
    STRIKES_IN_FULL,
    CrowdsSize,
    LoadsSize,
    Size,
    chosen_seed,
)
from tests.fault.sweep import Fault, Outcome, in_lanes, run_trial, trials
from tests.fault.zombies import hauntings, run_haunting
from tests.loads import crowd, failover, plugs, resident_plugs
from tests.loads.resident_stand import open_resident_stand, open_speculating_stand
from tests.loads.storm import campaign
from tests.servers import execute

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "faults.md"
_TITLE, _LOADS_TITLE = "# Fault tests\n\n", "\n## Loads\n\n"
_CROWDS_TITLE = "\n## Crowds\n\n"
_FAILOVER_TITLE = "\n## Failover\n\n"
_AIRFLOW_TITLE = "\n## Airflow\n\n"
_SEQUENCES_TITLE = "\n## Sequences\n\n"
_WAYS_TITLE = "\n## Ways around the commit\n\n"
_COLUMNS = ("fault", "runs", "lost", "repeated", "broken", "refused", "unknown", "seconds", "seed")
_LOADS_COLUMNS = ("fault", "runs", "lost", "repeated", "broken", "calls", "seconds", "seed")
_CROWDS_COLUMNS = (
    *("crowd", "messages", "lost", "repeated", "broken", "killed", "stopped", "cut", "crashed", "unknown"),
    *("seconds", "seed"),
)
_FAILOVER_COLUMNS = ("successor, load", "runs", "lost", "repeated", "broken", "forgotten", "calls", "seconds", "seed")
_AIRFLOW_COLUMNS = ("fault", "strikes", "lost", "repeated", "broken", "seed")
_LARGE_COLUMNS = ("publish", "lost", "repeated", "broken", "calls", "restarts", "copies", "retries", "seconds", "seed")

_SEQUENCES_COLUMNS = ("theme", "sequences", "lost", "repeated", "broken", "seconds", "seed")

_AnyOutcome = campaign.Outcome | Outcome | plugs.Outcome | crowd.Outcome | failover.Outcome | control_plane.Outcome


@dataclass(frozen=True, kw_only=True)
class Half:
    """What the page says of the core or of the loads, and whether all of it is good."""

    is_good: bool
    words: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a table: all runs of one fault."""

    cells: tuple[str, ...]
    is_good: bool


def main() -> int:
    arguments = _arguments()
    seed, is_good = arguments.seed or chosen_seed(), True
    page = _PAGE.read_text(encoding="utf-8") if _PAGE.exists() else ""
    for name in arguments.only:
        half = _HALVES[name](arguments.divided_by, seed)
        page = _page(page, name, half.words)
        is_good = is_good and half.is_good
        print(half.words)
        if arguments.divided_by == 1:
            _PAGE.write_text(page, encoding="utf-8")
    return 0 if is_good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.report", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat the runs of this seed")
    parser.add_argument("--divided-by", type=int, default=1, metavar="K", help="divide the number of runs by K")
    parser.add_argument("--only", nargs=1, choices=list(_HALVES), default=list(_HALVES), help="left out, all")
    return parser.parse_args()


def _page(found: str, name: str, words: str) -> str:
    """The page with one part replaced; each has its day and its seed, and the last is written by hand."""
    titles = {
        "core": _TITLE,
        "loads": _LOADS_TITLE,
        "crowds": _CROWDS_TITLE,
        "failover": _FAILOVER_TITLE,
        "airflow": _AIRFLOW_TITLE,
        "sequences": _SEQUENCES_TITLE,
        "ways around": _WAYS_TITLE,
    }
    parts, rest = {}, found
    for part, title in reversed(titles.items()):
        rest, _, parts[part] = rest.partition(title)
    parts[name] = words
    return "".join(title + parts[part] for part, title in titles.items() if parts[part] or part == "core")


def _core(divisor: int, seed: int) -> Half:
    size = IN_FULL.divided_by(divisor)
    print(f"seed {seed}: {size.sweep_runs} runs of the sweep, {size.zombies} zombies", flush=True)
    with open_lanes(LANES) as lanes:
        lines = [*_swept(lanes, size, seed), *_haunted(lanes, size, seed)]
        polls = sum(lane.observer.polls for lane in lanes)
        with lanes[0].engine.begin() as connection:
            postgres = str(connection.execute(text("SHOW server_version")).scalar_one())
    return Half(
        is_good=polls > 0 and all(line.is_good for line in lines),
        words=_core_words(lines, seed=seed, polls=polls, postgres=postgres),
    )


def _swept(lanes: Sequence[Lane], size: Size, seed: int) -> Iterable[Line]:
    for fault in Fault:
        asked = trials([fault], repeats=size.repeats, seed=seed)
        yield _core_line(fault, seed, lambda asked=asked: in_lanes(lanes, asked, run_trial))  # type: ignore[misc]


def _haunted(lanes: Sequence[Lane], size: Size, seed: int) -> Iterable[Line]:
    asked = hauntings(size.zombies, seed=seed)
    for successor in dict.fromkeys(each.successor for each in asked):
        some = [each for each in asked if each.successor is successor]
        yield _core_line(successor, seed, lambda some=some: in_lanes(lanes, some, run_haunting))  # type: ignore[misc]


def _core_line(fault: str, seed: int, run: Callable[[], list[Outcome]]) -> Line:
    started = time.monotonic()
    outcomes = run()
    refused, unknown = (sum(each) for each in zip(*((one.refused, one.unknown) for one in outcomes), strict=True))
    counted = (len(outcomes), *_counted(outcomes), refused, unknown, time.monotonic() - started)
    return _line(fault, counted, seed=seed, outcomes=outcomes)


def _loads(divisor: int, seed: int) -> Half:
    size = LOADS_IN_FULL.divided_by(divisor)
    asked = plugs.trials(plugs.Fault, repeats=size.repeats, seed=seed)
    over_spark = resident_plugs.trials(resident_plugs.Fault, repeats=size.repeats_resident, seed=seed)
    number = len(asked) + len(over_spark)
    print(f"seed {seed}: {number} loads, and two of {_in_groups(size.rows_large)} rows", flush=True)
    with plugs.open_stand(lines=size.rows) as stand:
        postgres = str(execute(stand.server.dsn(), "SHOW server_version")[0][0])
        lines = [
            _loads_line(stand, what, [each for each in asked if each.what == what], seed=seed)
            for what in dict.fromkeys(each.what for each in asked)
        ]
    with plugs.open_stand(lines=size.rows_large) as stand:
        large = [_large_line(stand, way, seed=seed) for way in (plugs.Way.STAGED, plugs.Way.DIRECT)]
    resident = list(_over_spark(size, over_spark, seed=seed))
    return Half(
        is_good=all(line.is_good for line in (*lines, *large, *resident)),
        words=_loads_words(size, lines, large, resident, seed=seed, postgres=postgres),
    )


def _loads_line(stand: plugs.Stand, what: str, asked: Sequence[plugs.Trial], *, seed: int) -> Line:
    return _loads_line_of([plugs.run_trial(stand, trial) for trial in asked], what, seed=seed)


def _loads_line_of(outcomes: Sequence[plugs.Outcome], what: str, *, seed: int) -> Line:
    calls, seconds = sum(each.calls for each in outcomes), sum(each.seconds for each in outcomes)
    return _line(what, (len(outcomes), *_counted(outcomes), calls, seconds), seed=seed, outcomes=outcomes)


def _over_spark(size: LoadsSize, asked: Sequence[resident_plugs.Trial], *, seed: int) -> Iterator[Line]:
    """Those that stall a host have a Spark of two hosts."""
    stalling = [each for each in asked if each.fault is resident_plugs.Fault.SPECULATED]
    others = [each for each in asked if each not in stalling]
    for trials_there, opened in ((others, open_resident_stand), (stalling, open_speculating_stand)):
        with opened(lines=size.rows) as stand:
            for what in dict.fromkeys(each.what for each in trials_there):
                outcomes = [resident_plugs.run_trial(stand, each) for each in trials_there if each.what == what]
                yield _loads_line_of(outcomes, what, seed=seed)


def _sequences(divisor: int, seed: int) -> Half:
    count = SEQUENCES_IN_FULL // divisor
    print(f"seed {seed}: {count} sequences", flush=True)
    lines = [_sequences_line(found, seed=seed) for found in campaign.run(count, seed=seed)]
    return Half(is_good=all(line.is_good for line in lines), words=_sequences_words(lines, seed=seed))


def _sequences_line(found: campaign.Outcome, *, seed: int) -> Line:
    numbers = (found.sequences, found.lost, found.repeated, len(found.broken), found.seconds)
    return _line(found.theme, numbers, seed=seed, outcomes=[found])


def _large_line(stand: plugs.Stand, way: plugs.Way, *, seed: int) -> Line:
    found = plugs.endure(stand, way, seed=seed)
    numbers = (*_counted([found]), found.calls, found.crashes, found.copies, found.retries, found.seconds)
    return _line(way, numbers, seed=seed, outcomes=[found])


def _crowds(divisor: int, seed: int) -> Half:
    size, rng = CROWDS_IN_FULL.divided_by(divisor), Random(seed)
    print(
        f"seed {seed}: {size.rounds} rounds of {_in_groups(size.large.messages)} messages, {size.runs} more", flush=True
    )
    lines = [
        _crowd_line(way, mode, size.large, seed=rng.randrange(2**31))
        for _ in range(size.rounds)
        for way, mode in _CROWDS
    ]
    further = [
        _crowd_line(rng.choice(list(crowd.Way)), rng.choice(list(Mode)), size.small, seed=rng.randrange(2**31))
        for _ in range(size.runs)
    ]
    return Half(
        is_good=all(line.is_good for line in (*lines, *further)),
        words=_crowds_words(size, lines, further, seed=seed),
    )


#: Every mode with consumers, and the other two ways.
_CROWDS = (
    *((crowd.Way.CONSUME, mode) for mode in Mode),
    (crowd.Way.SPARK, Mode.KEY_SHARED),
    (crowd.Way.BOTH, Mode.SHARED),
)


def _crowd_line(way: crowd.Way, mode: Mode, size: crowd.Size, *, seed: int) -> Line:
    found = crowd.run_crowd(way, mode, size, seed=seed)
    strikes = [found.strikes[strike] for strike in crowd.Strike]
    numbers = (found.messages, *_counted([found]), *strikes, found.operations["unknown"], found.seconds)
    return _line(found.what, numbers, seed=seed, outcomes=[found])


def _crowds_words(size: CrowdsSize, lines: Sequence[Line], further: Sequence[Line], *, seed: int) -> str:
    large = size.large
    return f"""{_written_by("crowds", seed=seed, postgres="18")}

Each run is {_in_groups(large.messages)} messages in 16 files, in chunks of {_in_groups(large.chunk_bytes)} bytes, \
loaded by {large.sessions} sessions at once into a table without any index: processes of `onceload consume`, the \
partitions of an `onceload load`, or half of each.
Meanwhile, processes are *killed* (SIGKILL), *stopped* until their lease of two seconds expires and then woken up, or \
*cut* off from the database, or the server itself is *crashed*. A process that ends early is started again.
*Lost* and *repeated* count messages. *Broken* counts runs that violated an invariant: the answers that a process got \
match the ledger, the ledger has no commit that no process asked for, an earlier epoch of a session gets no success \
after a later one was opened, and commits are in the order that the mode promises.
*Unknown* counts commits whose process was killed, or cut off, before it got an answer.

{_table(_CROWDS_COLUMNS, lines)}

{size.runs} more runs, each of a random way and mode, of {_in_groups(size.small.messages)} messages with at most \
{size.small.open_max} deliveries open at once (instead of {_in_groups(large.open_max)}), so that they are planned in \
many rounds:

{_table(_CROWDS_COLUMNS, further)}
"""


def _failover(divisor: int, seed: int) -> Half:
    asked = failover.drills(max(1, DRILLS_IN_FULL // divisor), seed=seed)
    print(f"seed {seed}: {len(asked)} drills", flush=True)
    found = []
    for drill in asked:
        found.append(failover.run_drill(drill))
        print(found[-1], flush=True)
    lines = [
        _failover_line(what, [each for each in found if each.what == what], seed=seed)
        for what in dict.fromkeys(each.what for each in found)
    ]
    return Half(is_good=all(line.is_good for line in lines), words=_failover_words(lines, seed=seed))


def _failover_line(what: str, found: Sequence[failover.Outcome], *, seed: int) -> Line:
    forgotten, calls = sum(each.forgotten for each in found), sum(each.calls for each in found)
    numbers = (len(found), *_counted(found), forgotten, calls, sum(each.seconds for each in found))
    return _line(what, numbers, seed=seed, outcomes=found)


def _failover_words(lines: Sequence[Line], *, seed: int) -> str:
    return f"""{_written_by("failover", seed=seed, postgres="18")}

Each drill has its own primary. `onceload load`, two processes of `onceload consume` or runs of a DAG load files that \
are written meanwhile, one call after the other.
While they run, a base backup is made: for a standby by streaming replication, or to be restored with archived WAL.
At a random moment all processes of the primary are killed.
Then the standby is promoted, or the backup is restored to an earlier point of the WAL. The address that the loads \
use is moved to the new primary, and they are called until a call finds nothing new.
Under Airflow, a run whose `publish` failed because its staged rows were on the old primary is cleared from `load` on, \
as the [how-to](how-to/fail-over.md) says.
An asynchronous standby is cut off before the last commits, and a restore ends before them: *forgotten* counts the \
commits that the old primary had confirmed and the new one never got.
*Lost* counts records that are missing at the end, *repeated* those that are in the target or in quarantine more than \
once.
*Broken* counts drills that violated any invariant: no gap in the ledger, receipts for exactly the records that are \
present, `onceload verify --deep` without differences, calls that end either done or to be retried, and no commit \
forgotten by a synchronous standby, but at least one by the others.

{_table(_FAILOVER_COLUMNS, lines)}
"""


def _airflow(divisor: int, seed: int) -> Half:
    asked = control_plane.trials(max(len(control_plane.Fault), STRIKES_IN_FULL // divisor), seed=seed)
    print(f"seed {seed}: {len(asked)} strikes at Airflow", flush=True)
    started = time.monotonic()
    with control_plane.open_stand() as stand:
        found = control_plane.strike_all(stand, asked)
    lines = [
        _airflow_line(fault, [each for each in found if fault in (trial.fault for trial in each.struck)], seed=seed)
        for fault in control_plane.Fault
    ]
    numbers = (
        sum(bool(each.seconds) for each in found),
        sum(each.retries for each in found),
        sum(each.failed for each in found),
    )
    seconds = time.monotonic() - started
    return Half(
        is_good=all(each.is_good for each in found) and sum(len(each.struck) for each in found) == len(asked),
        words=_airflow_words(lines, _counted(found), numbers, seed=seed, seconds=seconds),
    )


def _airflow_line(fault: control_plane.Fault, found: Sequence[control_plane.Outcome], *, seed: int) -> Line:
    strikes = sum(trial.fault is fault for each in found for trial in each.struck)
    return _line(fault, (strikes, *_counted(found)), seed=seed, outcomes=found)


def _airflow_words(
    lines: Sequence[Line],
    counted: tuple[int, int, int],
    numbers: tuple[int, int, int],
    *,
    seed: int,
    seconds: float,
) -> str:
    lost, repeated, broken = counted
    rounds, retries, failed = numbers
    return f"""{_written_by("airflow", seed=seed, postgres="18")}

The stack of `make run` runs once, with a pipeline that is staged and audited, one that is direct, and one that two \
runs stage at once.
Before each run its files grow by known rows. Then up to three faults hit it, each as soon as one of these is \
visible: its load was launched, its session is open, a delivery is held, its batch is staged, or its publish (direct: \
report) runs.
The scheduler, the server and its backends are shared: a fault there affects all runs.
Each run has to finish through Airflow's own retries, or after it failed and was cleared. After each run, all rows \
that were written are compared with those in the target.
*Lost* and *repeated* count rows of all runs that the fault hit. *Broken* counts runs that did not finish.
At the end, `onceload verify --deep` compares everything, and no delivery may be held, no process may run and nothing \
may be left over.

{_table(_AIRFLOW_COLUMNS, lines)}

In total, including the last comparisons: {lost} lost, {repeated} repeated and {broken} broken, in {rounds} rounds of \
runs with {retries} retries and {failed} runs that failed and were cleared, in {_in_groups(seconds)} seconds.
"""


def _counted(outcomes: Sequence[_AnyOutcome]) -> tuple[int, int, int]:
    """How many records were lost, how many repeated, and in how many runs any other law was broken."""
    return (
        sum(outcome.lost for outcome in outcomes),
        sum(outcome.repeated for outcome in outcomes),
        sum(bool(outcome.broken) for outcome in outcomes),
    )


def _line(what: str, numbers: Iterable[float], *, seed: int, outcomes: Sequence[_AnyOutcome]) -> Line:
    cells = (what, *map(_in_groups, numbers), str(seed))
    print(*cells, sep=" | ", flush=True)
    for outcome in outcomes:
        if not outcome.is_good:
            print(f"  {outcome}", flush=True)
    return Line(cells=cells, is_good=all(outcome.is_good for outcome in outcomes))


def _core_words(lines: Sequence[Line], *, seed: int, polls: int, postgres: str) -> str:
    return f"""{_written_by("core", seed=seed, postgres=postgres)}

Each run is a real worker process that loads generated chunks of several producers into a table without any index.
A fault hits it at one step of one commit. It continues, or another worker takes its place.
Each step of a commit is hit equally often.
*Lost* counts records that are missing at the end, *repeated* those that are in the target or in quarantine more than \
once.
*Broken* counts runs that violated any other invariant.
These invariants are: no gap in the ledger, no receipts that overlap, and a state that equals snapshot plus replay.
A zombie must change nothing, and a reader must never see rows without proof, or proof without rows.
*Refused* and *unknown* count the answers that the affected workers got. An unknown outcome is resolved by asking the \
ledger.

{_table(_COLUMNS, lines)}

A reader checked {_in_groups(polls)} times meanwhile, each time in one view of the database.
"""


def _loads_words(
    size: LoadsSize,
    lines: Sequence[Line],
    large: Sequence[Line],
    resident: Sequence[Line],
    *,
    seed: int,
    postgres: str,
) -> str:
    return f"""{_written_by("loads", seed=seed, postgres=postgres)}

Each run is a real `onceload load` of {_in_groups(size.rows)} records: a driver, and its sessions in Spark's Python \
workers or in local processes.
Its files are one that is split into chunks, one that cannot be split, and small ones that are bundled.
Some loads read Parquet files of many row groups.
Some find what is new by the producers that the records name, or by their business ids.
Some have a transform in Postgres or in Spark: a query whose rows are the records.
A fault hits it as soon as some of its pieces are visible. It is then called again under its name until a call finds \
nothing new.
*Lost* counts records that are missing at the end, *repeated* those that are in the target or in quarantine more than \
once.
*Broken* counts runs that violated any invariant, including the two above. An independent count compares each value.
The other invariants are: no gap in the ledger, receipts for exactly the records that are present, a state that \
equals a replay, and calls that end either done or to be retried.
*Calls* counts all calls, including those that find nothing new.

{_table(_LOADS_COLUMNS, lines)}

Then {_in_groups(size.rows_large)} records were loaded on a server that was crashed and restarted as long as the load \
ran, each time as soon as two more pieces were visible, or if none was visible for seconds.
A crash loses all staged rows, so after each crash the load was allowed to stage half as much more before the next \
one.
With each crash a Python worker was killed, if one was running, and Spark retried its task.
Spark ran on two hosts, and started a second copy of each task that was slower than the others while it had free \
slots: *copies* counts these copies, and *retries* the attempts after a failed one.

{_table(_LARGE_COLUMNS, large)}

The last loads use a resident Spark through a network of their own, with files in smaller chunks.
A fault hits them while a job of Spark runs. Each fault has to show that it hit: a task failed, a load was killed, a \
copy of a task began, or a file was changed that the paused load had not copied yet.
Where the network is cut, silent or slow, workers do not see the folder of the load, so rows cross the network.
The next call has to finish whatever came of the first, and `onceload verify --deep` has to find no difference.
Stages are also filled, removed and changed under local processes.

{_table(_LOADS_COLUMNS, resident)}
"""


def _sequences_words(lines: Sequence[Line], *, seed: int) -> str:
    return f"""{_written_by("sequences", seed=seed, postgres="18 (embedded)", fsync="off")}

Each sequence is a randomly drawn pipeline with randomly drawn events: edits of the pipeline file, files \
that grow, are replaced, copied or rotated, loads that are hit by a fault, retries, replacements and rewinds.
Each theme makes one kind of event more likely.
Workers are calls in one process, or processes forked from it. Only loads over a resident Spark have real tasks: one \
that is struck kills its process, and Spark tries it again. They take longer, so there are fewer of these sequences.
An independent counter identifies records by their own values.
After each step, it reports records that are present too often.
After each load, it also reports records that are missing without being named by the load.
*Lost*, *repeated* and *broken* count sequences.

{_table(_SEQUENCES_COLUMNS, lines)}
"""


def _written_by(half: str, *, seed: int, postgres: str, fsync: str = "on") -> str:
    command = f"python -m tests.fault.report --only {half} --seed {seed}"
    return f"""Written by `make faults` (`{command}` repeats it) on {datetime.now(UTC):%Y-%m-%d}, at commit {_commit()}.
The machine had {os.cpu_count()} cores, Python {platform.python_version()} and Postgres {postgres} with its \
fsync {fsync}."""


def _commit() -> str:
    """The code that was run; this page itself may have changed since."""
    commit = _git("rev-parse", "--short", "HEAD")
    return (
        f"{commit} with changes"
        if _git("status", "--porcelain", "--", ".", f":!{_PAGE.relative_to(_ROOT)}")
        else commit
    )


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _table(columns: Sequence[str], lines: Iterable[Line]) -> str:
    rows = [columns, ["---" for _ in columns], *(line.cells for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _in_groups(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


_HALVES: Mapping[str, Callable[[int, int], Half]] = {
    "core": _core,
    "loads": _loads,
    "crowds": _crowds,
    "failover": _failover,
    "airflow": _airflow,
    "sequences": _sequences,
}


if __name__ == "__main__":
    sys.exit(main())
