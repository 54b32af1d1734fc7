"""How far each pipeline is behind its files; measured in the background, because a listing may take long."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from onceload.named_files import with_file
from onceload.pipeline_file import find_pipelines, read_pipeline
from onceload.placeholders import GIVEN
from onceload.terminal import time_in_words, words
from onceload_core.declaration import LoadedByAnother
from onceload_core.errors import DatabaseLost, OnceloadError
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.attempts import Left, find_left
from onceload_core.postgres.rewound import find_all_owed
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.plan import Plan, make_plan
from onceload_jobs.plan.to_read import FileToRead
from onceload_jobs.verify.rewound import Lost

#: Replaces the date, because placeholder values must not contain wildcards.
_ANY_DAY = "onceload-any-day"
#: The longest wait is remembered for so many hours.
HOURS = 48
#: A listing that takes longer than this may never end, as of a store that does not answer.
_STALE_AFTER_S = 1800.0
#: As many of the files that wait, and of those that need a person, are kept by name.
_NAMES_MAX = 100


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A file that is not loaded yet, or not completely."""

    name: str
    why: str
    #: The first byte or row that the next load reads, and how many bytes; None if it reads nothing of the file.
    first: int | None = None
    bytes: int | None = None
    modified: datetime | None = None

    @classmethod
    def to_read(cls, file: FileToRead) -> "Waiting":
        return cls(
            name=file.listed.name,
            why="has grown" if file.why == "new" and not file.is_new else file.why,
            first=file.spans[0][0],
            bytes=file.bytes,
            modified=_moment(file.listed.modified_at),
        )


@dataclass(frozen=True, kw_only=True)
class Lag:
    """The files and bytes that were not loaded when the files were last listed."""

    #: Whether any file matches the path.
    has_files: bool
    #: Including files that are being loaded.
    files: int
    #: Of the files that a load would read.
    bytes: int
    #: Since when the file has been waiting that waits for longest, in seconds since 1970.
    waiting_since: float | None
    #: How many files cannot be read or need a person, and the first of them.
    refused: int
    #: Those of them that cannot be read.
    unreadable: int = 0
    notes: tuple[Note, ...] = ()
    #: How many other files are not loaded, or not completely, and the first of them: what the next load reads, the
    #: oldest before others, and then what it leaves out.
    others: int = 0
    waiting: tuple[Waiting, ...] = ()
    #: Files with records that a rewind rolled back, and that no load can load again as the files are now.
    lost: int = 0
    #: Problems of the listing as a whole, such as an empty folder.
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Described:
    """A pipeline file, and what it declares for all days."""

    path: Path
    declared: Declared


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Why the lag of a pipeline is not known."""

    reason: str
    #: The pipeline file is wrong. Everything else may be known at the next attempt.
    is_of_file: bool
    #: The source can be read, but another pipeline has loaded its files.
    is_of_another: bool = False


@dataclass(frozen=True)
class _Seen:
    """A file that waits: since when, in seconds since 1970, and from which byte or row on, if that is known."""

    since: float
    first: int | None


@dataclass
class Behind:
    """The lag of each pipeline behind its files."""

    engine: Engine
    folder: Path
    #: Makes the store of a path accessible.
    reaching: Callable[[str], AbstractContextManager[None]] = field(default=lambda _: nullcontext())
    #: By the name of the pipeline: when it was measured, by the monotonic clock, and what was found.
    seen: dict[str, tuple[float, Lag]] = field(default_factory=dict)
    #: By the name of the pipeline, or of its file if the file cannot be read.
    failed: dict[str, Unknown] = field(default_factory=dict)
    #: The pipeline files that can be read, by the name of the pipeline.
    described: dict[str, Described] = field(default_factory=dict)
    #: By the name of the pipeline and the hour since 1970: the longest time, in seconds, for which files had waited
    #: when they were listed. Hours without a listing are missing.
    waits: dict[str, dict[int, float]] = field(default_factory=dict)
    _before: dict[str, dict[str, _Seen]] = field(default_factory=dict)
    #: The pipeline whose source is being listed, and since when, by the monotonic clock.
    _listing: tuple[str, float] | None = None

    def look(self, *, only: str | None = None) -> None:
        """Read the pipeline files, and measure every pipeline or one."""
        failed = self.read()
        if only is not None:
            self.described = {name: each for name, each in self.described.items() if name == only}
        self.measure(failed)

    def read(self) -> dict[str, Unknown]:
        """Read the pipeline files, and return those that are wrong."""
        failed: dict[str, Unknown] = {}
        described: dict[str, Described] = {}
        for path in find_pipelines(self.folder):
            try:
                declared = read_for_all_days(path)
                described[declared.name] = Described(path=path, declared=declared)
            except (OnceloadError, OSError, ValueError) as error:
                failed[str(path)] = Unknown(reason=" ".join(str(error).split()), is_of_file=True)
        self.described = described
        return failed

    def measure(self, failed: dict[str, Unknown]) -> None:
        """Measure every pipeline; if one fails, its last values stay, and their age shows it."""
        described = self.described
        for name, each in described.items():
            self._listing = name, time.monotonic()
            try:
                lag = self._lag_of(each.declared)
                # As soon as it is known, because others may take long.
                self.seen = {**self.seen, name: (time.monotonic(), lag)}
                self._remember(name, lag)
            except (DatabaseLost, DBAPIError):
                # The source is not the cause, and all others would fail too.
                raise
            except LoadedByAnother as error:
                failed[name] = Unknown(reason=with_file(str(error), each.path), is_of_file=False, is_of_another=True)
            except Exception as error:  # noqa: BLE001 - libraries of stores raise errors of their own.
                reason = with_file(str(error), each.path) or type(error).__name__
                failed[name] = Unknown(reason=reason, is_of_file=False)
            finally:
                self._listing = None
        self._report(failed)
        self.seen = {name: seen for name, seen in self.seen.items() if name in described}
        self.failed = failed

    def unknown(self, name: str) -> Unknown | None:
        """Why the lag of a pipeline is not known, or no longer, as if a listing does not end."""
        found = self._listing
        if name in self.failed or found is None:
            return self.failed.get(name)
        listing, since = found
        listed_at = min(since, self.seen[name][0] if name in self.seen else since)
        now = time.monotonic()
        if now - since < _STALE_AFTER_S:
            return None
        took = f"listing the files of {listing} has not ended for {time_in_words(now - since)}"
        reason = (
            took if name == listing else f"its files were last listed {time_in_words(now - listed_at)} ago, as {took}"
        )
        return Unknown(reason=reason, is_of_file=False)

    def _lag_of(self, declared: Declared) -> Lag:
        ledger, now = PostgresLedger(self.engine), time.time()
        # Read this first: what is loaded meanwhile is not in the plan.
        left = find_left(self.engine, declared.name)
        owed = find_all_owed(self.engine, only=declared.name).get(declared.name, ())
        with self.reaching(declared.source.path):
            plan = _naming(self.described[declared.name].path, make_plan(declared, ledger, now_s=now))
            lost = Lost(declared, self.engine)
            # Files that the next load reads, or that one reads now, are not lost.
            read = {file.listed.name for file in plan.to_read} | {note.name for note in plan.notes if note.is_busy}
            of_files = [each for each in owed if not each.is_of_program and each.producer not in read]
            lost_files = sum(lost.why(each) is not None for each in of_files)
        refused = [note for note in plan.notes if _is_refused(note)]
        waiting = _waiting(plan)
        remarks = [
            f"{note.name}: {note.reason}" for note in plan.notes if note in plan.remarks and not _is_refused(note)
        ]
        seen = _waiting_since(plan, left, self._before.get(declared.name, {}), now=now)
        self._before[declared.name] = seen
        return Lag(
            has_files=plan.has_files,
            files=len(seen),
            bytes=sum(file.bytes for file in plan.to_read),
            waiting_since=min((file.since for file in seen.values()), default=None),
            refused=len(refused),
            unreadable=sum(not note.needs_a_person for note in refused),
            notes=tuple(refused[:_NAMES_MAX]),
            others=len(waiting),
            lost=lost_files,
            waiting=tuple(islice(waiting.values(), _NAMES_MAX)),
            remarks=tuple(remarks[:_NAMES_MAX]),
        )

    def _remember(self, name: str, lag: Lag) -> None:
        now = time.time()
        hour = int(now // 3600)
        kept = {each: waited for each, waited in self.waits.get(name, {}).items() if each > hour - HOURS}
        waited = 0.0 if lag.waiting_since is None else now - lag.waiting_since
        self.waits[name] = kept | {hour: max(waited, kept.get(hour, 0.0))}

    def _report(self, failed: Mapping[str, Unknown]) -> None:
        for name, unknown in failed.items():
            if self.failed.get(name) != unknown:
                words(f"the lag of {name} is unknown: {unknown.reason}")

    @contextmanager
    def measuring(self, *, every_s: float) -> Iterator[None]:
        """Measure repeatedly while the block runs."""
        ended = threading.Event()

        def look() -> None:
            while True:
                try:
                    self.look()
                except Exception as error:  # noqa: BLE001 - the next attempt may succeed, and the metrics show the age.
                    words(f"the lag is unknown: {error}")
                if ended.wait(every_s):
                    return

        # A daemon, because the process may end during a long listing.
        threading.Thread(target=look, name="onceload lag", daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def _moment(modified_at: float | None) -> datetime | None:
    # A file may have any time.
    with suppress(ValueError, OverflowError, OSError):
        return None if modified_at is None else datetime.fromtimestamp(modified_at, UTC)
    return None


def _is_refused(note: Note) -> bool:
    return note.needs_a_person or note.is_unreadable


def _waiting(plan: Plan) -> dict[str, Waiting]:
    """By its name, each file that is not loaded completely."""
    waiting = {file.listed.name: Waiting.to_read(file) for file in sorted(plan.to_read, key=_age) if file.spans}
    for note in plan.notes:
        if note.ignored is None and note not in plan.remarks and not _is_refused(note):
            known = waiting.get(note.name)
            waiting[note.name] = (
                Waiting(name=note.name, why=note.reason)
                if known is None
                else replace(known, why=f"{known.why}; {note.reason}")
            )
    return waiting


def _age(file: FileToRead) -> tuple[float, str]:
    return file.listed.modified_at or 0.0, file.listed.name


def _naming(file: Path, plan: Plan) -> Plan:
    """The plan, with the pipeline file in the commands of its notes."""

    def named(notes: Iterable[Note]) -> tuple[Note, ...]:
        return tuple(replace(note, reason=with_file(note.reason, file)) for note in notes)

    return replace(plan, notes=named(plan.notes), remarks=frozenset(named(plan.remarks)))


def _waiting_since(plan: Plan, left: Left, before: Mapping[str, _Seen], *, now: float) -> dict[str, _Seen]:
    """Since when each file has been waiting.

    A load that leaves a file records since when it waits, and no other commit changes that. Another file came at the
    time of its modification, which may be any. But it was not there when the last load began that left nothing else,
    and one that grows was modified only now: an earlier look remembers it, as long as nothing of it is loaded.
    """
    firsts = {file.listed.name: file.spans[0][0] for file in plan.to_read if file.spans}
    found = {}
    for name, modified_at in plan.waiting.items():
        first, known = firsts.get(name), before.get(name)
        came = min(now if modified_at is None else modified_at, now)
        if known is not None and first == known.first:
            came = min(came, known.since)
        since = left.since.get(name, came if left.looked_at is None else max(came, left.looked_at))
        # A clock that was ahead may have noted any of them.
        found[name] = _Seen(since=min(now, since), first=first)
    return found


def read_for_all_days(path: Path) -> Declared:
    """A pipeline file; if its path contains a date, with a wildcard in place of the date."""
    declared = read_pipeline(path, offered=dict.fromkeys(GIVEN, _ANY_DAY))
    return replace(declared, source=replace(declared.source, path=declared.source.path.replace(_ANY_DAY, "*")))
