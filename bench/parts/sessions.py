"""Sessions that share a pipeline."""

from bench import sessions
from bench.events import COLUMNS, Events, check_rows
from bench.measured import Figure, Measured, table
from bench.parts.stand import Stand, check_deep, declared_as
from onceload.pipeline_file import read_pipeline
from onceload_core.delivery import Mode
from onceload_jobs.pipeline.declared import Publish, Source

_SESSIONS = (1, 2, 4, 8)
_ROWS_OF_TINY = 10
_CHUNK_BYTES = 4 * 2**20


def shared_pipeline(stand: Stand) -> str:
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
                        check_deep(read_pipeline(file), engine, rows=events.rows)
                    found[count].append((commits if found is handed else events.rows) / seconds)
            with stand.database() as (dsn, engine):
                takeovers.append(sessions.takeover_seconds(dsn, engine, files[2]))
            with stand.database() as (dsn, engine):
                declared = declared_as(folder / f"{large.rows}.jsonl", publish=Publish.DIRECT)
                shares.append(100 * sessions.share_of_handing_out(dsn, declared))
                check_rows(engine, "target", rows=large.rows, amount=amounts[1])
                check_deep(declared, engine, rows=large.rows)
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
Sessions are processes of `onceload consume` with `publish: direct`, measured from the first commit to the last, \
without their start.
The share of handing out is that of all calls to the board in a load by one session with chunks of \
{Source.chunk_bytes / 2**20:g} MiB.

{table(["figure", "must", "aim", "measured", "reached"], [each.row() for each in figures])}

{table(["sessions", "deliveries/s, tiny chunks", "rows/s"], rows)}
"""
