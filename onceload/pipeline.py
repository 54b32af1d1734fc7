"""The Python API: a pipeline, and what the command line and Airflow's tasks do with it.

Each method opens the database, does one thing and closes it again, so a pipeline holds nothing open. Methods may be
called from any thread, and several at once. Nothing here changes signal handlers or the configuration of logging.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, SupportsIndex, TypeAlias, Unpack

from sqlalchemy import Engine as Database

from onceload.choices import chosen, how_of
from onceload.databases import open_database, ready_database
from onceload.engines import Where, where_to_work
from onceload.extras import check_installed
from onceload.host_program import guarded, main_kept
from onceload.settings import Settings, given_settings, user_name
from onceload.sources import has_source
from onceload_core.errors import NotFound, SettingRefused
from onceload_core.names import Batch, Position
from onceload_core.pause import Pause
from onceload_core.postgres import LedgerSettings, PostgresLedger, pausing, recover_state
from onceload_core.postgres.connection import translated
from onceload_core.postgres.pausing import Paused

if TYPE_CHECKING:
    # Arrow takes a while to import, and some commands do without it.
    from onceload.explanation import Explanation
    from onceload_core.postgres.batches import Audit
    from onceload_core.postgres.recovery import Recovery
    from onceload_core.postgres.rewind import Rewind
    from onceload_jobs.load.report import Report
    from onceload_jobs.load.settings import LoadSettings
    from onceload_jobs.pipeline.declared import Declared
    from onceload_jobs.plan.choice import Choice
    from onceload_jobs.plan.plan import Plan
    from onceload_jobs.recover.rebuild import Rebuild
    from onceload_jobs.verify.verify import Verification
    from onceload_jobs.work.progress import OnProgress

#: What the processes of a verification call.
_OF_VERIFICATIONS = ("onceload_jobs.verify.read_bytes", "onceload_jobs.verify.compare_rows")


class ArrowStream(Protocol):
    """Anything that Arrow reads without a copy: its tables, and frames of pandas or polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ToArrow(Protocol):
    """Anything that makes an Arrow table or reader of itself."""

    def to_arrow(self) -> object: ...


#: What `load_rows` takes.
Rows: TypeAlias = ArrowStream | ToArrow | Iterable[Mapping[str, Any]]


@contextmanager
def database(*, dsn: str | None = None, home: Path | str | None = None) -> Iterator[str]:
    """The address of the database while the block runs: `dsn`, ONCELOAD_DSN, or the embedded Postgres.

    The embedded one is started and gets the schema, and keeps running until the last block or call that uses it ends.
    """
    with ready_database(given_settings(os.environ, dsn=dsn, home=home)) as address:
        yield address


@dataclass(frozen=True)
class _Described:
    """A declaration, and the settings of its database."""

    declared: "Declared"
    settings: Settings = field(repr=False)

    @classmethod
    def read(
        cls,
        path: Path | str,
        *,
        values: Mapping[str, str] = {},
        dsn: str | None = None,
        home: Path | str | None = None,
    ) -> Self:
        """Read a pipeline file; `values` fill the placeholders in source.path."""
        from onceload.pipeline_file import read_pipeline

        settings = given_settings(os.environ, dsn=dsn, home=home)
        return cls(read_pipeline(Path(path), values=values, needs_source=False), settings)

    @classmethod
    def of(
        cls,
        description: object,
        *,
        values: Mapping[str, str] = {},
        dsn: str | None = None,
        home: Path | str | None = None,
    ) -> Self:
        """A pipeline from a mapping with the keys of a pipeline file, or from a dataclass with such fields."""
        from onceload.pipeline_file import parse_pipeline

        settings = given_settings(os.environ, dsn=dsn, home=home)
        return cls(parse_pipeline(description, values=values), settings)

    @property
    def name(self) -> str:
        return self.declared.name


class Pipeline(_Described):
    """A declared way from a source to a target table. Make it with `read` or `of`."""

    def plan(self, *, only: Sequence[str] = (), replaces: bool = False, batch: str | None = None) -> "Plan":
        """What a load of this batch would read, and why it skips the rest; nothing is changed."""
        from onceload_jobs.plan.plan import make_plan
        from onceload_jobs.write.target import check_target

        _check_source(self)
        with _opened(self, "planning") as engine:
            ledger = PostgresLedger(engine)
            check_target(engine, ledger, self.declared)
            choice = _not_replaced(self, ledger, _chosen(self, only, replaces=replaces), batch)
            return make_plan(self.declared, ledger, now_s=time.time(), choice=choice)

    def load(
        self,
        *,
        only: Sequence[str] = (),
        replaces: bool = False,
        accepts_differences: bool = False,
        batch: str | None = None,
        wait_s: float = 600.0,
        on_progress: "OnProgress | None" = None,
        **where: Unpack[Where],
    ) -> "Report":
        """Load new records, exactly once.

        The arguments are the options of `onceload load`. `only` names files below the root of the source, or patterns
        of them. A later call with the same `batch` takes over from this one. `on_progress` is called about once a
        second, from another thread. A Spark session of the calling program is used, and not stopped.
        Files that cannot be loaded raise no error, because the others are loaded: see `notes` of the report.
        """
        if self.declared.suite is not None:
            check_installed("great_expectations", needed_by="quality.suite")
        how = _options(self, where)
        how |= {"choice": _chosen(self, only, replaces=replaces), "differences_accepted": accepts_differences}
        return _load(self, batch, {**how, "wait_s": wait_s, "on_progress": guarded(on_progress)})

    def stage(
        self,
        *,
        only: Sequence[str] = (),
        replaces: bool = False,
        batch: str | None = None,
        wait_s: float = 600.0,
        on_progress: "OnProgress | None" = None,
        **where: Unpack[Where],
    ) -> "Report":
        """Read new records into a staging table; the target does not change before `publish`."""
        how = _options(self, where)
        how |= {"choice": _chosen(self, only, replaces=replaces), "publishes": False}
        return _load(self, batch, {**how, "wait_s": wait_s, "on_progress": guarded(on_progress)})

    def load_rows(
        self,
        rows: Rows,
        *,
        producer: str,
        first_id: int | None = None,
        id_column: str | None = None,
        batch: str | None = None,
    ) -> "Report":
        """Load rows that this program has, exactly once, into a pipeline without source.

        Each row is identified by its producer and its id: from `first_id` on, or from a column. Ids must increase.
        Call again with the same ids after any failure: rows that are loaded are counted as duplicates.
        The rows of a call are one commit; with publish: direct, they are commits of about source.chunk_bytes each.
        """
        from onceload.given_rows import offers_of
        from onceload_jobs.load.given_rows import load_rows

        if has_source(self.declared):
            found = f"pipeline {self.name}, which reads files"
            raise SettingRefused("load_rows", found, "a pipeline of its own, without source")
        _check_ids(producer, first_id, id_column)
        offers = offers_of(rows, self.declared, producer=producer, first_id=first_id, id_column=id_column)
        # Rows that cannot be read do not start a database.
        begun = list(islice(offers, 1))
        with ready_database(self.settings) as dsn:
            return load_rows(
                self.declared,
                LedgerSettings(dsn=dsn),
                chain(begun, offers),
                producer=producer,
                is_without_gaps=id_column is None,
                batch=_batch(batch),
                run=self.settings.run,
            )

    def audit(self, batch: str) -> "Audit":
        """Check a staged batch with the suite of the pipeline; a failed critical expectation raises AuditFailed."""
        from onceload_jobs.load.staged.kept_batch import audit_batch

        with _ready(self, "auditing") as how:
            return audit_batch(self.declared, how, batch=Batch(batch))

    def publish(self, batch: str, *, accepts_differences: bool = False) -> "Report":
        """Write a staged batch to the target, in one commit; publishing it twice changes nothing."""
        from onceload_jobs.load.staged.kept_batch import publish_batch

        with _ready(self, "publishing") as ready:
            how = replace(ready, differences_accepted=accepts_differences)
            return publish_batch(self.declared, how, batch=Batch(batch), run=self.settings.run)

    def give_up(self, batch: str) -> bool:
        """Delete a staged batch, so that the next load plans its records again; returns whether there was one."""
        from onceload_jobs.load.staged.kept_batch import give_up

        with _ready(self, "giving up") as how:
            return give_up(self.declared, how, batch=Batch(batch))

    def verify(self, *, deep: bool = False, **where: Unpack[Where]) -> "Verification":
        """Compare files and rows with the ledger; `deep` parses the files again and compares every value.

        The files are read where a load would run. The result is the same everywhere.
        """
        how = where_to_work(self.settings, calls=_OF_VERIFICATIONS, **where)
        from onceload_jobs.load.settings import EngineSettings
        from onceload_jobs.verify.verify import verify

        with (
            _opened(self, "verifying") as database,
            main_kept(),
            EngineSettings(**how).executor(self.name, doing="verify") as executor,
        ):
            return verify(self.declared, database, deep=deep, executor=executor)

    def why(self, name: str) -> "Explanation":
        """Explain why a file is or is not loaded, and what the next load does with it."""
        from onceload.explanation import explain

        _check_source(self)
        with _opened(self, "looking at a file") as engine:
            return explain(self.declared, engine, name)

    def pause(self, *, why: str, by: str | None = None) -> Paused:
        """Stop all loads until `resume`; a pause in force stays. `by` is the user of this process, unless given."""
        with open_database(self.settings) as engine:
            return pausing.pause(engine, self.name, by=by or user_name(), why=why)

    def resume(self, *, by: str | None = None) -> Pause | None:
        """Let loads run again; return the pause that has ended, if there was one."""
        with open_database(self.settings) as engine:
            return pausing.resume(engine, self.name, by=by or user_name())

    def recover_state(
        self, *, position: int = 0, dry_run: bool = False, on_progress: Callable[[str], None] | None = None
    ) -> "Recovery":
        """Rebuild producer states from the ledger, from its beginning or from the snapshot at a position."""
        told = on_progress or _ignore
        with open_database(self.settings) as engine:
            start = Position(position)
            return recover_state(engine, self.name, snapshot_position=start, dry_run=dry_run, on_progress=told)

    def recover_rewind(
        self,
        *,
        position: int | None = None,
        expected_position: int | None = None,
        dry_run: bool = False,
        accepts_differences: bool = False,
        on_progress: Callable[[str], None] | None = None,
    ) -> "Rewind":
        """Delete rows and state after a position, by default that of the latest snapshot, to load them again.

        With the position of a dry run as the expected one, a commit since then is not rolled back unseen: nothing is
        changed.
        """
        from onceload_jobs.recover.rewind import rewind

        with open_database(self.settings) as engine:
            return rewind(
                self.declared,
                engine,
                to=None if position is None else Position(position),
                expected=None if expected_position is None else Position(expected_position),
                dry_run=dry_run,
                differences_accepted=accepts_differences,
                on_progress=on_progress,
            )

    def recover_rebuild(
        self,
        *,
        snapshot: str | Path | None = None,
        batch: str | None = None,
        wait_s: float = 600.0,
        on_progress: "OnProgress | None" = None,
        **where: Unpack[Where],
    ) -> "Rebuild":
        """Load all files into a database that has nothing of this pipeline; compare it with an exported snapshot."""
        from onceload.snapshot_file import read_snapshot
        from onceload_jobs.recover.rebuild import rebuild

        how = _options(self, where)
        before = read_snapshot(Path(snapshot)) if snapshot is not None else None
        with _ready(self, "rebuilding") as ready, main_kept():
            settings = replace(ready, **how, wait_s=wait_s, on_progress=guarded(on_progress))
            return rebuild(self.declared, settings, batch=_batch(batch), snapshot=before)


def _options(pipeline: Pipeline, where: Where) -> dict[str, Any]:
    """The settings of a load that say where it runs."""
    _check_source(pipeline)
    return where_to_work(pipeline.settings, **where)


def _load(pipeline: Pipeline, batch: str | None, changes: Mapping[str, Any]) -> "Report":
    """Load with these changes of the settings."""
    from onceload_jobs.load.load import load

    with _ready(pipeline, "loading") as how, main_kept():
        return load(pipeline.declared, replace(how, **changes), batch=_batch(batch), run=pipeline.settings.run)


def _check_source(pipeline: Pipeline) -> None:
    if not has_source(pipeline.declared):
        found = f"pipeline {pipeline.name}, which declares none"
        raise SettingRefused("source", found, "a pipeline with a source; rows of a program are loaded by load_rows")


def _chosen(pipeline: Pipeline, only: Sequence[str], *, replaces: bool) -> "Choice":
    # One name alone is a sequence too, of its characters.
    return chosen(pipeline.declared, files=(only,) if isinstance(only, str) else only, replaces=replaces)


def _not_replaced(pipeline: Pipeline, ledger: PostgresLedger, choice: "Choice", batch: str | None) -> "Choice":
    """The choice without the files that earlier calls of the batch have replaced."""
    if batch is not None:
        from onceload_jobs.load.settings import without_replaced

        # A pipeline that was never loaded has replaced nothing.
        with suppress(NotFound):
            return without_replaced(choice, ledger, pipeline.name, Batch(batch))
    return choice


@contextmanager
def _ready(pipeline: Pipeline, doing: str) -> "Iterator[LoadSettings]":
    """The database with the schema, for calls that write rows."""
    with translated(pipeline=pipeline.name, doing=doing), ready_database(pipeline.settings) as dsn:
        yield how_of(pipeline.settings, dsn)


@contextmanager
def _opened(pipeline: Pipeline, doing: str) -> Iterator[Database]:
    """The database, for calls that only read; refuses an edit of the pipeline that a load would refuse."""
    from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
    from onceload_jobs.write.rights import check_schema

    with translated(pipeline=pipeline.name, doing=doing), open_database(pipeline.settings) as engine:
        check_schema(engine, pipeline.declared)
        PostgresLedger(engine).find_version(pipeline_with_declaration(pipeline.declared))
        yield engine


def _batch(named: str | None) -> Batch:
    from onceload_jobs.load.settings import new_batch

    return Batch(named) if named is not None else new_batch()


def _check_ids(producer: object, first_id: object, id_column: object) -> None:
    if not isinstance(producer, str):
        raise SettingRefused("producer", f"{producer!r:.80}", "text: the name of the source of the rows")
    if (first_id is None) == (id_column is None):
        found = "neither of them" if first_id is None else "both of them"
        raise SettingRefused("first_id or id_column", found, "the id of the first row, or the column of ids")
    if first_id is not None and (not isinstance(first_id, SupportsIndex) or isinstance(first_id, bool)):
        raise SettingRefused("first_id", f"{first_id!r:.80}", "an integer")


def _ignore(doing: str) -> None:
    """The default for what reports its progress in words."""
