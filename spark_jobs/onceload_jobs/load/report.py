"""The result of a load, and how long its phases took."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from onceload_core.errors import ExitCode
from onceload_core.names import Batch, Position
from onceload_core.postgres import PostgresLedger
from onceload_jobs.files.notes import Ignored, Note, code_of, held_in_words, problems_of
from onceload_jobs.load.settings import Engine
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.bad_records import note_nothing_good


class Phase(StrEnum):
    #: Register the pipeline, list the files, and compare them with the ledger.
    PLAN = "plan"
    #: Start Spark. Counted only if nothing is read in the meantime.
    START = "start"
    #: Sessions read the files. With publish: direct, they also commit the rows; otherwise they stage them.
    #: For rows that a program gives: wait for the program.
    STAGE = "stage"
    #: Check the staged rows with the suite.
    AUDIT = "audit"
    #: Write the staged rows and the proof in one transaction. For rows that a program gives: write them.
    PUBLISH = "publish"
    #: Wait for other loads of the pipeline.
    WAIT = "wait"
    #: Read the result from the ledger, and take a snapshot if one is due.
    END = "end"


class Stopwatch:
    """The seconds of each phase so far. Exactly one phase runs at any time, so their sum is the time of the load."""

    def __init__(self, first: Phase = Phase.PLAN) -> None:
        self._phase, self._since = first, time.monotonic()
        self._seconds: dict[Phase, float] = {}

    def switch_to(self, phase: Phase) -> Phase:
        """End the phase that runs, and return it."""
        ended, now = self._phase, time.monotonic()
        self._seconds[ended] = self._seconds.get(ended, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return ended

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Time another phase, then resume the interrupted one."""
        interrupted = self.switch_to(phase)
        try:
            yield
        finally:
            self.switch_to(interrupted)

    def seconds(self) -> dict[Phase, float]:
        """The seconds of each phase so far, including the one that runs."""
        self.switch_to(self._phase)
        return dict(self._seconds)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a load, from the ledger."""

    pipeline: str
    batch: Batch
    position: Position
    #: The number of the version of the declaration that it was loaded with.
    version: int | None = None
    loaded: int = 0
    duplicates: int = 0
    quarantined: int = 0
    filtered: int = 0
    #: The files whose old rows were deleted in the commit of the new ones, with the number of old rows.
    replaced: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    seconds: float = 0.0
    #: The seconds that each phase took; their sum is `seconds`.
    seconds_of: dict[Phase, float] = field(default_factory=dict)
    #: What ran the workers, and why; None if there was nothing to load.
    engine: Engine | None = None
    engine_why: str | None = None
    #: The pages of Spark that show its jobs.
    spark_ui: str | None = None
    #: Rows that wait to be published; None if nothing was staged, or all of it is published.
    staged: int | None = None
    notes: tuple[Note, ...] = ()
    #: Fields without a column, which were not loaded, with the number of records that have them …
    ignored_fields: Mapping[str, int] = field(default_factory=dict)
    #: … among those that were looked at.
    ignored_of: int = 0

    @property
    def records(self) -> int:
        """How many records were read, whatever became of them."""
        return self.loaded + self.duplicates + self.quarantined + self.filtered

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ends with this."""
        return code_of(self.notes, is_idle=not self.records)

    @property
    def problems(self) -> str:
        """The files that need a person, each with its reason; empty if there are none."""
        return problems_of(self.notes)

    @property
    def held(self) -> str:
        """The files that other runs hold, each with its reason; empty if there are none."""
        return held_in_words(self.notes)

    @property
    def rows_per_s(self) -> int:
        return round(self.loaded / self.seconds) if self.seconds else 0

    def with_notes(self, notes: Iterable[Note]) -> "Report":
        """With the notes about files, and all fields that were ignored."""
        some = tuple(notes)
        ignored = sum((note.ignored for note in some if note.ignored is not None), self.ignored)
        kept = tuple(note for note in some if note.ignored is None)
        return replace(self, notes=kept, ignored_fields=dict(ignored.fields), ignored_of=ignored.records)

    def timed(self, stopwatch: Stopwatch) -> "Report":
        seconds_of = stopwatch.seconds()
        return replace(self, seconds=sum(seconds_of.values()), seconds_of=seconds_of)

    @property
    def ignored(self) -> Ignored:
        return Ignored.of(self.ignored_fields, records=self.ignored_of)

    def and_then(self, later: "Report") -> "Report":
        """The sum of two consecutive loads of one batch."""
        ignored = self.ignored + later.ignored
        return replace(
            later,
            ignored_fields=dict(ignored.fields),
            ignored_of=ignored.records,
            loaded=self.loaded + later.loaded,
            duplicates=self.duplicates + later.duplicates,
            quarantined=self.quarantined + later.quarantined,
            filtered=self.filtered + later.filtered,
            replaced={**self.replaced, **later.replaced},
            bytes=self.bytes + later.bytes,
            seconds=self.seconds + later.seconds,
            seconds_of={
                phase: self.seconds_of.get(phase, 0.0) + later.seconds_of.get(phase, 0.0)
                for phase in self.seconds_of | later.seconds_of
            },
        )


def report_of(ledger: PostgresLedger, declared: Declared, batch: Batch, *, after: Position) -> Report:
    """The result of a batch since a position, from the ledger, regardless of lost answers.

    Its notes are about files of which all records are bad. Earlier calls of the batch count for these: one that was
    killed after its commit could not report them.
    """
    name = declared.name
    outcome = ledger.outcome_of(name, batch, after=after)
    counts = outcome.counts
    return Report(
        pipeline=name,
        batch=batch,
        position=outcome.position,
        loaded=counts.loaded,
        duplicates=counts.duplicate,
        quarantined=counts.quarantined,
        filtered=counts.filtered,
        replaced=ledger.replaced_by(name, batch, after=after) if outcome.has_replaced else {},
        bytes=outcome.bytes,
        notes=note_nothing_good(declared, ledger.all_bad(name, batch)) if outcome.has_quarantined else (),
    )
