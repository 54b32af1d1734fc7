"""Loads beside others that load the same rows, and beside themselves in other circumstances.

The ways of a part take turns within a repetition, each into a database of its own, on one Spark session; a figure is
the ratio of two ways within a repetition, so that they share whatever else the machine does.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

from sqlalchemy import Engine, text

from bench import limit, peers, sessions
from bench.events import COLUMNS, Events, check_rows
from bench.machine import Machine, describe
from bench.measured import Figure, Measured, PeakMemory, Taken, bars, check_equal, table
from dedup_core.delivery import Mode
from dedup_core.pipeline import Guarantee, Pipeline
from dedup_core.postgres import LedgerSettings, connect
from onceload import schema
from spark_jobs.load.load import load
from spark_jobs.load.report import Report
from spark_jobs.load.settings import LoadSettings, new_batch
from spark_jobs.pipeline.columns import parse_column
from spark_jobs.pipeline.declared import Declared, Format, Publish, RecordProducer, Source, Target
from spark_jobs.work.spark.tasks import SparkTasks

COPY = "two COPY streams of CSV"
DIRECT, STAGED, TRANSFORM = "direct", "staged", "staged, with a transform"
AT_LEAST_ONCE = "direct, at_least_once"
LIMIT = "two processes that parse and COPY, and nothing else"
JDBC, DLT = "Spark's JDBC writer", "dlt"
PRODUCERS = "staged, record producers"
SMALL, ONE, AGAIN, COMMAND = "small files", "one file", "nothing new", "nothing new, the whole command"
_TRANSFORM = (
    "SELECT device, happened_at, sequence, upper(kind) AS kind, amount, trim(note) AS note, _producer_id, _sequence"
    " FROM records WHERE amount >= 0"
)
_SMALL_ROWS = 100
_TIMES_OF_PAIR = 3
_WORKER_BYTES_MAX = 10**9


@dataclass(frozen=True, kw_only=True)
class Sizes:
    rows: int = 3_000_000
    rows_large: int = 10_000_000
    rows_dlt: int = 300_000
    files: int = 10_000
    memory_bytes: int = 5 * 10**9
    deliveries: int = 5_000
    repetitions: int = 3


_QUICK = Sizes(
    rows=100_000, rows_large=200_000, rows_dlt=20_000, files=200, memory_bytes=30_000_000, deliveries=300, repetitions=1
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    wanted = parser.add_argument_group("loads")
    wanted.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="some parts of the loads")
    wanted.add_argument("--rows", type=int, help="of the comparison with others (3 000 000)")
    wanted.add_argument("--rows-large", type=int, help="of the large file, and of record producers (10 000 000)")
    wanted.add_argument("--rows-dlt", type=int, help="of the file that dlt loads (300 000)")
    wanted.add_argument("--files", type=int, help=f"small files, of {_SMALL_ROWS} rows each (10 000)")
    wanted.add_argument("--memory-bytes", type=int, help="of the file that memory is measured with (5 000 000 000)")
    wanted.add_argument("--deliveries", type=int, help="of tiny chunks, to sessions (5 000)")
    wanted.add_argument("--repetitions", type=int, help="of each way (3)")
    wanted.add_argument("--jdbc", type=Path, default=peers.JDBC_DRIVER, help="the driver's jar (%(default)s)")


def sizes_of(arguments: argparse.Namespace) -> Sizes:
    given = {name: getattr(arguments, name) for name in Sizes.__dataclass_fields__}
    return replace(
        _QUICK if arguments.quick else Sizes(), **{name: each for name, each in given.items() if each is not None}
    )


def page(found: str, title: str, text: str) -> str:
    """The text of `docs/benchmarks-loads.md` with one section replaced; each section names its machine and data."""
    _, *sections = f"\n{found}".split("\n## ")
    kept = dict(section.split("\n\n", 1) for section in sections)
    kept[title] = text
    in_order = [f"\n## {name}\n\n{kept[name].strip()}\n" for name in TITLES.values() if name in kept]
    return _INTRODUCTION + "".join(in_order)


_INTRODUCTION = """# Benchmarks of loads

Command: `python -m bench loads`; `--only` and the name of a part rewrite one section.
Rows and the sum of their amounts were checked before each number was taken down.
A ratio compares two ways within a repetition, in which all ways take turns; its median is what is judged.
They are measurements of one machine and no tests: compare them with your own run only.
"""


def measure(home: Path, dsn: str, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """One part after the other, on one Spark session: its title and its text."""
    peers.open_port(home)
    engine = connect(LedgerSettings(dsn=dsn))
    machine = describe(engine)
    engine.dispose()
    has_jdbc = arguments.jdbc.exists()
    options = {"spark.jars": str(arguments.jdbc)} if has_jdbc else {}
    starting = time.monotonic()
    with SparkTasks.started("bench", None, options) as tasks:
        started_s = time.monotonic() - starting
        stand = _Stand(home=home, dsn=dsn, tasks=tasks, sizes=sizes_of(arguments), has_jdbc=has_jdbc)
        for name in arguments.only:
            about = _about(machine, sizes=stand.sizes, session_start_s=started_s)
            yield TITLES[name], f"{about}\n{PARTS[name](stand)}"


def _about(machine: Machine, *, sizes: Sizes, session_start_s: float) -> str:
    return f"""Command: `{" ".join(["python -m bench", *sys.argv[1:]])}`, run on {datetime.now(UTC):%Y-%m-%d}, \
at a load of {os.getloadavg()[0]:.1f} before this part.
{machine.processors}, {machine.memory} of memory, {machine.system}; Python {machine.python}, \
Postgres {machine.postgres} (embedded, same machine); {machine.settings}.
A number is the median of {sizes.repetitions} repetitions, with the lowest and the highest in brackets; \
the first of them is cold.
Spark's session took {session_start_s:.1f} s to start, once and before all of them; it is in no other number.
"""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How to load so many rows into the database of an address; answers with the seconds it took."""

    rows: int
    amount: Decimal
    load: Callable[[str], float]
    #: Whether Spark's Python workers do it; for other loaders, the memory of these workers means nothing.
    is_ours: bool = True


@dataclass(frozen=True, kw_only=True)
class _Stand:
    """What all parts share."""

    home: Path
    dsn: str
    tasks: SparkTasks
    sizes: Sizes
    has_jdbc: bool

    def alternate(self, ways: Mapping[str, Way], *, times: int = 1) -> dict[str, Taken]:
        """Each way once in every repetition, forwards and backwards in turns, so that none is always behind another."""
        taken = {name: Taken(rows=way.rows) for name, way in ways.items()}
        for number in range(times * self.sizes.repetitions):
            for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
                seconds, peak = self.once(way)
                taken[name].seconds.append(seconds)
                taken[name].workers_bytes += peak.of("worker") if way.is_ours else ()
                print(f"{number + 1}, {name}: {way.rows / seconds:,.0f} rows/s", file=sys.stderr, flush=True)
        return taken

    def once(self, way: Way) -> tuple[float, PeakMemory]:
        with self.database() as (dsn, engine):
            with PeakMemory().watching() as peak:
                seconds = way.load(dsn)
            check_rows(engine, "target", rows=way.rows, amount=way.amount)
        return seconds, peak

    @contextmanager
    def database(self) -> Iterator[tuple[str, Engine]]:
        """One of its own for each load, so that none pays for what the last one left."""
        name = f"bench_{uuid.uuid4().hex}"
        server = connect(LedgerSettings(dsn=self.dsn)).execution_options(isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        dsn = self.dsn.replace("/postgres?", f"/{name}?")
        engine = connect(LedgerSettings(dsn=dsn))
        schema.upgrade(engine)
        with server.connect() as connection:
            connection.execute(text("CHECKPOINT"))
        try:
            yield dsn, engine
        finally:
            engine.dispose()
            with server.connect() as connection:
                # The workers of Spark keep their connections for the next load.
                connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
            server.dispose()

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """For the files of one part."""
        folder = self.home / uuid.uuid4().hex
        folder.mkdir()
        yield folder
        subprocess.run(["rm", "-r", folder], check=True)

    def ours(self, declared: Declared) -> Callable[[str], float]:
        return lambda dsn: self.load(dsn, declared).seconds

    def load(self, dsn: str, declared: Declared) -> Report:
        settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
        return load(declared, settings, batch=new_batch(), tasks=self.tasks)


def _declared(path: Path, *, publish: Publish) -> Declared:
    return Declared(
        pipeline=Pipeline(name="events"),
        source=Source(path=str(path), format=Format.JSONL),
        columns=tuple(parse_column(*each) for each in COLUMNS.items()),
        target=Target(schema="public", table="target"),
        publish=publish,
    )


# The parts.


def _beside_others(stand: _Stand) -> str:
    sizes = stand.sizes
    events = Events(rows=sizes.rows, devices=max(1, sizes.rows // 10))
    missing = [] if stand.has_jdbc else ["Spark's JDBC writer (install Debian's `libpostgresql-jdbc-java`)"]
    with stand.folder() as folder:
        ways, data = _main_ways(stand, events, folder)
        direct = _declared(folder / "events.jsonl", publish=Publish.DIRECT)
        transform = replace(direct, publish=Publish.STAGED, transform=_TRANSFORM)
        careless = replace(direct.pipeline, guarantee=Guarantee.AT_LEAST_ONCE)
        at_least_once = replace(ways[DIRECT], load=stand.ours(replace(direct, pipeline=careless)))
        alone = partial(limit.parse_and_copy, file=folder / "events.jsonl")
        ways[LIMIT] = replace(ways[DIRECT], load=alone, is_ours=False)
        ways[TRANSFORM] = replace(ways[DIRECT], load=stand.ours(transform))
        if stand.has_jdbc:
            ways[JDBC] = replace(
                ways[DIRECT], load=partial(peers.spark_jdbc, file=folder / "events.jsonl"), is_ours=False
            )
        dlt = peers.Dlt.installed(folder / "dlt")
        if isinstance(dlt, peers.Dlt):
            ways[DLT] = _dlt_way(dlt, folder, rows=sizes.rows_dlt)
            data += f" dlt {dlt.version} loads a file of {sizes.rows_dlt:,} of them."
        else:
            missing.append(dlt)
        taken = stand.alternate(ways)
        # The guarantee costs less than the machine's mood changes, so the two stand side by side, and more often.
        pair = stand.alternate({AT_LEAST_ONCE: at_least_once, DIRECT: ways[DIRECT]}, times=_TIMES_OF_PAIR)
    figures = [*_main_figures(taken), *_other_figures(taken), _cost_of_guarantee(pair)]
    data += f"\nThe cost of the guarantee comes from {_TIMES_OF_PAIR} times as many repetitions of just these two ways."
    data += (
        f"\nThe limit of the libraries: {LIMIT}, reach {taken[LIMIT].per(taken[COPY])} of COPY,"
        f" and direct reaches {taken[DIRECT].per(taken[LIMIT])} of that."
    )
    return _text(data, figures, taken | {AT_LEAST_ONCE: pair[AT_LEAST_ONCE]}, missing=missing)


def _cost_of_guarantee(pair: Mapping[str, Taken]) -> Figure:
    cost = (100 * (1 / ratio - 1) for ratio in pair[DIRECT].per(pair[AT_LEAST_ONCE]).values)
    return Figure(
        name="cost of exactly_once, against at_least_once",
        must=5,
        aim=2,
        measured=Measured(tuple(cost)),
        unit=" %",
        is_less_better=True,
    )


def _other_figures(taken: Mapping[str, Taken]) -> Iterator[Figure]:
    yield Figure(name="with a transform ÷ COPY", must=0.4, aim=0.6, measured=taken[TRANSFORM].per(taken[COPY]))
    for name, must, aim in ((JDBC, 3, 5), (DLT, 30, 60)):
        if name in taken:
            yield Figure(name=f"direct ÷ {name}", must=must, aim=aim, measured=taken[DIRECT].per(taken[name]))


def _large(stand: _Stand) -> str:
    rows = stand.sizes.rows_large
    with stand.folder() as folder:
        ways, data = _main_ways(stand, Events(rows=rows, devices=max(1, rows // 10)), folder)
        taken = stand.alternate(ways)
    return _text(data, _main_figures(taken), taken)


def _main_ways(stand: _Stand, events: Events, folder: Path) -> tuple[dict[str, Way], str]:
    json_lines, halves = folder / "events.jsonl", [folder / "first.csv", folder / "second.csv"]
    amount = events.write_jsonl(json_lines)
    check_equal("sum of amounts as CSV", found=events.write_csv(halves), expected=amount)
    direct, staged = (_declared(json_lines, publish=publish) for publish in (Publish.DIRECT, Publish.STAGED))
    loads: dict[str, Callable[[str], float]] = {
        COPY: partial(peers.copy_streams, files=halves),
        DIRECT: stand.ours(direct),
        STAGED: stand.ours(staged),
    }
    json_bytes, csv_bytes = json_lines.stat().st_size, sum(half.stat().st_size for half in halves)
    data = (
        f"Data: {events.rows:,} events of six columns ({', '.join(COLUMNS.values())}),"
        f" {json_bytes / 1e6:,.0f} MB of JSON lines; the same rows as CSV are {csv_bytes / 1e6:,.0f} MB.\n"
        f"The {COPY}: a connection and a file for each, into a plain logged table without lineage."
    )
    ways = {name: Way(rows=events.rows, amount=amount, load=each, is_ours=name != COPY) for name, each in loads.items()}
    return ways, data


def _main_figures(taken: Mapping[str, Taken]) -> list[Figure]:
    return [
        Figure(name="JSON lines, direct ÷ COPY", must=0.85, aim=1, measured=taken[DIRECT].per(taken[COPY])),
        Figure(name="JSON lines, staged ÷ COPY", must=0.5, aim=0.8, measured=taken[STAGED].per(taken[COPY])),
    ]


def _dlt_way(dlt: peers.Dlt, folder: Path, *, rows: int) -> Way:
    file = folder / "some.jsonl"
    amount = Events(rows=rows, devices=max(1, rows // 10)).write_jsonl(file)
    return Way(rows=rows, amount=amount, load=partial(dlt.load, file=file), is_ours=False)


def _producers(stand: _Stand) -> str:
    rows = stand.sizes.rows_large
    devices = max(1, rows // 10)
    with stand.folder() as folder:
        amount = Events(rows=rows, devices=devices).write_jsonl(folder / "events.jsonl")
        direct = _declared(folder / "events.jsonl", publish=Publish.DIRECT)
        producer = RecordProducer(name="device", sequence="sequence")
        named = replace(direct, publish=Publish.STAGED, producer=producer)
        ways = {
            name: Way(rows=rows, amount=amount, load=stand.ours(declared))
            for name, declared in ((DIRECT, direct), (PRODUCERS, named))
        }
        taken = stand.alternate(ways)
    ratio = taken[PRODUCERS].per(taken[DIRECT])
    figures = [Figure(name="record producers, staged ÷ direct", must=0.25, aim=0.5, measured=ratio)]
    data = f"Data: {rows:,} events of {devices:,} devices that take turns; the ledger knows each device and its ids."
    return _text(data, figures, taken)


def _files(stand: _Stand) -> str:
    files = stand.sizes.files
    events = Events(rows=files * _SMALL_ROWS, devices=max(1, files // 10))
    again: dict[str, list[float]] = {AGAIN: [], COMMAND: []}
    with stand.folder() as folder:
        small = folder / "small"
        small.mkdir()
        amount = events.write_small(small, rows_each=_SMALL_ROWS)
        check_equal("sum of amounts", found=events.write_jsonl(folder / "events.jsonl"), expected=amount)
        many = _declared(small / "*.jsonl", publish=Publish.STAGED)
        file = _pipeline_file(folder / "events.yaml", many)

        def load_many(dsn: str) -> float:
            seconds = stand.load(dsn, many).seconds
            # Without tasks, a load that finds something would start Spark.
            settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
            again[AGAIN].append(_of_nothing(load(many, settings, batch=new_batch())))
            again[COMMAND].append(_command_seconds(dsn, file))
            return seconds

        loads = {SMALL: load_many, ONE: stand.ours(replace(many, source=_source(folder / "events.jsonl")))}
        ways = {name: Way(rows=events.rows, amount=amount, load=each) for name, each in loads.items()}
        taken = stand.alternate(ways)
    figures = [
        Figure(name="small files ÷ one file, staged", must=0.3, aim=0.7, measured=taken[SMALL].per(taken[ONE])),
        *(
            Figure(name=name, must=3, aim=1, measured=Measured(tuple(seconds)), unit=" s", is_less_better=True)
            for name, seconds in again.items()
        ),
    ]
    data = (
        f"Data: {files:,} files of {_SMALL_ROWS} events each, and one file of the same events."
        "\nThe whole command keeps its bytecode, as Python does by default."
    )
    return _text(data, figures, taken)


def _source(path: Path) -> Source:
    return Source(path=str(path), format=Format.JSONL)


def _of_nothing(report: Report) -> float:
    found = (report.loaded, report.duplicates, report.engine)
    check_equal("rows loaded again, and the engine that was started", found=found, expected=(0, 0, None))
    return report.seconds


def _pipeline_file(path: Path, declared: Declared) -> Path:
    # All JSON is YAML too.
    content = {
        "pipeline": declared.name,
        "source": {"path": declared.source.path, "format": "jsonl"},
        "columns": COLUMNS,
        "target": {"table": "public.target"},
        "publish": "staged",
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _command_seconds(dsn: str, file: Path) -> float:
    # By default Python keeps what it has compiled; the shell of a bench may forbid that.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "onceload", "load", file, "--json"],
        env={**environment, "ONCELOAD_DSN": dsn},
        check=True,
        capture_output=True,
    )
    seconds = time.perf_counter() - started
    report = json.loads(done.stdout)
    found = (report["loaded"], report["engine"])
    check_equal("rows loaded by the command, and the engine that was started", found=found, expected=(0, None))
    return seconds


def _memory(stand: _Stand) -> str:
    wanted = stand.sizes.memory_bytes
    rows, said = [], []
    with stand.folder() as folder:
        file = folder / "events.jsonl"
        events = Events(rows=10_000, devices=1000)
        events.write_jsonl(file)
        count = 10_000 * wanted // file.stat().st_size
        amount = Events(rows=count, devices=max(1, count // 10)).write_jsonl(file)
        for publish in (Publish.DIRECT, Publish.STAGED):
            way = Way(rows=count, amount=amount, load=stand.ours(_declared(file, publish=publish)))
            seconds, peak = stand.once(way)
            workers = peak.of("worker")
            row = [f"{count / seconds:,.0f}", *map(_mb, (peak.of("driver")[0], peak.of("jvm")[0]))]
            rows.append([publish, *row, ", ".join(map(_mb, workers))])
            said.append(f"{publish}: {'within' if max(workers) <= _WORKER_BYTES_MAX else 'above'} the limit")
        size = file.stat().st_size
    header = ["route", "rows/s", "driver, MB", "its JVM, MB", "each Python worker, MB"]
    return f"""Data: one file of {size / 1e9:.1f} GB, {count:,} events.
The limit is {_mb(_WORKER_BYTES_MAX)} MB for a Python worker ({"; ".join(said)}).

{table(header, rows)}
"""


def _sessions(stand: _Stand) -> str:
    sizes = stand.sizes
    handed: dict[int, list[float]] = {count: [] for count in _SESSIONS}
    rows_per_s: dict[int, list[float]] = {count: [] for count in _SESSIONS}
    takeovers: list[float] = []
    shares: list[float] = []
    with stand.folder() as folder:
        small = Events(rows=sizes.deliveries * _ROWS_OF_TINY, devices=100)
        large = Events(rows=sizes.rows, devices=max(1, sizes.rows // 10))
        amounts = [events.write_jsonl(folder / f"{events.rows}.jsonl") for events in (small, large)]
        tiny = (folder / f"{small.rows}.jsonl").stat().st_size // sizes.deliveries
        files = [
            sessions.pipeline_file(
                folder / f"{events.rows}-{mode}.yaml",
                folder / f"{events.rows}.jsonl",
                columns=COLUMNS,
                chunk_bytes=chunk,
                mode=mode,
            )
            for events, chunk, mode in (
                (small, tiny, Mode.SHARED),
                (large, _CHUNK_BYTES, Mode.SHARED),
                (small, tiny, Mode.ORDERED),
            )
        ]
        for _ in range(sizes.repetitions):
            for count in _SESSIONS:
                for events, amount, file, found in (
                    (small, amounts[0], files[0], handed),
                    (large, amounts[1], files[1], rows_per_s),
                ):
                    with stand.database() as (dsn, engine):
                        seconds, commits = sessions.consume_at_once(dsn, engine, file, sessions=count)
                        check_rows(engine, "target", rows=events.rows, amount=amount)
                    found[count].append((commits if found is handed else events.rows) / seconds)
            with stand.database() as (dsn, engine):
                takeovers.append(sessions.takeover_seconds(dsn, engine, files[2]))
            with stand.database() as (dsn, engine):
                declared = _declared(folder / f"{large.rows}.jsonl", publish=Publish.DIRECT)
                shares.append(100 * sessions.share_of_handing_out(dsn, declared))
                check_rows(engine, "target", rows=large.rows, amount=amounts[1])
    best = max(handed.values(), key=lambda values: Measured(tuple(values)).median)
    until = sessions.LEASE_S + 1
    figures = [
        Figure(name="deliveries per second, tiny chunks", aim=500, measured=Measured(tuple(best))),
        Figure(
            name="share of a load that one session spends on handing out",
            aim=3,
            measured=Measured(tuple(shares)),
            unit=" %",
            is_less_better=True,
        ),
        Figure(
            name=f"from SIGKILL to the first commit of the successor, with a lease of {sessions.LEASE_S:g} s",
            aim=until,
            measured=Measured(tuple(takeovers)),
            unit=" s",
            is_less_better=True,
        ),
    ]
    rows = [
        [str(count), str(Measured(tuple(handed[count]))), str(Measured(tuple(rows_per_s[count])))]
        for count in _SESSIONS
    ]
    return f"""Data: {small.rows:,} events in {sizes.deliveries:,} chunks of {_ROWS_OF_TINY} rows, and {large.rows:,} \
events in chunks of {_CHUNK_BYTES / 2**20:g} MiB.
Sessions are processes of `onceload consume`, publishing directly; from the first commit to the last, so that the \
start of the processes is not in it.
The share of handing out is that of all calls to the board in a load by one session with chunks of 32 MiB.

{table(["figure", "must", "aim", "measured", "reached"], [each.row() for each in figures])}

{table(["sessions", "deliveries/s, tiny chunks", "rows/s"], rows)}
"""


_SESSIONS = (1, 2, 4, 8)
_ROWS_OF_TINY = 10
_CHUNK_BYTES = 4 * 2**20


def _text(data: str, figures: Sequence[Figure], taken: Mapping[str, Taken], *, missing: Iterable[str] = ()) -> str:
    rows = [
        [name, str(Measured(tuple(each.seconds))), str(each.rates), _mb(max(each.workers_bytes, default=0))]
        for name, each in taken.items()
    ]
    left_out = "".join(f"Left out: {each}.\n" for each in missing)
    return f"""{data}
{left_out}
{table(["figure", "must", "aim", "measured", "reached"], [each.row() for each in figures])}

{table(["way", "seconds", "rows/s", "largest Python worker, MB"], rows)}

```
{bars({f"{name}, rows/s": each.rates.median for name, each in taken.items()})}
```
"""


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f}" if size else "-"


PARTS: dict[str, Callable[[_Stand], str]] = {
    "events": _beside_others,
    "large": _large,
    "producers": _producers,
    "files": _files,
    "memory": _memory,
    "sessions": _sessions,
}
TITLES = {
    "events": "Beside others",
    "large": "A larger file",
    "producers": "Record producers",
    "files": "Many small files",
    "memory": "Memory",
    "sessions": "Sessions",
}
