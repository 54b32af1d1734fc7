"""One Parquet file, loaded by one session and by two."""

from dataclasses import replace

from sqlalchemy import text

from bench.events import Events
from bench.measured import Figure
from bench.parts.section import section
from bench.parts.stand import Stand, Way, declared_as
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.pipeline.declared import Format, Publish

_GROUPS = 10
_ONE, _TWO = "one session", "two sessions"


def parquet(stand: Stand) -> str:
    # Smaller groups share a chunk; of the few chunks, one session would load more than the other.
    rows = 2 * stand.sizes.rows
    commits: dict[int, int] = {}
    with stand.folder() as folder:
        file = folder / "events.parquet"
        amount = Events(rows=rows, devices=max(1, rows // 10)).write_parquet(file, groups=_GROUPS)
        json_lines = declared_as(file, publish=Publish.DIRECT)
        declared = replace(json_lines, source=replace(json_lines.source, format=Format.PARQUET))

        def way(slots: int) -> Way:
            ours = stand.ours(declared, rows=rows, amount=amount, tasks=stand.local_tasks(slots))

            def load(dsn: str) -> float:
                seconds = ours.load(dsn)
                commits[slots] = _commits(dsn)
                return seconds

            return replace(ours, load=load)

        taken = stand.alternate({_ONE: way(1), _TWO: way(2)})
        size = file.stat().st_size
    ratio = taken[_TWO].per(taken[_ONE])
    data = (
        f"Data: {rows:,} events in a Parquet file of {size / 1e6:,.0f} MB with {_GROUPS} row groups, loaded directly by"
        f" local sessions: by one in {commits[1]} commits, by two in {commits[2]}."
    )
    figures = [Figure(name="Parquet, ten groups, two sessions ÷ one", must=1.7, aim=1.9, measured=ratio)]
    return section(data, figures, taken)


def _commits(dsn: str) -> int:
    engine = connect(LedgerSettings(dsn=dsn))
    with engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM onceload.ledger WHERE kind = 'load'")).scalar_one()
    engine.dispose()
    return int(found)
