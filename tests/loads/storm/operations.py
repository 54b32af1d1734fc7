"""What may happen to files, to the pipeline file and to loads, as values that can be pasted into a test."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from onceload_core.delivery import Mode, Rules
from onceload_core.pipeline import Guarantee, Pipeline, SnapshotPolicy
from onceload_core.verdicts import Order
from onceload_jobs.files.addresses import shown
from onceload_jobs.files.listing import root_of
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    CsvOptions,
    Declared,
    FixedOptions,
    Format,
    Identity,
    MessageId,
    NewerFile,
    OnNewColumn,
    OnRewrite,
    Publish,
    RecordProducer,
    Source,
    Target,
    TransformEngine,
    Write,
)
from tests.loads.storm.records import COLUMNS, LAYOUTS, Form

#: Nothing here is late by itself: a session is declared to be gone, and then loses whatever it held.
_DEADLINE_S = 600.0


class Transform(StrEnum):
    """The ways to transform a record."""

    #: One row.
    ONE = "one"
    #: None, one or two.
    SOME = "some"
    #: One, whose key is null now and then.
    NULLS = "nulls"


@dataclass(frozen=True, kw_only=True)
class Words:
    """The pipeline file: each of its keys may be edited."""

    form: Form = Form.JSONL
    pattern: str = "day/*"
    chunk_bytes: int = 400
    publish: Publish = Publish.STAGED
    identity: Identity = Identity.PATH
    on_rewrite: OnRewrite = OnRewrite.STOP
    sealed: bool = False
    multiline: bool = False
    write: Write = Write.APPEND
    #: The columns of name and sequence.
    producer: tuple[str, str] | None = None
    order: Order = Order.ANY
    message_id: str | None = None
    transform: Transform | None = None
    #: Postgres runs it, over the staged records.
    in_postgres: bool = False
    lineage: bool = True
    table: int = 0
    mode: Mode = Mode.SHARED
    deliveries_max: int = 5
    guarantee: Guarantee | None = None
    #: A column that is not declared.
    without: str = ""
    #: The target's texts have a collation in which `d` and `D` are equal, if the server has one.
    ignores_case: bool = False
    #: The table gets each declared column that it lacks.
    adds_columns: bool = False
    #: Which of the layouts files have from now on.
    layout: int = 0

    @property
    def takes_rows_away(self) -> bool:
        """Whether a load by it may replace rows."""
        return self.on_rewrite is OnRewrite.REPLACE or self.write is Write.MERGE

    @property
    def key(self) -> str:
        """The column that a merge finds rows by: one that the transform adds, if it makes nulls."""
        return "made" if self.transform is Transform.NULLS else "k"

    @property
    def _sql(self) -> str:
        """What Spark makes of a record is made in Python where there is no Spark."""
        rows = "uid % 3" if self.transform is Transform.SOME else "1"
        key = "CASE WHEN uid % 3 > 0 THEN k END" if self.transform is Transform.NULLS else "k"
        made = f"SELECT records.*, {key} AS made, part FROM records"
        if self.in_postgres:
            return f"{made}, generate_series(CAST(0 AS bigint), {rows} - 1) AS part"
        return f"{made} LATERAL VIEW explode(slice(array(0L, 1L), 1, CAST({rows} AS int))) AS part"

    def declared(self, *, pipeline: str, folder: str, target: str) -> Declared:
        path = f"{folder}/{self.pattern}"
        below = shown(root_of(path)) if self.identity is Identity.PATH else None
        # Where a declaration has versions, they tell this.
        names: dict[str, Any] = {"names_below": below} if "names_below" in Pipeline.__dataclass_fields__ else {}
        keep_days = 30 if self.message_id else 0
        source = Source(
            path=path,
            format=Format(self.form),
            csv=CsvOptions(multiline=self.multiline, delimiter=LAYOUTS[self.layout].delimiter),
            fixed=FixedOptions(places=LAYOUTS[self.layout].places),
            identity=self.identity,
            sealed_after_s=0 if self.sealed else None,
            chunk_bytes=self.chunk_bytes,
        )
        key = (self.key,) if self.write is Write.MERGE else ()
        name, sequence = self.producer or ("", "")
        return Declared(
            pipeline=Pipeline(
                name=pipeline,
                guarantee=self.guarantee,
                **names,
                message_keep_days=keep_days,
                snapshot=SnapshotPolicy(every_commits=7, every_s=86_400),
            ),
            source=source,
            columns=tuple(
                parse_column(column, of_type) for column, of_type in COLUMNS.items() if column != self.without
            ),
            target=Target(
                schema="public",
                table=f"{target}_{self.table}",
                write=self.write,
                key=key,
                newer_file=NewerFile.BY_TIME if key and not self.producer else None,
                lineage=self.lineage,
            ),
            producer=RecordProducer(name=name, sequence=sequence, order=self.order) if self.producer else None,
            message_id=MessageId(columns=(self.message_id,), keep_days=keep_days) if self.message_id else None,
            transform=self._sql if self.transform else None,
            transform_engine=TransformEngine.POSTGRES if self.in_postgres else TransformEngine.SPARK,
            publish=self.publish,
            delivery=Rules(mode=self.mode, ack_deadline_s=_DEADLINE_S, deliveries_max=self.deliveries_max),
            on_rewrite=self.on_rewrite,
            on_new_column=OnNewColumn.ADD if self.adds_columns else OnNewColumn.STOP,
        )


# Files.


@dataclass(frozen=True)
class Append:
    """Records at the end of a file, which is made if it is not there."""

    file: str
    records: int
    #: The number of them that cannot be read.
    bad: int = 0
    #: The number that repeat an earlier record, under an identity of their own.
    again: int = 0
    #: The number that come late of their producer.
    late: int = 0
    #: Only so much of what is written can be seen, until it is completed.
    percent: int = 100


@dataclass(frozen=True)
class Complete:
    """A file that was still being written, or was damaged, is whole."""

    file: str


@dataclass(frozen=True)
class Damage:
    file: str


@dataclass(frozen=True)
class Rewrite:
    """Another content under the same name: some records stay, where that is told apart, and others come."""

    file: str
    #: Below 0: as many as there were.
    records: int
    kept: int = 0


@dataclass(frozen=True)
class Remove:
    file: str


@dataclass(frozen=True)
class Copy:
    file: str
    to: str


@dataclass(frozen=True)
class Move:
    file: str
    to: str


@dataclass(frozen=True)
class Pack:
    """A plain file is packed in its place."""

    file: str
    suffix: str


@dataclass(frozen=True)
class Rotate:
    """A file gets another name, and a new one comes in its place."""

    file: str
    to: str
    records: int


@dataclass(frozen=True)
class GrowAlike:
    """Several files grow by the same records."""

    files: tuple[str, ...]
    records: int


FileChange = Append | Complete | Damage | Rewrite | Remove | Copy | Move | Pack | Rotate | GrowAlike


# The pipeline file.


@dataclass(frozen=True)
class Edit:
    key: str
    value: object


@dataclass(frozen=True)
class Look:
    """`plan`, which changes nothing."""


# Loads.


class Fault(StrEnum):
    KILLED = "the load dies"
    TASK_KILLED = "a worker dies, and its delivery is taken by the next"
    STOPPED = "it stops for a while, and others go on"
    CUT = "the server ends its connection"
    UNANSWERED = "its COMMIT takes effect without an answer"


@dataclass(frozen=True)
class Load:
    fault: Fault | None = None
    #: At which word to the server it is struck; or at which of its commits.
    at: int = 0
    counts_commits: bool = False
    #: Whether a worker is struck, and not the planner.
    in_task: bool = True
    #: What happens while it is stopped, or before the next worker takes what it had.
    then: "tuple[Operation, ...]" = ()
    #: Stopped no longer than its lease, so that no other session takes what it has.
    keeps_lease: bool = False
    only: tuple[str, ...] = ()
    replaces: bool = False
    batch: str | None = None
    #: Left to `Publish`, it is staged and kept.
    publishes: bool = True
    #: In which order sessions work, and which of them twice.
    seed: int = 0
    #: Its workers are processes of their own, which real signals kill and stop.
    forks: bool = False


@dataclass(frozen=True)
class Consume:
    """A loader without Spark, which goes by the file that it was started with, and looks twice."""

    fault: Fault | None = None
    at: int = 0
    #: What happens between.
    then: "tuple[Operation, ...]" = ()


@dataclass(frozen=True)
class Publishing:
    """Publish a kept batch, or give it up."""

    batch: str
    gives_up: bool = False
    fault: Fault | None = None
    at: int = 0
    counts_commits: bool = False
    then: "tuple[Operation, ...]" = ()
    #: Stopped no longer than its lease.
    keeps_lease: bool = False
    #: While it is stopped, the server ends the idle connection that locks the batch for it.
    loses_lock: bool = False
    #: It is stopped until the load that it runs beside has ended.
    gives_way: bool = False


@dataclass(frozen=True)
class Retry:
    """Quarantined records are fixed and loaded."""

    fault: Fault | None = None
    at: int = 0
    then: "tuple[Operation, ...]" = ()


@dataclass(frozen=True)
class Rewind:
    """A rewind by a number of positions."""

    back: int


@dataclass(frozen=True)
class Redrive:
    """Dead letters are handed out again, or given up."""

    abandons: bool = False


@dataclass(frozen=True)
class Jump:
    """The clock of the server jumps: leases end sooner by so many hours, or later."""

    hours: int


@dataclass(frozen=True)
class Misplace:
    """By hand, half of the rows get another producer."""


@dataclass(frozen=True)
class Lack:
    """By hand, the target loses a column that is declared, and the pipeline file says that loads add it."""


class Left(StrEnum):
    """The part of a file that is left."""

    NOTHING = "nothing"
    BYTES = "a part of its bytes"
    #: It looks whole.
    ROWS = "some of its rows"


@dataclass(frozen=True)
class Cut:
    """The files of rows that a load keeps on its disk lose bytes, or are gone."""

    left: Left


@dataclass(frozen=True)
class Maintain:
    """`maintain`, which deletes what is not needed any more."""


@dataclass(frozen=True)
class Recover:
    """`recover state`, which finds nothing to change unless the state was damaged by hand just before."""

    damages: bool = False
    from_snapshot: bool = False


ByHand = Rewind | Redrive | Misplace | Recover | Lack
Operation = FileChange | Edit | Look | Load | Consume | Publishing | Retry | Maintain | Jump | Cut | ByHand
FILE_CHANGES = (Append, Complete, Damage, Rewrite, Remove, Copy, Move, Pack, Rotate, GrowAlike)
