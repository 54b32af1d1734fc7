"""How far each pipeline is behind its files; measured in the background, because a listing may take long."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import Engine

from onceload.pipeline_file import find_pipelines, read_pipeline
from onceload.placeholders import GIVEN
from onceload.terminal import words
from onceload_core.errors import OnceloadError
from onceload_core.postgres import PostgresLedger
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.plan import Plan, make_plan

#: Replaces the date, because placeholder values must not contain wildcards.
_ANY_DAY = "onceload-any-day"
#: As many of the files that need a person are kept by name.
_NOTES_MAX = 100


@dataclass(frozen=True, kw_only=True)
class Lag:
    """The files and bytes that were not loaded when the files were last listed."""

    #: Including files that are being loaded.
    files: int
    #: Of the files that a load would read.
    bytes: int
    #: When the oldest of these files was modified, in seconds since 1970, if the store reports it.
    oldest_at: float | None
    #: How many files cannot be read or need a person, and the first of them.
    refused: int
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> "Lag":
        refused = [note for note in plan.notes if note.needs_a_person or note.is_unreadable]
        modified = [each.listed.modified_at for each in plan.to_read if each.listed.modified_at is not None]
        return cls(
            files=len(plan.to_read) + sum(note.is_busy for note in plan.notes),
            bytes=sum(file.bytes for file in plan.to_read),
            oldest_at=min(modified, default=None),
            refused=len(refused),
            notes=tuple(refused[:_NOTES_MAX]),
        )


@dataclass(frozen=True, kw_only=True)
class Described:
    """A pipeline file, and what it declares for all days."""

    path: Path
    declared: Declared


@dataclass
class Behind:
    """The lag of each pipeline behind its files."""

    engine: Engine
    folder: Path
    #: By the name of the pipeline: when it was measured, by the monotonic clock, and what was found.
    seen: dict[str, tuple[float, Lag]] = field(default_factory=dict)
    #: By the name of the pipeline, or of its file if the file cannot be read.
    failed: dict[str, str] = field(default_factory=dict)
    #: The pipeline files that can be read, by the name of the pipeline.
    described: dict[str, Described] = field(default_factory=dict)

    def look(self) -> None:
        """Measure every pipeline; if one fails, its last values stay, and their age shows it."""
        seen: dict[str, tuple[float, Lag]] = {}
        failed: dict[str, str] = {}
        described: dict[str, Described] = {}
        for path in find_pipelines(self.folder):
            name = str(path)
            try:
                declared = read_for_all_days(path)
                name = declared.name
                described[name] = Described(path=path, declared=declared)
                plan = make_plan(declared, PostgresLedger(self.engine), now_s=time.time())
                seen[name] = (time.monotonic(), Lag.of(plan))
            except (OnceloadError, OSError, ValueError) as error:
                failed[name] = str(error)
                if name in self.seen:
                    seen[name] = self.seen[name]
        self._report(failed)
        self.seen, self.failed, self.described = seen, failed, described

    def _report(self, failed: Mapping[str, str]) -> None:
        for name, reason in failed.items():
            if self.failed.get(name) != reason:
                words(f"the lag of {name} is unknown: {reason}")

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


def read_for_all_days(path: Path) -> Declared:
    """A pipeline file; if its path contains a date, with a wildcard in place of the date."""
    declared = read_pipeline(path, offered=dict.fromkeys(GIVEN, _ANY_DAY))
    return replace(declared, source=replace(declared.source, path=declared.source.path.replace(_ANY_DAY, "*")))
