"""What can go wrong, sorted by what the caller does next.

OnceloadError
├── CallAgain              nothing was changed; the same call may be made again   (exit 1)
│   ├── AlreadyConsumed      somebody committed these spans first: judge again
│   ├── ClaimedElsewhere     a live worker is loading them: come back after its deadline
│   ├── NotAlone             another load came between the plan and the claim: plan again
│   ├── DeclarationChanged   the pipeline file was edited while this load ran
│   ├── SessionFenced        a later life of this session took over: this one must stop
│   ├── DeliveryTakenAway    the delivery fell back, and another may have it: take the next one
│   ├── PipelineBusy         the commit lock, or the one recovery, is held by somebody else
│   ├── DatabaseLost         the connection ended before the COMMIT of any row was sent
│   │   └── DatabaseUnreachable no server answers, or it lets no session in just now
│   ├── UpgradeUnfinished    the schema and this installation are of releases that do not go together
│   ├── StageLost            the server lost the rows that waited to be published
│   ├── NothingKept          no rows of this batch wait to be published
│   ├── NotStarted           a part of Airflow or Spark ended, or did not answer in time
│   ├── AirflowUnfit         Airflow refused, or did not come to what was waited for
│   ├── ConnectionNotFound   no connection of Airflow's says where the database is, or it could not be asked
│   ├── Unreadable           a source's file is gone, or its store fails
│   │   └── WrittenAnew        what was planned of a file is there no more
│   ├── TasksFailed          Spark lost an executor, or gave a task up
│   ├── LastLineOpen         all of a file was read but its last line, which is still being written
│   │   └── TailWentOn       that line counted as sealed, and has gone on since
│   └── Incomplete           a compressed file breaks off: it is still being written
├── WrongUse               the call, the settings or the installation must change (exit 2)
│   ├── NotASpan             a span or sequence id outside its bounds
│   ├── NotAudited           a batch that was not asked what its pipeline expects
│   ├── EditRefused          an edit of the pipeline file that would give what is loaded another meaning
│   ├── NotFound             no pipeline, session, producer or snapshot of this name
│   ├── PipelineFileRefused  a pipeline file that says what cannot be meant
│   ├── SettingRefused       a setting or an argument that cannot be meant
│   ├── DatabaseRefused      wrong password, database, options or rights
│   └── SchemaRefused        the schema is missing, unreleased or of another project
├── AskTheLedger           only the ledger knows the answer                       (exit 3)
│   └── CommitOutcomeUnknown the connection ended after COMMIT was sent
└── NeedsAPerson           going on could lose or repeat records                  (exit 4)
    ├── AuditFailed          staged rows that do not meet a critical expectation
    ├── BatchIncomplete      a part of a batch that is published whole could not be staged
    ├── Damaged              a compressed file that does not unpack
    ├── FileRefused          a file that is not of its format, or not of the declared columns
    ├── LimitReached         producers_max or islands_max
    ├── NothingGood          files of which every record is bad
    ├── ReplacedRowsDiffer   the target holds more or fewer old rows of a file to replace than were loaded
    ├── RowsDiffer           the database wrote fewer or more rows than the receipts of the commit would say
    ├── RowsRefused          a batch that is published at once, and that the target's own rules refuse
    ├── SnapshotDamaged      a snapshot file that is cut, edited or of a newer format
    ├── StateDiffers         the ledger and the live state disagree
    │   └── SnapshotRefused    the same, seen when a snapshot was due
    ├── StoryDiffers         something that the demo tells did not hold
    ├── TransformRefused     the transform makes values that their columns do not take
    ├── TooManyQuarantined   more bad records than the pipeline allows
    └── TransactionEnded     whoever writes the rows ended the commit's transaction
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a process says when it ends."""

    DONE = 0
    CALL_AGAIN = 1
    WRONG_USE = 2
    OUTCOME_UNKNOWN = 3
    NEEDS_A_PERSON = 4


@dataclass(eq=False)
class OnceloadError(Exception):
    """Facts as fields, one sentence as text; every error survives pickling."""

    exit_code: ClassVar[ExitCode] = ExitCode.CALL_AGAIN

    def __reduce__(self) -> tuple[object, ...]:
        # Airflow and Spark carry errors between processes; Exception would rebuild from its text alone.
        return type(self), tuple(getattr(self, field.name) for field in fields(self))


class CallAgain(OnceloadError):
    """Nothing was changed; the same call may be made again."""


class WrongUse(OnceloadError):
    """Nothing was changed; the call, the settings or the installation must change."""

    exit_code = ExitCode.WRONG_USE


class AskTheLedger(OnceloadError):
    """The commit may or may not have happened; only the ledger knows."""

    exit_code = ExitCode.OUTCOME_UNKNOWN


class NeedsAPerson(OnceloadError):
    """Nothing was changed; going on could lose or repeat records."""

    exit_code = ExitCode.NEEDS_A_PERSON


@dataclass(eq=False)
class AlreadyConsumed(CallAgain):
    pipeline: str
    producers: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: an earlier commit already took effect for at least a part of "
            f"{_some(self.producers)}; nothing was written. Retry: what took effect before is skipped."
        )


@dataclass(eq=False)
class ClaimedElsewhere(CallAgain):
    pipeline: str
    producer: str
    span: str
    holder: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: {self.holder} is loading a part of {self.producer} {self.span}; nothing "
            "was written. Retry when its claim has ended: `onceload sessions --pipeline "
            f"{self.pipeline}` shows the sessions."
        )


@dataclass(eq=False)
class NotAlone(CallAgain):
    pipeline: str
    position: int
    found: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: this load was planned at position {self.position}, but by now {self.found}; "
            "nothing was written. The plan may be out of date: call again"
        )


@dataclass(eq=False)
class DeclarationChanged(CallAgain):
    pipeline: str
    version: int
    in_force: int

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: the pipeline file was edited while this load ran (it began with version "
            f"{self.version}, and version {self.in_force} is in force). What it had committed stays loaded; nothing "
            "more was written. Retry with the current file."
        )


@dataclass(eq=False)
class EditRefused(WrongUse):
    pipeline: str
    key: str
    before: str
    after: str

    def __str__(self) -> str:
        causes, fix = (text.format(before=self.before) for text in _EDITS[self.key])
        return (
            f"pipeline {self.pipeline}: {self.key} was changed from {self.before} to {self.after}, and records are "
            f"already loaded. {causes} Nothing was changed. Restore the old value, unless you want this change. {fix}"
        )


_START_AGAIN = (
    "To load everything again, first delete all loaded rows with the pipeline file as it was before: `onceload "
    "recover rewind FILE --position 0` (append targets with lineage), or load into a new database: `onceload recover "
    "rebuild`. To keep the loaded rows, give the pipeline another name and a source.path that matches new files only."
)
#: What each edit would cause, and how to do it on purpose.
_EDITS = {
    "source.root": (
        "source.root is the folder of source.path before its first wildcard, and file names start below it. Every "
        "file would get another name and be loaded again.",
        "If the folder was moved and the names below it stayed the same, or if source.path matches none of the loaded "
        "files any more, set `source.moved_from: {before}`. " + _START_AGAIN,
    ),
    "source.format": ("The rest of partly loaded files would be read in another format.", _START_AGAIN),
    "source.options": ("Records would begin and end at other bytes than those that were loaded.", _START_AGAIN),
    "producer": (
        "New records could be dropped as duplicates, and loaded ones could be loaded again.",
        _START_AGAIN,
    ),
    "message_id": (
        "New ids would be compared with remembered ids of the old columns, and new records could be dropped as "
        "duplicates.",
        "To start with other columns, remove message_id, load once, and then declare the new columns. Only ids from "
        "that load on are compared.",
    ),
    "producer.order": (
        "New records could be dropped as duplicates: with `ordered`, ids that were passed over count as loaded.",
        _START_AGAIN,
    ),
    "source.identity": (
        "Files that are loaded under another name would be loaded again.",
        _START_AGAIN,
    ),
    "target.table": (
        "The loaded rows would stay in {before}, where replace, rewind and verify would not look for them.",
        "If it is the same table under a new name, rename the table itself (ALTER TABLE ... RENAME TO ...). "
        + _START_AGAIN,
    ),
}


@dataclass(eq=False)
class SessionFenced(CallAgain):
    pipeline: str
    session: str
    epoch: int

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: session {self.session} is no longer in epoch {self.epoch}: a process of the "
            "same session name, or a recovery, took over; nothing was written. Stop this process. Start it again only "
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
            f"pipeline {self.pipeline}: this worker lost delivery {self.delivery}: it was held by session "
            f"{self.session} in epoch {self.epoch}, but it is {self.state}; nothing was written. Drop this delivery "
            "and take the next one."
        )


@dataclass(eq=False)
class PipelineBusy(CallAgain):
    pipeline: str
    waited_for: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: waited for {self.waited_for}, and it stayed held by another worker; "
            "nothing was written: call again"
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
class NotASpan(WrongUse):
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.found} is not a span of sequence ids: expected {self.expected}"


@dataclass(eq=False)
class NotFound(WrongUse):
    what: str
    name: str
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        known = f"known: {_some(self.known)}" if self.known else "there is none yet"
        return f"no {self.what} is called {self.name!r}; {known}"


@dataclass(eq=False)
class SettingRefused(WrongUse):
    setting: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.setting}: expected {self.expected}, found {self.found}; nothing was changed"


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
        return f"the schema onceload should be at {self.expected}, but is {self.found}; nothing was changed: {self.fix}"


@dataclass(eq=False)
class CommitOutcomeUnknown(AskTheLedger):
    pipeline: str
    batch: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}, batch {self.batch}: the database did not answer COMMIT ({self.reason}); the "
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
            f"pipeline {self.pipeline}: {self.limit} allows {self.allowed}, and this would make it {self.found}; "
            f"nothing was written: {_LIMIT_FIXES[self.limit]}"
        )


_LIMIT_FIXES = {
    "islands_max": "load the gaps between the spans that are consumed first, or raise islands_max",
    "producers_max": "set forget_idle_after, so that `onceload maintain` deletes idle producers that are named by "
    "records, or raise producers_max",
}


@dataclass(eq=False)
class RowsDiffer(NeedsAPerson):
    pipeline: str
    batch: str
    #: By the database's own count.
    written: int
    expected: int

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}, batch {self.batch}: the database wrote {self.written:,} rows instead of "
            f"{self.expected:,}. The commit was rolled back, and none of these rows is loaded. A trigger, a rule or a "
            "row-level security policy of the target discards or adds rows. Remove it, and load again."
        )


@dataclass(eq=False)
class RowsRefused(NeedsAPerson):
    pipeline: str
    table: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: {self.table} refused rows of the batch: {self.reason}; nothing was loaded. Fix "
            "the records or the rule. With publish: direct, such records go to quarantine instead."
        )


@dataclass(eq=False)
class SnapshotDamaged(NeedsAPerson):
    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"snapshot {self.path}: expected {self.expected}, found {self.found}; "
            "nothing was changed: use another copy, or take a new snapshot"
        )


@dataclass(eq=False)
class StateDiffers(NeedsAPerson):
    pipeline: str
    position: int
    producers: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: the database at position {self.position} does not match the ledger, and "
            f"differs for {_some(self.producers)}; nothing was changed. Compare the producers with `onceload recover "
            f"state --pipeline {self.pipeline} --dry-run`, and the rows with `onceload verify`."
        )


@dataclass(eq=False)
class SnapshotRefused(StateDiffers):
    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: no snapshot was taken at position {self.position}, because the live state "
            f"differs from the ledger for {_some(self.producers)}. Committed loads stay committed, but the next load "
            "could lose or repeat records of these producers. Show them with `onceload recover state "
            f"--pipeline {self.pipeline} --dry-run`, and run it without --dry-run to repair them."
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
            f"pipeline {self.pipeline}: quarantined_max allows {self.allowed}, but {self.quarantined} of "
            f"{self.records} are bad, such as: {self.reason}; none of them was loaded: mend the source, or raise "
            "quarantined_max"
        )


@dataclass(eq=False)
class TransactionEnded(NeedsAPerson):
    pipeline: str
    batch: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}, batch {self.batch}: write_rows ended the transaction of the commit; nothing "
            "was recorded as consumed, so rows that write_rows committed itself have no receipt. Delete these rows "
            "from the target, and leave COMMIT and ROLLBACK to the ledger"
        )


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
