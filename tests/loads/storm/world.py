"""The files, the pipeline file and the database of one sequence, and how each operation is carried out."""

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from psycopg2.errors import DeadlockDetected
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from onceload.choices import chosen
from onceload.contradictions import contradictions, may_choose, may_replace
from onceload_core.declaration import DeclarationChanged
from onceload_core.delivery import State
from onceload_core.errors import OnceloadError, WrongUse
from onceload_core.names import Batch, DeliveryId, Position, SessionName
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, recover_state
from onceload_core.postgres.by_hand import abandon, list_deliveries, redrive
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_core.postgres.recovery import Recovery
from onceload_core.postgres.upkeep import forget_messages, tidy
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage import sweep
from onceload_jobs.batch.stage_folder import StageFolder, content_of
from onceload_jobs.executor.executor import Died, Outcome, called
from onceload_jobs.files.notes import Note
from onceload_jobs.load.consume import consume
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import give_up, publish_batch
from onceload_jobs.pipeline.columns import LINEAGE, arrow_schema
from onceload_jobs.pipeline.declared import Declared, OnRewrite, Write
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.recover.retry import RetryReport, retry
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.findings import Kind as Differing
from onceload_jobs.verify.verify import verify
from onceload_jobs.work.read_chunk import Reading
from onceload_jobs.work.spark.spark import MadePieces, Spark, made_piece
from onceload_jobs.work.spark.transform import as_declared, for_spark, with_output
from tests.loads.storm import laws
from tests.loads.storm.aside import Aside
from tests.loads.storm.folder import Folder
from tests.loads.storm.laws import Counted
from tests.loads.storm.operations import (
    FILE_CHANGES,
    ByHand,
    Consume,
    Cut,
    Edit,
    Fault,
    Jump,
    Lack,
    Left,
    Load,
    Look,
    Maintain,
    Misplace,
    Operation,
    Publishing,
    Recover,
    Redrive,
    Retry,
    Rewind,
    Transform,
    Words,
)
from tests.loads.storm.records import BAD, COLUMNS, GOOD, marked
from tests.loads.storm.strikes import Killed, Strike, TaskKilled, struck
from tests.waiting import PATIENCE_S

#: How long others may go on while a load is stopped; then they wait for it, as it may hold what they need.
_ASIDE_S = 1.0
_LOOKS_EVERY_S = 0.005
_TRIES = 5
#: In the end, until one finds nothing new.
_LOADS_MAX = 5
#: Outcomes: a load, or a worker before another takes its delivery, died when only a part of a file was loaded.
PARTLY_LOADED, PARTLY_RETRIED = "partly loaded", "partly loaded by a worker"


class Law(StrEnum):
    """What cannot be broken: no record is lost, none is there too often, and the rest."""

    LOST = "lost"
    REPEATED = "repeated"
    OTHER = "other"


class Broken(AssertionError):
    """A law does not hold."""

    def __init__(self, words: str, law: Law = Law.OTHER) -> None:
        super().__init__(words)
        self.law = law


@dataclass(frozen=True)
class Ended:
    """How something ended: by its report, or by an error."""

    report: Report | RetryReport | Recovery | None = None
    error: BaseException | None = None

    @property
    def notes(self) -> tuple[Note, ...]:
        return self.report.notes if isinstance(self.report, Report) else ()

    @property
    def is_idle(self) -> bool:
        return isinstance(self.report, Report) and not self.report.records

    @property
    def words(self) -> str:
        return type(self.error or self.report).__name__


@dataclass
class World:
    name: str
    target: str
    folder: Folder
    dsn: str
    server_dsn: str
    engine: Engine
    words: Words
    #: A collation in which case makes no difference, if the server has one.
    caseless: str | None = None
    #: What runs the workers of loads, if not this process.
    spark: Spark | None = None
    declared: laws.Declared = field(default_factory=laws.Declared)
    #: How loads ended, to know whether anything was tried at all.
    outcomes: Counter[str] = field(default_factory=Counter)
    is_damaged: bool = False
    _accepted: Words | None = None
    _targets: set[str] = field(default_factory=set)
    #: The epoch in which a record was first seen.
    _seen: dict[int, int] = field(default_factory=dict)
    _dead: list[str] = field(default_factory=list)
    #: Kept batches, and whether they were staged to replace.
    _kept: dict[str, bool] = field(default_factory=dict)
    _before: Counted = field(default_factory=lambda: Counted(Counter(), Counter()))
    _batches: Iterator[int] = field(default_factory=lambda: count(1))
    _aside: list[threading.Thread] = field(default_factory=list)
    #: Set when what runs beside a stopped load lets it go on, and when that load has ended.
    _gave_way: threading.Event = field(default_factory=threading.Event)
    _went_on: threading.Event = field(default_factory=threading.Event)
    #: What went wrong in what was carried out aside.
    _strange: list[BaseException] = field(default_factory=list)
    #: Whether anything that happened since may have taken rows away.
    _may_vanish: bool = False

    def do(self, operation: Operation) -> Ended | None:
        """Carry it out, and look whether the laws hold."""
        ended = self._carry_out(operation)
        self._wait_for_those_aside()
        now = self.counted()
        self._judge(now)
        if isinstance(operation, Load) and ended is not None:
            self._judge_load(operation, ended, now)
        self._before = now
        return ended

    # Operations.

    def _carry_out(self, operation: Operation) -> Ended | None:
        match operation:
            case Load():
                return self._load(operation)
            case Consume():
                self._consume(operation)
            case Publishing():
                self._publish(operation)
            case Retry():
                self._strike_at(operation, self._retry)
            case Edit():
                self._edit(operation)
            case Look() | Maintain():
                self._tried(self._look if isinstance(operation, Look) else self._maintain)
            case Jump():
                self._jump(operation)
            case Cut():
                self._cut(operation)
            case Rewind() | Redrive() | Misplace() | Recover() | Lack():
                self._do_by_hand(operation)
            case _:
                self.folder.change(operation, self.words)
        return None

    def _do_by_hand(self, operation: ByHand) -> None:
        match operation:
            case Rewind():
                self._may_vanish = True
                self._tried(lambda: self._rewind(operation.back))
            case Redrive():
                self._redrive(operation)
            case Misplace():
                self._misplace()
            case Recover():
                self._recover(operation)
            case Lack():
                self._lack()

    def _edit(self, edit: Edit) -> None:
        words = replace(self.words, **{edit.key: edit.value})  # type: ignore[arg-type]
        if words.order is Order.ORDERED and words.producer == ("dev", "pos"):
            # By this number, the records are not in order.
            return
        declared = self._as_declared(words)
        if not list(contradictions(declared)):
            self._take(words)
            if words.sealed:
                # A declaration of sealed files means that files are written whole.
                self.folder.make_whole()
            if words.table and self._exists(f"{self.target}_0"):
                # It was created by hand before.
                self._execute(f"CREATE TABLE IF NOT EXISTS {declared.target.table} (LIKE {self.target}_0)")
            if words.lineage and edit.key == "lineage" and self._exists(declared.target.table):
                # By hand, and the rows that are there do not name their records.
                self.is_damaged = True
                self._execute(
                    f"ALTER TABLE {declared.target.table} ADD COLUMN IF NOT EXISTS _producer_id bigint,"
                    " ADD COLUMN IF NOT EXISTS _sequence bigint"
                )

    def _take(self, words: Words) -> None:
        if words.layout != self.words.layout:
            # New files have another layout. Those that are there could not be read by it.
            self.folder.archive()
        self.words = words

    def _look(self) -> None:
        declared = self._as_declared(self.words)
        make_plan(declared, PostgresLedger(self.engine), now_s=time.time())

    def _load(self, asked: Load) -> Ended:
        words = self.words
        declared = self._as_declared(words)
        batch = asked.batch or f"batch {next(self._batches)}"
        only = asked.only if may_choose(declared) else ()
        replaces = asked.replaces and may_replace(declared)
        keeps = not asked.publishes and not declared.is_direct
        self._let_fall_back(batch)
        choice = chosen(declared, files=only, replaces=replaces)
        how = LoadSettings(ledger=self._ledger_settings, wait_s=0, choice=choice, publishes=not keeps)
        self._prepare_target(declared)
        self._may_vanish |= (replaces or words.takes_rows_away) and not keeps

        def run(strike: Strike) -> Report:
            if self.spark is None:
                return load(declared, how, batch=Batch(batch), executor=Tasks(self, asked, strike, words))
            # A worker kills itself, and is struck by nothing else.
            strike.in_task = asked.fault is Fault.TASK_KILLED
            return load(declared, how, batch=Batch(batch), executor=SparkTasks(self.spark, asked, self.outcomes))

        ended = self._strike_at(asked, run, batch=batch)
        if not isinstance(ended.error, WrongUse):
            if not isinstance(ended.error, DeclarationChanged):
                self._accepted = words
            self.declared.add(words)
            if keeps:
                self._kept[batch] = replaces or words.on_rewrite is OnRewrite.REPLACE
        elif self._accepted is not None:
            # The refusal says why, and the author of the file corrects it.
            self._take(self._accepted)
        return ended

    def _consume(self, asked: Consume) -> None:
        words, declared = self.words, self._as_declared(self.words)
        batch = f"batch {next(self._batches)}"
        how = LoadSettings(ledger=self._ledger_settings, wait_s=0)
        looks = iter((True, False))
        self._prepare_target(declared)
        self._may_vanish |= words.takes_rows_away

        def pause() -> bool:
            goes_on = next(looks)
            for operation in asked.then if goes_on else ():
                self._carry_out(operation)
            return goes_on

        def run(_: Strike) -> None:
            for found in consume(declared, how, name=SessionName(f"of {batch}."), batch=Batch(batch), pause=pause):
                if isinstance(found, Report):
                    self._accepted = words
                    self.declared.add(words)

        self._strike_at(asked, run, batch=batch)

    def _publish(self, asked: Publishing) -> None:
        declared = self._as_declared(self.words)
        if declared.is_direct:
            return
        how = LoadSettings(ledger=self._ledger_settings, wait_s=0)
        if asked.gives_up:
            self._tried(lambda: give_up(declared, how, batch=Batch(asked.batch)))
            return
        of_words = self.words.takes_rows_away
        of_choice = self._kept.get(asked.batch, False) and OnRewrite.REPLACE not in self.declared.rewrites
        self._may_vanish |= of_words or of_choice
        words = self.words
        ended = self._strike_at(
            asked, lambda _: publish_batch(declared, how, batch=Batch(asked.batch)), batch=asked.batch
        )
        if ended.report is not None:
            self.declared.add(words)

    def _retry(self, strike: Strike) -> RetryReport:
        del strike
        held = list(find_records(self.engine, Selection(pipeline=self.name)))
        held = [each for each in held if not each.is_replaced]
        fixed = {each.quarantine_id: Fix(raw=each.raw.replace(BAD, GOOD), digest=each.digest) for each in held}
        batch = Batch(f"retry {next(self._batches)}")
        ledger, declared = PostgresLedger(self.engine), self._as_declared(self.words)
        return retry(self.engine, ledger, declared, held, batch=batch, fixed=fixed)

    def _rewind(self, back: int) -> None:
        declared = self._as_declared(self.words)
        position = PostgresLedger(self.engine).position(self.name)
        to = Position(max(0, position - back))
        rewind(declared, self.engine, to=to, dry_run=False)

    def _redrive(self, asked: Redrive) -> None:
        change = abandon if asked.abandons else redrive
        with suppress(OnceloadError):
            for found in list_deliveries(self.engine, self.name, state=State.DEAD, at_most=100):
                number = DeliveryId(int(str(found["delivery"])))
                self._tried(partial(change, self.engine, self.name, number, by="ann"))

    def _maintain(self) -> None:
        tidy(self.engine, self.name)
        forget_messages(self.engine)
        sweep(self.engine)

    def _jump(self, jump: Jump) -> None:
        for table, column in (("session", "lease_until"), ("delivery", "deadline_at"), ("audit", "kept_until")):
            self._execute(
                f"UPDATE onceload.{table} SET {column} = {column} - make_interval(hours => :hours)"
                " FROM onceload.pipeline"
                f" WHERE pipeline.pipeline_id = {table}.pipeline_id AND pipeline.name = :pipeline",
                hours=jump.hours,
            )

    def _cut(self, cut: Cut) -> None:
        for path in (path for folder in own_spools() for path in folder.glob("*")):
            # Its load may end meanwhile.
            with suppress(FileNotFoundError):
                self.outcomes["files of rows that were cut"] += 1
                match cut.left:
                    case Left.NOTHING:
                        path.unlink()
                    case Left.BYTES:
                        os.truncate(path, path.stat().st_size // 2)
                    case Left.ROWS:
                        ends = list(_row_ends(path.read_bytes()))
                        os.truncate(path, ends[len(ends) // 2] if ends else path.stat().st_size // 2)

    def _misplace(self) -> None:
        for target in self._targets:
            if self._exists(target) and self._has_column(target, "_producer_id"):
                self.is_damaged = True
                self._execute(f"UPDATE {target} SET _producer_id = -1 WHERE uid % 2 = 0")

    def _lack(self) -> None:
        self.words = replace(self.words, adds_columns=True)
        for target in self._targets:
            if self._exists(target):
                # Its values are gone, which `verify` would say; the records are not.
                self.is_damaged = True
                self._execute(f"ALTER TABLE {target} DROP COLUMN IF EXISTS note")

    def _recover(self, asked: Recover) -> None:
        if asked.damages:
            self._execute(
                "UPDATE onceload.producer SET consumed = '{}' FROM onceload.pipeline"
                " WHERE producer.pipeline_id = pipeline.pipeline_id AND pipeline.name = :pipeline"
                "   AND producer_id % 2 = 0"
            )

        def recover() -> Recovery:
            kept = PostgresSnapshots(self.engine).list(self.name) if asked.from_snapshot else ()
            start = kept[0].position if kept else Position(0)
            return recover_state(self.engine, self.name, snapshot_position=start, dry_run=False)

        ended = self._tried(recover)
        if isinstance(ended.report, Recovery) and ended.report.is_different and not asked.damages:
            raise Broken(f"the state is not what the ledger proves: {ended.report}")

    # How it is struck.

    def _strike_at(
        self, asked: Load | Consume | Publishing | Retry, run: Callable[[Strike], object], *, batch: str = ""
    ) -> Ended:
        counts = getattr(asked, "counts_commits", False)
        in_task = getattr(asked, "in_task", False)
        who = "" if getattr(asked, "keeps_lease", False) else f"{batch}/1" if in_task else f"{batch}/"
        strike = Strike(
            fault=asked.fault,
            at=asked.at,
            server_dsn=self.server_dsn,
            stopped=lambda: self._stopped(asked, of=who),
            counts_commits=counts,
            in_task=in_task,
        )
        with struck(strike):
            ended = self._tried(lambda: run(strike))
        self._went_on.set()
        if isinstance(ended.error, Killed | TaskKilled):
            self._dead += (f"{batch}/", f"of {batch}.")
            self.outcomes[PARTLY_LOADED] += self._has_loaded_a_part()
        self.outcomes[f"{type(asked).__name__} {asked.fault or 'whole'}: {ended.words}"] += 1
        return ended

    def _has_loaded_a_part(self) -> bool:
        """Whether some of a file is loaded, and another part of it is still offered or held."""
        return bool(
            self._ask(
                "SELECT FROM onceload.delivery_span JOIN onceload.producer USING (producer_id)"
                "  JOIN onceload.pipeline USING (pipeline_id)"
                " WHERE pipeline.name = :pipeline AND NOT isempty(consumed)"
            )
        )

    def _tried(self, run: Callable[[], object]) -> Ended:
        try:
            return Ended(report=run())  # type: ignore[arg-type]
        except (Killed, TaskKilled, OnceloadError) as error:
            return Ended(error=error)

    def _stopped(self, asked: Load | Consume | Publishing | Retry, *, of: str) -> None:
        if isinstance(asked, Publishing) and asked.loses_lock:
            self._cut_locks()
        if isinstance(asked, Publishing) and asked.gives_way:
            self._went_on.clear()
            self._gave_way.set()
            # The other one may wait for what this one locks.
            self._went_on.wait(_ASIDE_S)
        else:
            self._meanwhile(asked.then, of=of)

    def _meanwhile(self, operations: Sequence[Operation], *, of: str) -> None:
        """Others go on while a load is stopped: by its lease, it is gone."""
        self._gave_way.clear()
        thread = threading.Thread(target=self._all_aside, args=(operations,), kwargs={"of": of}, daemon=True)
        self._aside.append(thread)
        thread.start()
        until = time.monotonic() + _ASIDE_S
        while thread.is_alive() and not self._gave_way.is_set() and time.monotonic() < until:
            thread.join(_LOOKS_EVERY_S)

    def _all_aside(self, operations: Sequence[Operation], *, of: str) -> None:
        try:
            if of:
                self._fall_back(of)
            for operation in operations:
                self._carry_out(operation)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the sequence fails by it.
            self._strange.append(error)

    def _wait_for_those_aside(self) -> None:
        for thread in self._aside:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                raise Broken("what went on beside a load did not end")
        self._aside.clear()
        if self._strange:
            raise self._strange[0]

    def meanwhile(self, asked: Load, session: SessionName) -> None:
        """The same beside a process that was stopped."""
        self._meanwhile(asked.then, of="" if asked.keeps_lease else session)

    def between_tries(self, asked: Load, session: SessionName) -> None:
        """What happens before another worker takes what a killed one had."""
        self.outcomes[PARTLY_RETRIED] += self._has_loaded_a_part()
        self._fall_back(session)
        for operation in asked.then:
            self._carry_out(operation)

    def _let_fall_back(self, batch: str) -> None:
        """As if the leases of all that died had passed; an earlier life of the same batch ends by itself."""
        for name in [each for each in self._dead if not each.startswith(f"{batch}/")]:
            self._fall_back(name)

    def _fall_back(self, prefix: str) -> None:
        self._execute(
            "UPDATE onceload.delivery SET deadline_at = clock_timestamp() FROM onceload.session, onceload.pipeline"
            " WHERE session.session_id = delivery.session_id AND state = 'held' AND starts_with(session.name, :prefix)"
            "   AND pipeline.pipeline_id = session.pipeline_id AND pipeline.name = :pipeline",
            prefix=prefix,
        )
        self._execute(
            "UPDATE onceload.session SET lease_until = clock_timestamp() FROM onceload.pipeline"
            " WHERE pipeline.pipeline_id = session.pipeline_id AND pipeline.name = :pipeline"
            "   AND starts_with(session.name, :prefix)",
            prefix=prefix,
        )

    def _cut_locks(self) -> None:
        """The server ends each connection that holds an advisory lock, as of a batch."""
        self._execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database() AND pid <> pg_backend_pid()"
        )

    # The end.

    def finish(self) -> None:
        """Make good whatever was left: nothing is struck any more, and everything is whole."""
        self.folder.make_whole()
        for batch in self._kept:
            self.do(Publishing(batch))
            self.do(Publishing(batch, gives_up=True))
        self._fall_back("")
        self._until_nobody_holds_a_stage()
        for _ in range(_LOADS_MAX):
            self._redrive(Redrive())
            ended = self.do(Load())
            if ended is None or ended.is_idle:
                break
        self.outcomes[f"in the end: {ended.words if ended else 'nothing'}"] += 1
        self._verify()

    def _verify(self) -> None:
        declared = self._as_declared(self.words)
        ended = self._tried(lambda: verify(declared, self.engine, deep=True))
        if ended.report is None or self.is_damaged or len(self._targets) > 1:
            return
        if self.declared.is_merged and self.words.write is Write.APPEND:
            # So is a row that another took the place of.
            return
        if not self.declared.has_one_name(self.words):
            # What counted as a duplicate by another declaration is a missing row by this one.
            return
        rows = {Differing.ROW_MISSING, Differing.ROW_DUPLICATED, Differing.ROW_FROM_NOWHERE, Differing.VALUE_CHANGED}
        differing = [each for each in ended.report.differences if each.kind in rows]  # type: ignore[union-attr]
        if differing and not self.declared.rewrites - {self.words.on_rewrite}:
            raise Broken(f"verify: {differing[0]}")

    def _until_nobody_holds_a_stage(self) -> None:
        """The server notices a little later than we do that a loader is dead."""
        held = (
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        until = time.monotonic() + PATIENCE_S
        while self._ask(held)[0][0] and time.monotonic() < until:
            time.sleep(0.01)

    # Judging.

    def _judge(self, now: Counted) -> None:
        for uid, _ in now.rows:
            self._seen.setdefault(uid, self.declared.epoch)
            self.declared.ever.add(uid)
        for uid in {uid for uid in self._seen if uid not in {each for each, _ in now.rows}}:
            del self._seen[uid]
        repeated = [
            *laws.repeated(self.folder, self.words, self.declared, now),
            *laws.named_twice(self.folder, self.words, self.declared, now, self._seen),
        ]
        may_vanish, self._may_vanish = self._may_vanish or self.words.write is Write.MERGE, False
        gone = [] if may_vanish else list(laws.vanished(self._before, now))
        found = {Law.OTHER: list(laws.altered(now)), Law.REPEATED: repeated, Law.LOST: gone}
        for law, broken in found.items():
            if broken:
                raise Broken(f"{broken[0]} ({len(broken)} in all)", law)

    def _judge_load(self, asked: Load, ended: Ended, now: Counted) -> None:
        """What a load that ended well has not loaded of whole files, it has said."""
        is_about_all = asked.publishes and not asked.only
        is_alone = not any(isinstance(each, (*FILE_CHANGES, Edit, Rewind)) for each in asked.then)
        if not (isinstance(ended.report, Report) and is_about_all and is_alone) or ended.report.staged is not None:
            return
        noted = {note.name for note in ended.notes}
        if self.name in noted:
            self.outcomes["excused altogether"] += 1
            return
        files = {path: file for path, file in self.folder.matching(self.words.pattern).items() if file.is_whole}
        excused = {path for path in files if any(path == name or path.endswith(f"/{name}") for name in noted)}
        self.outcomes["files excused"] += len(excused)
        self.outcomes["files compared"] += len(files) - len(excused)
        # Also where a record is to be there once for each file: it may be there for one that is compared.
        compared = {path: file for path, file in files.items() if path not in excused}
        lost = list(laws.lost(self.folder, self.words, self.declared, now, compared))
        stale = list(laws.stale(self.folder, self.words, self.declared, now, compared))
        for law, broken in ((Law.LOST, lost), (Law.OTHER, stale)):
            if broken:
                notes = [f"{note.name}: {note.reason}" for note in ended.notes]
                raise Broken(f"{broken[0]} ({len(broken)} in all), and the load said: {ended.report}, {notes}", law)

    def counted(self) -> Counted:
        """An independent look at what is there."""
        rows: Counter[tuple[int, int]] = Counter()
        altered: list[int] = []
        shown: defaultdict[int | None, set[int]] = defaultdict(set)
        for target in self._targets:
            if not self._exists(target):
                continue
            # Rows of another version of the file may have none.
            part = "coalesce(part, 0)" if self._has_column(target, "part") else "0"
            for uid, number, k, dev, seq, oid, amount in self._ask(
                f"SELECT uid, {part}, {self.words.key}, dev, seq, oid, amount FROM {target}"
            ):
                rows[uid, number] += 1
                shown[k].add(uid)
                record = self.folder.written.get(uid)
                if record is None or not laws.holds(record, dev=dev, seq=seq, oid=oid, amount=str(amount)):
                    altered.append(uid)
        held: Counter[int] = Counter()
        # Replaced records must not come back, and stay beside those that came in their place.
        for (raw,) in self._ask(
            "SELECT raw FROM onceload.quarantine JOIN onceload.pipeline USING (pipeline_id)"
            " LEFT JOIN onceload.producer USING (producer_id)"
            " WHERE pipeline.name = :pipeline AND state = 'held' AND condition IS DISTINCT FROM 'replaced'"
        ):
            uid = marked(bytes(raw))
            if uid is not None:
                held[uid] += 1
        return Counted(rows, held, tuple(altered), shown)

    # The database.

    @property
    def _ledger_settings(self) -> LedgerSettings:
        return LedgerSettings(dsn=self.dsn, lock_timeout_s=PATIENCE_S)

    def _as_declared(self, words: Words) -> Declared:
        return words.declared(pipeline=self.name, folder=str(self.folder.root), target=self.target)

    def _prepare_target(self, declared: Declared) -> None:
        """A target whose key may be null, or whose texts have a collation, was created by hand."""
        target = declared.target
        collation = self.caseless if self.words.ignores_case else None
        if target.table not in self._targets and (collation or target.key == ("made",)):
            collated = f" COLLATE {collation}" if collation else ""
            types = {name: f"text{collated}" if of_type == "text" else of_type for name, of_type in COLUMNS.items()}
            if self.words.transform is not None:
                types |= {"part": "bigint", "made": "bigint"}
            if target.lineage:
                types |= {"_producer_id": "bigint", "_sequence": "bigint"}
            columns = ", ".join(f"{name} {of_type}" for name, of_type in types.items())
            unique = f", UNIQUE ({', '.join(target.key)})" if target.key else ""
            self._execute(f"CREATE TABLE IF NOT EXISTS {target.table} ({columns}{unique})")
        self._targets.add(target.table)

    def _exists(self, table: str) -> bool:
        return self._ask("SELECT to_regclass(:table)", table=table) != [(None,)]

    def _has_column(self, table: str, column: str) -> bool:
        asked = "SELECT FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attname = :column"
        return bool(self._ask(asked, table=table, column=column))

    def _execute(self, statement: str, **binds: object) -> None:
        """A change of several rows at once may meet a load that takes the same ones in another order."""
        for tries_left in reversed(range(_TRIES)):
            try:
                with self.engine.begin() as connection:
                    connection.execute(text(statement), {"pipeline": self.name, **binds})
            except OperationalError as error:
                if tries_left and isinstance(error.orig, DeadlockDetected):
                    continue
                raise
            return

    def _ask(self, statement: str, **binds: object) -> list[tuple[Any, ...]]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement), {"pipeline": self.name, **binds})]

    def drop(self) -> None:
        for target in self._targets:
            self._execute(f"DROP TABLE IF EXISTS {target}")


def own_spools() -> Iterator[Path]:
    """The folders of rows that this process keeps, by the locks that it holds."""
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            lock = opened.readlink()
            if lock.suffix == ".lock" and lock.name.startswith("onceload-rows-"):
                yield lock.with_suffix("")


def _row_ends(copied: bytes) -> Iterator[int]:
    """Where the rows of a binary COPY end: each is the number of its fields, and the size and the bytes of each."""
    at = 19
    while copied.startswith(b"PGCOPY") and (fields := int.from_bytes(copied[at : at + 2], signed=True)) > 0:
        at += 2
        for _ in range(fields):
            at += 4 + max(0, int.from_bytes(copied[at : at + 4], signed=True))
        yield at


@dataclass(frozen=True)
class Tasks:
    """As Spark runs them: several sessions in any order, some of them twice, and again if one dies."""

    world: World
    asked: Load
    strike: Strike
    words: Words
    slots: int = 2

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        order, rng = list(enumerate(items)), Random(self.asked.seed)
        if self.strike.fault in (Fault.CUT, Fault.UNANSWERED):
            # A worker of a batch has no connection.
            self.strike.in_task = False
        if self.asked.seed:
            rng.shuffle(order)
            for _, item in rng.sample(order, len(order) // 2):
                # One of two tries that run at once counts.
                self._called(function, item)
        for number, item in order:
            yield number, self._called(function, item)

    def _called(self, function: Callable[[Any], Any], item: Any) -> Outcome:
        if self.asked.forks:
            outcome = self.forked(partial(called, function, item), _READER)
            return Died("its process was killed") if outcome is None else outcome
        self.strike.is_in_task = True
        try:
            return called(function, item)
        except TaskKilled:
            self.strike.revive()
            self.strike.is_in_task = False
            self.world.between_tries(self.asked, _READER)
            return Died("its process was killed")
        finally:
            self.strike.is_in_task = False

    def close(self) -> None:
        pass

    def forked(self, call: Callable[[], Any], name: SessionName) -> Any:
        """The same by a process of its own; nothing, if it was killed."""
        aside = Aside.started(call, self.strike)
        was_stopped = False
        while not aside.has_ended():
            if not was_stopped and aside.is_stopped():
                was_stopped = True
                try:
                    self.world.meanwhile(self.asked, name)
                finally:
                    aside.go_on()
        ended_with = aside.ended_with()
        self.world.outcomes[f"forked: {'stopped' if was_stopped else 'killed' if ended_with is None else 'whole'}"] += 1
        if isinstance(ended_with, BaseException):
            raise ended_with
        if ended_with is None:
            self.strike.is_done = True
            self.world.between_tries(self.asked, name)
        return ended_with

    def transform(self, job: Job, reading: Reading, read: Sequence[Piece]) -> MadePieces:
        """What Spark SQL makes of all records, a piece of each; Spark hands on no table without rows."""
        made: list[Piece] = []
        for piece in read:
            tables = [self._made(job, rows) for rows in _rows_in(reading.folder, piece)]
            batches = (batch for table in tables for batch in table.to_batches())
            one = made_piece(job, reading.form.writer, reading.folder, batches)
            made += [replace(one, number=-1 - len(made))] if one.rows else []
        return MadePieces(folder=reading.folder, read=read, made=made)

    def _made(self, job: Job, rows: pa.Table) -> pa.Table:
        rows = for_spark(rows, job.columns)
        uids = rows.column("uid").to_pylist()
        times = [uid % 3 if self.words.transform is Transform.SOME else 1 for uid in uids]
        taken = [number for number, each in enumerate(times) for _ in range(each)]
        parts = [part for each in times for part in range(each)]
        made = rows.take(pa.array(taken, pa.int64()))
        records = map(self.world.folder.written.__getitem__, made.column("uid").to_pylist())
        keys = [laws.key_of(self.words, record) for record in records]
        made = made.append_column("made", pa.array(keys, pa.int64()))
        made = made.append_column("part", pa.array(parts, pa.int64()))
        return as_declared(made.select(_output(job).names), job)

    def writing(self, job: Job) -> Job:
        return job if self.words.transform is None else with_output(job, _output(job))


@dataclass(frozen=True)
class SparkTasks:
    """Real tasks of Spark, of which one may kill its process when it is first tried."""

    spark: Spark
    asked: Load
    outcomes: Counter[str]

    @property
    def slots(self) -> int:
        return self.spark.slots

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        all_items = list(items)
        if self.asked.fault is not Fault.TASK_KILLED or not all_items:
            yield from self.spark.each(function, all_items)
            return
        with TemporaryDirectory(prefix="storm-killed-") as folder:
            killed = Path(folder) / "killed"
            dying = partial(_dying_once, function, killed, is_late=self.asked.at % 2 == 0)
            victim = self.asked.at % len(all_items)
            numbered = [(item, number == victim) for number, item in enumerate(all_items)]
            yield from self.spark.each(dying, numbered)
            self.outcomes["killed tasks of Spark"] += killed.exists()

    def close(self) -> None:
        pass

    def transform(self, job: Job, reading: Reading, read: Sequence[Piece]) -> MadePieces:
        return self.spark.transform(job, reading, read)

    def writing(self, job: Job) -> Job:
        return self.spark.writing(job)


def _dying_once(function: Callable[[Any], Any], killed: Path, item: tuple[Any, bool], *, is_late: bool) -> object:
    """Before or after the task has worked, its process is killed; the next try of it is not."""
    work, is_victim = item
    dies = is_victim and not killed.exists()
    result = function(work) if is_late or not dies else None
    if dies:
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


#: The session that a worker of a batch has in the end: none.
_READER = SessionName("reader")


def _rows_in(folder: StageFolder, piece: Piece) -> Iterator[pa.Table]:
    for block in piece.blocks:
        yield pa.ipc.open_stream(b"".join(content_of(folder, piece, block))).read_all()


def _output(job: Job) -> pa.Schema:
    made = (pa.field("part", pa.int64()), pa.field("made", pa.int64()))
    return pa.schema([*arrow_schema(job.columns), *made, *LINEAGE])
