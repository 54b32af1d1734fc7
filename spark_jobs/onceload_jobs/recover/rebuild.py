"""Rebuild a lost database: load all sources into a new one, and compare the result with a snapshot.

An exported snapshot outlives its database and records how much of each producer was loaded. Ids and generations start
again in a new database, so producers are compared by name, each in its latest generation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import ExitCode, NotFound, SettingRefused
from onceload_core.events import event
from onceload_core.names import Batch, Position
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.connection import statements, translated
from onceload_core.replay import Condition, ProducerState, Snapshot, States
from onceload_jobs.executor.executor import Executor
from onceload_jobs.files.fingerprints import Fingerprint, Marks, Resemblance
from onceload_jobs.files.listing import Listed, url_of
from onceload_jobs.files.reading import look_at
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.pipeline.declared import Declared, Identity, Source
from onceload_jobs.plan.copies import resemblance_of
from onceload_jobs.write.sql import filled, table_name
from onceload_jobs.write.target import columns_there

SQL = statements("rebuild.sql", package=__package__)


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A producer of which less is loaded than before."""

    producer: str
    generation: int
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The states of a new database compared with a snapshot."""

    snapshot_position: Position
    #: Under their own name, or, if content identifies files, under another.
    same: int
    #: More is loaded of these now: files have grown, or are new.
    ahead: tuple[str, ...]
    different: tuple[Missing, ...]


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """The report of a rebuild, and its comparison with the snapshot, if there is one."""

    report: Report
    comparison: Comparison | None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this."""
        lacks_records = self.comparison is not None and self.comparison.different
        return ExitCode.NEEDS_A_PERSON if lacks_records else self.report.exit_code


def rebuild(
    declared: Declared,
    settings: LoadSettings,
    *,
    batch: Batch,
    snapshot: Snapshot | None = None,
    executor: Executor | None = None,
) -> Rebuild:
    """Load all sources into an empty database, and compare with the snapshot."""
    if snapshot and snapshot.pipeline != declared.name:
        raise SettingRefused("--snapshot", f"one of pipeline {snapshot.pipeline}", f"a snapshot of {declared.name}")
    engine = connect(settings.ledger)
    try:
        refuse_loaded(declared, engine)
    finally:
        engine.dispose()
    report = load(declared, settings, batch=batch, executor=executor)
    comparison = None
    if snapshot is not None:
        live = _states(declared, settings.ledger)
        comparison = _compare_states(snapshot, live, declared.source)
    _log_rebuilt(report, comparison)
    return Rebuild(report=report, comparison=comparison)


def _log_rebuilt(report: Report, comparison: Comparison | None) -> None:
    compared = {}
    if comparison is not None:
        compared = {"snapshot_position": comparison.snapshot_position, "missing": len(comparison.different)}
    event(
        "pipeline_rebuilt",
        pipeline=report.pipeline,
        batch=report.batch,
        position=report.position,
        rows=report.loaded,
        quarantined=report.quarantined,
        **compared,
    )


def refuse_loaded(declared: Declared, engine: Engine) -> None:
    """Refuse a database that already has data of the pipeline, which would be loaded again."""
    position, has_rows = _position(engine, declared), _has_rows(engine, declared)
    if has_rows and not position:
        found = f"table {table_name(declared.target)} with rows that have no receipt in this database"
        expected = "an empty target, because everything is loaded again (empty it, or restore the schema onceload too)"
        raise SettingRefused("rebuilding", found, expected)
    if position:
        found = f"pipeline {declared.name} with {position} commits in this database"
        expected = (
            "a database without this pipeline (create one and run `onceload init`, or continue here with "
            f"`onceload load {PIPELINE_FILE}`)"
        )
        raise SettingRefused("rebuilding", found, expected)


def _position(engine: Engine, declared: Declared) -> int:
    try:
        return PostgresLedger(engine).position(declared.name)
    except NotFound:
        return 0


def _has_rows(engine: Engine, declared: Declared) -> bool:
    table = table_name(declared.target)
    with translated(pipeline=declared.name, doing=f"looking at {table}"), engine.begin() as connection:
        return bool(columns_there(connection, table)) and bool(
            connection.execute(filled(SQL["has_rows"], table=table)).scalar()
        )


def _states(declared: Declared, settings: LedgerSettings) -> States:
    engine = connect(settings)
    try:
        return PostgresLedger(engine).states(declared.name).states
    finally:
        engine.dispose()


def _compare_states(snapshot: Snapshot, live: States, source: Source) -> Comparison:
    """Compare whether everything that was loaded is loaded again."""
    known, there = _latest(snapshot.states), _latest(live)
    if source.identity is Identity.CONTENT:
        there = _under_their_old_names(known, there) | there
    same = [name for name, state in known.items() if name in there and _is_same(state, there[name])]
    different = [
        _missing(state, there.get(name)) for name, state in known.items() if not _is_there(state, there, source)
    ]
    # The bytes of an earlier generation exist in no file any more, unless its rows were replaced with it.
    past = [state for state in snapshot.states.values() if state is not known[state.name]]
    different += [_missing(state, None) for state in past if state.condition is not Condition.REPLACED]
    lacking = {each.producer for each in different}
    return Comparison(
        snapshot_position=snapshot.position,
        same=len(same),
        ahead=tuple(sorted(there.keys() - set(same) - lacking)),
        different=tuple(sorted(different, key=lambda each: (each.producer, each.generation))),
    )


def _latest(states: States) -> dict[str, ProducerState]:
    """The latest generation of each name."""
    return {state.name: state for state in sorted(states.values(), key=lambda state: state.generation)}


def _under_their_old_names(
    known: Mapping[str, ProducerState], there: Mapping[str, ProducerState]
) -> dict[str, ProducerState]:
    """If several names have one content, a load takes one of them; the others count as loaded with it."""
    by_content = {_stream(state): state for state in there.values() if state.fingerprint}
    return {name: by_content[_stream(state)] for name, state in known.items() if _stream(state) in by_content}


def _is_there(state: ProducerState, there: Mapping[str, ProducerState], source: Source) -> bool:
    found = there.get(state.name)
    if found is None or not found.consumed.covers(state.consumed):
        return False
    if found.consumed == state.consumed:
        return _is_same(state, found)
    return state.fingerprint is None or _still_has(source, state)


def _still_has(source: Source, state: ProducerState) -> bool:
    """Whether a file of which more is loaded now has the earlier content too, as a load would judge it."""
    url = url_of(source.path, state.name, root=source.root)
    stored = look_at(url)
    listed = Listed(state.name, url, stored.size, modified_at=None, etag=stored.etag)
    return resemblance_of(source, listed, state) in (Resemblance.SAME, Resemblance.GROWN)


def _is_same(state: ProducerState, found: ProducerState) -> bool:
    return found.consumed == state.consumed and _stream(found) == _stream(state)


def _stream(state: ProducerState) -> Marks | None:
    return Fingerprint.from_bytes(state.fingerprint).stream if state.fingerprint else None


def _missing(state: ProducerState, found: ProducerState | None) -> Missing:
    there = str(found.consumed) if found else "nothing: no file contains it any more"
    if found and found.consumed.covers(state.consumed):
        there = f"{there} with other content"
    return Missing(producer=state.name, generation=state.generation, expected=str(state.consumed), found=there)
