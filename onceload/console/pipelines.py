"""The pages of one pipeline: its timeline, its files, its quality, its snapshots and its declaration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Engine

from onceload.console.reading import reading
from onceload_core.delivery import State
from onceload_core.names import DeliveryId
from onceload_core.postgres import by_hand
from onceload_core.postgres.connection import Record, statements

SQL = statements("pipelines.sql", package=__package__)
_COMMITS = 200
_FILES = 100
_RECEIPTS = 500
_OTHERS = 100
_ENDLESS = 2**63 - 1
#: On two processors: the first from docs/benchmarks.md, and 1,000,000 commits of 10,000 files took 8.7 to 12.7 s.
_PRODUCERS_A_S, _COMMITS_A_S = 500_000, 100_000


@dataclass(frozen=True, kw_only=True)
class Commits:
    """Commits of one batch that follow each other, the newest first."""

    rows: tuple[Record, ...]

    @property
    def newest(self) -> Record:
        return self.rows[0]

    @property
    def oldest(self) -> Record:
        return self.rows[-1]

    def sum(self, column: str) -> int:
        return sum(getattr(row, column) for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    groups: tuple[Commits, ...]
    #: The position to continue before, if there are more.
    before: int | None


def timeline_of(engine: Engine, pipeline: str, *, before: int | None) -> Timeline:
    with reading(engine, "the commits", pipeline=pipeline) as (connection, pipeline_id):
        binds = {"pipeline_id": pipeline_id, "before": before or _ENDLESS, "at_most": _COMMITS + 1}
        rows = connection.execute(SQL["commits"], binds).all()
    more = len(rows) > _COMMITS
    return Timeline(groups=tuple(_grouped(rows[:_COMMITS])), before=rows[_COMMITS - 1].position if more else None)


def _grouped(rows: Sequence[Record]) -> Iterator[Commits]:
    for _, some in groupby(rows, key=lambda row: (row.kind, row.batch, row.rolled_back_by)):
        yield Commits(rows=tuple(some))


@dataclass(frozen=True, kw_only=True)
class Files:
    rows: Sequence[Record]
    #: The row to continue after, if there are more.
    last: Record | None


def files_of(engine: Engine, pipeline: str, *, search: str, after: str, after_generation: int) -> Files:
    with reading(engine, "the files", pipeline=pipeline) as (connection, pipeline_id):
        binds = {"pipeline_id": pipeline_id, "search": search, "after": after, "after_generation": after_generation}
        rows = connection.execute(SQL["files"], binds | {"at_most": _FILES + 1}).all()
    return Files(rows=rows[:_FILES], last=rows[_FILES - 1] if len(rows) > _FILES else None)


def audits_of(engine: Engine, pipeline: str) -> Sequence[Record]:
    return _rows(engine, pipeline, "audits")


def snapshots_of(engine: Engine, pipeline: str) -> Sequence[Record]:
    return _rows(engine, pipeline, "snapshots")


def recovery_s(snapshot: Record) -> float:
    """About how long a recovery of the states from this snapshot takes."""
    return float(1 + snapshot.producers / _PRODUCERS_A_S + snapshot.commits_since / _COMMITS_A_S)


def declarations_of(engine: Engine, pipeline: str) -> Sequence[Record]:
    return _rows(engine, pipeline, "declarations")


def _rows(engine: Engine, pipeline: str, what: str) -> Sequence[Record]:
    with reading(engine, f"the {what}", pipeline=pipeline) as (connection, pipeline_id):
        return connection.execute(SQL[what], {"pipeline_id": pipeline_id, "at_most": _OTHERS}).all()


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a batch has committed, and what its audits found."""

    commits: Commits | None
    #: Those that no rewind has rolled back; None if there are none.
    in_force: Commits | None
    receipts: Sequence[Record]
    findings: Sequence[Record]
    are_cut: bool


def run_of(engine: Engine, pipeline: str, batch: str) -> Run:
    with reading(engine, "a run", pipeline=pipeline) as (connection, pipeline_id):
        binds = {"pipeline_id": pipeline_id, "batch": batch, "at_most": _RECEIPTS}
        commits = connection.execute(SQL["commits_of_batch"], binds).all()
        receipts = connection.execute(SQL["receipts_of_batch"], binds).all()
        findings = connection.execute(SQL["findings_of_batch"], binds).all()
    in_force = tuple(commit for commit in commits if commit.rolled_back_by is None)
    return Run(
        commits=Commits(rows=tuple(commits)) if commits else None,
        in_force=Commits(rows=in_force) if in_force else None,
        receipts=receipts,
        findings=findings,
        are_cut=_RECEIPTS in (len(commits), len(receipts), len(findings)),
    )


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    delivery: dict[str, object]
    described: by_hand.Described


def dead_letters_of(engine: Engine, pipeline: str) -> list[DeadLetter]:
    found = by_hand.list_deliveries(engine, pipeline, state=State.DEAD, at_most=_OTHERS)
    return [
        DeadLetter(
            delivery=each, described=by_hand.describe(engine, DeliveryId(int(str(each["delivery"]))), at_most=10)
        )
        for each in found
    ]
