"""Loads beside others that load the same rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench import limit, peers
from bench.events import COLUMNS, Events
from bench.measured import Figure, Measured, Taken, check_equal
from bench.parts.section import section
from bench.parts.stand import Stand, Way, declared_as
from onceload_core.pipeline import Guarantee
from onceload_jobs.pipeline.declared import Publish, TransformEngine

COPY = "two COPY streams of CSV"
DIRECT, STAGED, TRANSFORM = "direct", "staged", "staged, with a transform"
LOCAL, STAGED_LOCAL = "direct, local sessions", "staged, local sessions"
TABLE = "staged, local sessions, through a table"
IN_POSTGRES = "staged, local sessions, with the transform in Postgres"
AT_LEAST_ONCE = "direct, at_least_once"
LIMIT = "two bare processes"
JDBC, ADBC, DLT = "Spark's JDBC writer", "ADBC from two processes", "dlt"
_TRANSFORM = (
    "SELECT device, happened_at, sequence, upper(kind) AS kind, amount, trim(note) AS note, _producer_id, _sequence"
    " FROM records WHERE amount >= 0"
)
_TIMES_OF_PAIR = 3


def beside_others(stand: Stand) -> str:
    sizes = stand.sizes
    events = Events(rows=sizes.rows, devices=max(1, sizes.rows // 10))
    missing = [] if stand.jdbc else ["Spark's JDBC writer (install Debian's `libpostgresql-jdbc-java`)"]
    with stand.folder() as folder:
        ways, data = _main_ways(stand, events, folder)
        json_lines = folder / "events.jsonl"
        direct = declared_as(json_lines, publish=Publish.DIRECT)
        transform = replace(direct, publish=Publish.STAGED, transform=_TRANSFORM)
        careless = replace(direct.pipeline, guarantee=Guarantee.AT_LEAST_ONCE)
        rows, amount = events.rows, ways[DIRECT].amount
        at_least_once = stand.ours(replace(direct, pipeline=careless), rows=rows, amount=amount)
        ways[TRANSFORM] = stand.ours(transform, rows=rows, amount=amount)
        for name, publish in ((LOCAL, Publish.DIRECT), (STAGED_LOCAL, Publish.STAGED)):
            declared = replace(direct, publish=publish)
            ways[name] = stand.ours(declared, rows=rows, amount=amount, tasks=stand.local_tasks())
        ways[TABLE] = replace(
            ways[STAGED_LOCAL],
            load=partial(
                stand.load_through_a_table,
                declared=replace(direct, publish=Publish.STAGED),
                tasks=stand.local_tasks(),
            ),
        )
        in_postgres = replace(transform, transform_engine=TransformEngine.POSTGRES)
        ways[IN_POSTGRES] = stand.ours(in_postgres, rows=rows, amount=amount, tasks=stand.local_tasks())
        if stand.jdbc:
            ways[JDBC] = replace(ways[LIMIT], load=partial(peers.spark_jdbc, file=json_lines))
        adbc = peers.Environment.installed(folder / "adbc", "adbc-driver-postgresql", f"pyarrow=={pa.__version__}")
        if isinstance(adbc, peers.Environment):
            ways[ADBC] = replace(ways[LIMIT], load=partial(peers.adbc, file=json_lines, environment=adbc))
            data += f"\n{ADBC} ({adbc.version}): each parses half of the lines with pyarrow, in one transaction."
        else:
            missing.append(adbc)
        dlt = peers.Environment.installed(folder / "dlt", "dlt[postgres,filesystem]")
        if isinstance(dlt, peers.Environment):
            ways[DLT] = _dlt_way(dlt, folder, rows=sizes.rows_dlt)
            data += f"\ndlt {dlt.version} loads a file of {sizes.rows_dlt:,} of them."
        else:
            missing.append(dlt)
        taken = stand.alternate(ways)
        # The guarantee costs less than the machine's mood changes, so they are measured side by side, and more often.
        pair = stand.alternate({AT_LEAST_ONCE: at_least_once, DIRECT: ways[DIRECT]}, times=_TIMES_OF_PAIR)
    figures = [*_main_figures(taken), *_other_figures(taken), _cost_of_guarantee(pair)]
    data += f"\nThe cost of the guarantee comes from {_TIMES_OF_PAIR} times as many repetitions of just these two ways."
    data += _beside_copy(taken)
    return section(data, figures, taken | {AT_LEAST_ONCE: pair[AT_LEAST_ONCE]}, missing=missing)


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
    yield Figure(name=f"{LOCAL} ÷ L", must=0.85, aim=0.95, measured=taken[LOCAL].per(taken[LIMIT]))
    staged = taken[STAGED_LOCAL].per(taken[LOCAL])
    yield Figure(name="staged ÷ direct, local sessions", must=0.85, aim=1, measured=staged)
    transformed = taken[TRANSFORM].per(taken[DIRECT])
    yield Figure(name="Spark SQL transform ÷ direct", must=0.45, aim=0.6, measured=transformed)
    through_a_table = taken[TABLE].per(taken[STAGED_LOCAL])
    yield Figure(name="through a table ÷ staged, local sessions", must=0.6, aim=0.75, measured=through_a_table)
    in_postgres = taken[IN_POSTGRES].per(taken[TABLE])
    yield Figure(name="Postgres transform ÷ through a table, local sessions", must=0.8, aim=0.9, measured=in_postgres)
    for name, must, aim in ((JDBC, 4, 5), (ADBC, 1, 1.2), (DLT, 30, 60)):
        if name in taken:
            yield Figure(name=f"direct ÷ {name}", must=must, aim=aim, measured=taken[DIRECT].per(taken[name]))


def large(stand: Stand) -> str:
    rows = stand.sizes.rows_large
    with stand.folder() as folder:
        ways, data = _main_ways(stand, Events(rows=rows, devices=max(1, rows // 10)), folder)
        taken = stand.alternate(ways)
    return section(data + _beside_copy(taken), _main_figures(taken), taken)


def _main_ways(stand: Stand, events: Events, folder: Path) -> tuple[dict[str, Way], str]:
    json_lines, halves = folder / "events.jsonl", [folder / "first.csv", folder / "second.csv"]
    amount = events.write_jsonl(json_lines)
    check_equal("sum of amounts as CSV", found=events.write_csv(halves), expected=amount)
    of_others: dict[str, Callable[[str], float]] = {
        COPY: partial(peers.copy_streams, files=halves),
        LIMIT: partial(limit.parse_and_copy, file=json_lines),
    }
    json_bytes, csv_bytes = json_lines.stat().st_size, sum(half.stat().st_size for half in halves)
    data = (
        f"Data: {events.rows:,} events of six columns ({', '.join(COLUMNS.values())}),"
        f" {json_bytes / 1e6:,.0f} MB of JSON lines; the same rows as CSV are {csv_bytes / 1e6:,.0f} MB.\n"
        f"The {LIMIT} (L) parse the lines and COPY them, with lineage and a digest for each chunk, but without a"
        " ledger or any check of a value; their start is in no number.\n"
        "Where no local sessions are named, loads run in Spark's session.\n"
        f"The {COPY}: a connection and a file for each, into a plain logged table without lineage."
    )
    ways = {name: Way(rows=events.rows, amount=amount, load=each) for name, each in of_others.items()}
    for name, publish in ((DIRECT, Publish.DIRECT), (STAGED, Publish.STAGED)):
        ways[name] = stand.ours(declared_as(json_lines, publish=publish), rows=events.rows, amount=amount)
    return ways, data


def _main_figures(taken: Mapping[str, Taken]) -> list[Figure]:
    return [
        Figure(name="direct ÷ L", must=0.85, aim=0.95, measured=taken[DIRECT].per(taken[LIMIT])),
        Figure(name="staged ÷ direct", must=0.85, aim=1, measured=taken[STAGED].per(taken[DIRECT])),
    ]


def _beside_copy(taken: Mapping[str, Taken]) -> str:
    each = ", ".join(f"{name} {taken[name].per(taken[COPY])}" for name in (LIMIT, DIRECT, STAGED))
    return f"\nOf the {COPY}: {each}."


def _dlt_way(environment: peers.Environment, folder: Path, *, rows: int) -> Way:
    file = folder / "some.jsonl"
    amount = Events(rows=rows, devices=max(1, rows // 10)).write_jsonl(file)
    return Way(rows=rows, amount=amount, load=partial(peers.dlt, file=file, environment=environment))
