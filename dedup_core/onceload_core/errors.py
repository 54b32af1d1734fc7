"""All errors, sorted by what the caller does next. Some are defined in the module that raises them.

OnceloadError
├── CallAgain              not all was done; retry the same call                  (exit 1)
│   ├── AlreadyConsumed      another run committed some of these records first
│   ├── ClaimedElsewhere     another session is loading them: retry after its deadline
│   ├── NotAlone             another load started or committed between the plan and the claim
│   ├── DeclarationChanged   the pipeline file was edited while this load ran
│   ├── SessionFenced        a later epoch of this session took over: this process must stop
│   ├── DeliveryTakenAway    the delivery expired, and another session may hold it: take the next one
│   ├── PipelineBusy         another worker holds the commit lock or runs a recovery
│   ├── PipelinePaused       a user paused this pipeline; Airflow does not retry
│   ├── DatabaseLost         the connection failed before the COMMIT of any row was sent
│   │   └── DatabaseUnreachable no server answers, or it accepts no connection at the moment
│   ├── UpgradeUnfinished    the releases of the schema and of this installation are incompatible
│   ├── TookTooLong          a page of the console waited too long for the database
│   ├── TableHeld            other transactions hold the target, so that it cannot be changed
│   ├── QueryChanged         a table that the query of a transform reads was altered
│   ├── RowsLost             rows that a verification read are gone from its folder
│   ├── StageLost            the server lost the staged rows
│   ├── NoRoom               the folder for the rows of a batch cannot be written
│   ├── RowsLost             rows that waited there to be copied were lost several times
│   ├── NothingKept          no rows of this batch are staged
│   ├── NotStarted           a part of Airflow or Spark exited, or did not answer in time
│   ├── AirflowUnfit         Airflow refused, or did not reach the expected state in time
│   ├── ConnectionNotFound   Airflow has no connection for the database, or could not be asked for it
│   ├── NoDraft              no sample could be read to draft a pipeline file from
│   ├── Unreadable           a source file is gone, or its store fails
│   │   └── FileRewritten    a file no longer holds what was planned
│   ├── QueryOutdated        a query of Spark planned to read a file that was rewritten since
│   ├── TasksFailed          Spark lost an executor, or gave up a task
│   ├── SparkUnreachable     no Spark Connect server answers at the given address
│   ├── LastLineOpen         a file was read up to its last line, which is still being written
│   │   └── TailWentOn       that line was taken for complete, and has grown since
│   └── Incomplete           a compressed file is truncated: it is still being written
├── WrongUse               the call, the settings or the installation must change (exit 2)
│   ├── NotASpan             a span or sequence id out of bounds
│   ├── NotAudited           a batch that has not passed the audit of its pipeline
│   ├── EditRefused          an edit of the pipeline file that would change the meaning of loaded records
│   ├── LoadedByAnother      another pipeline has loaded the same files into the same table
│   ├── LoadedUnderOtherName the same files are loaded, when their names began in another folder
│   ├── NotFound             no pipeline, session, producer or snapshot of this name
│   ├── OfferRefused         rows from a program whose ids or form are wrong
│   ├── PipelineFileRefused  an invalid pipeline file
│   ├── SettingRefused       an invalid setting or argument
│   │   └── CommitRefused    the target was altered since the load began
│   ├── SparkRefused         Spark does not start with these options or this Java
│   ├── DatabaseRefused      wrong password, database or options
│   │   └── RightMissing       the user lacks a right on a schema, a table or a function
│   └── SchemaRefused        the schema is missing, unreleased or of another project
├── AskTheLedger           only the ledger knows the answer                       (exit 3)
│   ├── CommitOutcomeUnknown the connection ended after COMMIT was sent
│   └── ChangeOutcomeUnknown the same, for a change that loads no rows, such as a pause
└── NeedsAPerson           continuing could lose or repeat records                (exit 4)
    ├── AuditFailed          staged rows fail a critical expectation
    ├── BatchIncomplete      a part of a batch could not be staged
    ├── Damaged              a compressed file cannot be decompressed
    │   └── WindowTooLarge     the same, because it would take too much memory
    ├── FileRefused          a file does not match its format or the declared columns
    ├── LimitReached         producers_max or islands_max would be exceeded
    ├── NoGoodRow            every row from a program is bad
    ├── NothingGood          every record of a file is bad
    ├── OtherRelease         stored work has a form that this release does not know
    ├── ReplacedRowsDiffer   the target holds more or fewer old rows of a file to replace than were loaded
    ├── RowsDiffer           the database wrote fewer or more rows than the receipts of the commit state
    ├── RowsRefused          a constraint of the target refuses rows of a staged batch
    ├── SealedLineContinued  a last line that counted as sealed has grown since its batch was staged
    ├── SnapshotDamaged      a snapshot is truncated, edited or of a newer format
    ├── StateDiffers         the ledger and the live state disagree
    │   └── SnapshotRefused    the same, found when a snapshot was due
    ├── StoryDiffers         a step of the demo had another result than it shows
    ├── TransformRefused     the transform returns values that do not fit their columns
    ├── TooManyQuarantined   more bad records than the pipeline allows
    └── TransactionEnded     write_rows ended the transaction of the commit
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from shlex import quote
from typing import ClassVar

from onceload_core.commands import PIPELINE_FILE
from onceload_core.messages import never_failing, notes_of, some


class ExitCode(IntEnum):
    """The exit code of a process."""

    DONE = 0
    CALL_AGAIN = 1
    WRONG_USE = 2
    OUTCOME_UNKNOWN = 3
    NEEDS_A_PERSON = 4


@dataclass(eq=False)
class OnceloadError(Exception):
    """The facts are fields, `str` is the message. Every error survives pickling, and can be printed."""

    exit_code: ClassVar[ExitCode] = ExitCode.CALL_AGAIN

    def __init_subclass__(cls) -> None:
        if message := cls.__dict__.get("__str__"):
            cls.__str__ = never_failing(message)  # type: ignore[method-assign]

    def __reduce__(self) -> tuple[object, ...]:
        # Airflow and Spark pickle errors between processes. Exception would be rebuilt from its text alone.
        return type(self), tuple(getattr(self, field.name) for field in fields(self)), notes_of(self)


class CallAgain(OnceloadError):
    """Not all was done. Committed rows stay committed, and the same call does the rest."""


class WrongUse(OnceloadError):
    """The call was refused, and would be refused again. Rows that it committed before stay committed."""

    exit_code = ExitCode.WRONG_USE


class AskTheLedger(OnceloadError):
    """The commit may or may not have taken effect. Only the ledger knows."""

    exit_code = ExitCode.OUTCOME_UNKNOWN


class NeedsAPerson(OnceloadError):
    """Files or steps were left out: to continue could lose or repeat records. Committed rows stay committed."""

    exit_code = ExitCode.NEEDS_A_PERSON


@dataclass(eq=False)
class AlreadyConsumed(CallAgain):
    pipeline: str
    producers: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: another run already committed at least a part of {some(self.producers)}. "
            "Nothing was written. Retry: records that are already loaded are skipped."
        )


@dataclass(eq=False)
class ClaimedElsewhere(CallAgain):
    pipeline: str
    producer: str
    span: str
    holder: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: {self.holder} is loading a part of {self.producer} {self.span}. Nothing was "
            f"written. Retry when its claim has ended: see `onceload sessions --pipeline {quote(self.pipeline)}`."
        )


@dataclass(eq=False)
class NotAlone(CallAgain):
    pipeline: str
    position: int
    found: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: this load was planned at position {self.position}, and since then "
            f"{self.found}. Nothing was written. The plan may be out of date. Retry: the load plans again."
        )


@dataclass(eq=False)
class SessionFenced(CallAgain):
    pipeline: str
    session: str
    epoch: int

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: session {self.session} is no longer in epoch {self.epoch}: a process of the "
            "same session name, or a recovery, took over. Nothing was written. Stop this process. Start it again only "
            "if no other process has this session name."
        )


@dataclass(eq=False)
class DeliveryTakenAway(CallAgain):
    pipeline: str
    delivery: int
    session: str
    epoch: int
    state: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: this worker lost delivery {self.delivery}: session {self.session} held it in "
            f"epoch {self.epoch}, but now it is {self.state}. Nothing was written. Drop this delivery and take the "
            "next one."
        )


@dataclass(eq=False)
class PipelineBusy(CallAgain):
    pipeline: str
    waited_for: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline} is busy: another worker blocked this call with {self.waited_for}. Nothing was "
            "written. Retry."
        )


@dataclass(eq=False)
class DatabaseLost(CallAgain):
    doing: str
    reason: str

    def __str__(self) -> str:
        return f"the database failed while {self.doing}: {self.reason}. Nothing more was committed. Retry."


@dataclass(eq=False)
class DatabaseUnreachable(DatabaseLost):
    fix: str

    def __str__(self) -> str:
        return (
            f"the database cannot be reached: {self.doing} failed: {self.reason}. Nothing more was written. {self.fix}"
        )


@dataclass(eq=False)
class UpgradeUnfinished(CallAgain):
    installed: str
    found: str
    fix: str

    def __str__(self) -> str:
        return (
            f"an upgrade is not finished: the schema onceload is {self.found}, and this installation is made for "
            f"revision {self.installed}. Nothing was changed. {self.fix} Then retry. Airflow retries its "
            "tasks by itself."
        )


@dataclass(eq=False)
class NotFound(WrongUse):
    what: str
    name: str
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        known = f"Known: {some(self.known)}." if self.known else _NONE_KNOWN.get(self.what, "Check the name or id.")
        done = "Nothing was loaded" if self.what == "source folder" else "Nothing was changed"
        return f"{self.what} not found: {self.name!r}. {done}. {known}"


#: Errors about these list all known names.
_NONE_KNOWN = {
    "pipeline": "There is none yet.",
    "snapshot": "There is none yet.",
    "source folder": "Create the folder, or correct source.path.",
}


@dataclass(eq=False)
class SettingRefused(WrongUse):
    setting: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.setting}: found {self.found}. Nothing was changed. Expected {self.expected}."


@dataclass(eq=False)
class DatabaseRefused(WrongUse):
    reason: str

    def __str__(self) -> str:
        return (
            f"the database refused access: {self.reason}. Nothing more was written. Check ONCELOAD_DSN (user, "
            "password, database), and grant the user its role (docs/how-to/roles.md)."
        )


@dataclass(eq=False)
class SchemaRefused(WrongUse):
    expected: str
    found: str
    fix: str

    def __str__(self) -> str:
        return (
            f"the schema onceload is {self.found} (expected: {self.expected}). Nothing was changed. "
            f"{self.fix[:1].upper()}{self.fix[1:]}"
        )


@dataclass(eq=False)
class CommitOutcomeUnknown(AskTheLedger):
    pipeline: str
    batch: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}, batch {self.batch}: the database did not answer COMMIT ({self.reason}). The "
            "commit took effect completely or not at all. Run the same command again: it asks the ledger first. In "
            "your own code, judge the same spans again before you write anything."
        )


@dataclass(eq=False)
class LimitReached(NeedsAPerson):
    pipeline: str
    limit: str
    allowed: int
    found: int

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: {self.limit} allows {self.allowed}, and this load would need {self.found}. "
            f"Nothing was written. {_LIMIT_FIXES[self.limit]}"
        )


_LIMIT_FIXES = {
    "islands_max": "First load the gaps between the spans that are loaded, or raise islands_max.",
    "producers_max": "Raise producers_max. If records name the producers, forget_idle_after is another way: `onceload "
    "maintain` then deletes idle ones.",
}


@dataclass(eq=False)
class RowsRefused(NeedsAPerson):
    pipeline: str
    table: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: {self.table} refused rows of the batch: {self.reason}. Nothing was loaded. Fix "
            "the records or the rule. With publish: direct, such records go to quarantine instead."
        )


@dataclass(eq=False)
class SnapshotDamaged(NeedsAPerson):
    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"snapshot {self.path} cannot be used: expected {self.expected}, found {self.found}. Nothing was changed. "
            "Use another copy, or take a new snapshot."
        )


@dataclass(eq=False)
class StateDiffers(NeedsAPerson):
    pipeline: str
    position: int
    producers: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: the database at position {self.position} differs from the ledger "
            f"for {some(self.producers)}. Nothing was changed. Compare the producers with `onceload recover "
            f"state --pipeline {quote(self.pipeline)} --dry-run`, and the rows with `onceload verify {PIPELINE_FILE}`."
        )


@dataclass(eq=False)
class SnapshotRefused(StateDiffers):
    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: no snapshot was taken at position {self.position}, because the live state "
            f"differs from the ledger for {some(self.producers)}. A load could lose or repeat records. To "
            f"repair it, run `onceload recover state --pipeline {quote(self.pipeline)}`, first with --dry-run."
        )


@dataclass(eq=False)
class TooManyQuarantined(NeedsAPerson):
    pipeline: str
    quarantined: int
    records: int
    allowed: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: {self.quarantined} of {self.records} records are bad, and quarantined_max "
            f"allows {self.allowed}. One of the reasons: {self.reason}. None of them was loaded. Fix the source, or "
            "raise quarantined_max."
        )
