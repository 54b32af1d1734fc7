"""The overview: a line for each pipeline, the worst first."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Engine

from onceload.console.hours import History, Hours
from onceload.console.reading import reading
from onceload.lag import Behind, Lag
from onceload.states import Found, State, all_found, next_run, state_of
from onceload_core.postgres.connection import Record, array, statements

SQL = statements("overview.sql", package=__package__)
PAGE = 50
_COMMITS_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Loading:
    """A batch that is being loaded."""

    batch: str
    #: Those that are alive.
    sessions: tuple[str, ...]
    #: Parts that wait or are in progress, and those that are staged.
    left: int
    staged: int
    #: What it has committed; the rows only if the commits are few.
    commits: int
    rows: int
    since: datetime

    @property
    def are_cut(self) -> bool:
        return self.commits > _COMMITS_MAX


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    state: State
    reason: str
    #: What to do; empty if there is nothing to do.
    next: str
    found: Found
    #: How long ago its files were listed.
    lag_age_s: float | None = None
    next_run: datetime | None = None
    schedule: str | None = None
    hours: Hours = field(default_factory=Hours)
    loading: tuple[Loading, ...] = ()

    @property
    def row(self) -> Record | None:
        return self.found.row

    @property
    def lag(self) -> Lag | None:
        return self.found.lag


@dataclass(frozen=True, kw_only=True)
class Overview:
    #: Those of this page, with everything.
    lines: tuple[Line, ...]
    #: How many pipelines each state has.
    states: Mapping[State, int]
    #: How many match the search and the state.
    matching: int
    #: The one that is shown, and how many there are.
    page: int
    pages: int


def names_of(engine: Engine) -> list[str]:
    """The names of all pipelines."""
    with reading(engine, "the names of pipelines") as (connection, _):
        return list(connection.execute(SQL["names"]).scalars())


def lines_of(engine: Engine, behind: Behind | None, *, now: datetime, only: str | None = None) -> list[Line]:
    """Every pipeline, the worst first; known by the database, or by its pipeline file alone."""
    every = all_found(engine, behind, only=only)
    lines = [_line(found, behind, now=now) for found in every]
    return sorted(lines, key=lambda line: (line.state.badness, line.name))


def _line(found: Found, behind: Behind | None, *, now: datetime) -> Line:
    seen_at, _ = behind.seen.get(found.name, (None, None)) if behind else (None, None)
    declared, verdict = found.declared, state_of(found, now=now)
    return Line(
        name=found.name,
        state=verdict.state,
        reason=verdict.reason,
        next=verdict.next,
        found=found,
        lag_age_s=None if seen_at is None else time.monotonic() - seen_at,
        next_run=next_run(declared, now=now) if declared else None,
        schedule=declared.schedule if declared else None,
    )


def overview(
    engine: Engine,
    history: History,
    lines: Sequence[Line],
    *,
    search: str,
    state: State | None,
    page: int,
    now: datetime,
) -> Overview:
    """One page of the lines that match."""
    named = [line for line in lines if search.casefold() in line.name.casefold()]
    matching = [line for line in named if state is None or line.state is state]
    pages = max(1, -(-len(matching) // PAGE))
    page = min(page, pages)
    shown = matching[(page - 1) * PAGE : page * PAGE]
    return Overview(
        lines=tuple(with_activity(engine, history, shown, now=now)),
        states={each: sum(line.state is each for line in named) for each in State},
        matching=len(matching),
        page=page,
        pages=pages,
    )


def with_activity(engine: Engine, history: History, lines: Collection[Line], *, now: datetime) -> list[Line]:
    """The lines with what was committed in the last hours, and what is being loaded."""
    ids = [line.row.pipeline_id for line in lines if line.row is not None]
    with reading(engine, "the commits of the last hours") as (connection, _):
        hours = history.read(connection, ids, now=now)
        loading: dict[int, list[Loading]] = {}
        for row in connection.execute(SQL["loading"], {"pipeline_ids": array(ids), "commits_max": _COMMITS_MAX + 1}):
            loading.setdefault(row.pipeline_id, []).append(
                Loading(
                    batch=row.batch,
                    sessions=tuple(row.sessions or ()),
                    left=row.left_over,
                    staged=row.staged,
                    commits=row.commits,
                    rows=row.rows,
                    since=row.since,
                )
            )
    return [
        line
        if line.row is None
        else replace(
            line,
            hours=hours.get(line.row.pipeline_id, Hours()),
            loading=tuple(loading.get(line.row.pipeline_id, ())),
        )
        for line in lines
    ]
