"""Tasks of the DAGs that people start: backfill a range of days, and recover damaged or lost data.

A task that deletes rows first shows what it would delete, and waits for approval.
"""

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator

from onceload.contradictions import refuse_choice
from onceload.loads_in_words import show_rebuild
from onceload.outcome import Outcome
from onceload.pipeline_file import read_pipeline
from onceload.recoveries import rewind_in_words, state_in_words
from onceload_airflow.asked import REPLACE, accepts_differences, chosen_files, is_by_day, is_replacing, values_of_day
from onceload_airflow.ingest import dag_id_of
from onceload_airflow.operators import Load
from onceload_airflow.started_runs import StartRun
from onceload_airflow.upkeep import OfOnePipeline
from onceload_airflow.versions import AirflowFailException, SkipMixin, conf, no_retry_after
from onceload_core.errors import SettingRefused
from onceload_core.names import Position
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.pausing import refuse_paused
from onceload_core.replay import EntryKind

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from onceload.pipeline import Pipeline
    from onceload_jobs.pipeline.declared import Declared

STATE, REWIND, REBUILD = WAYS = ("state", "rewind", "rebuild")
#: Airflow expands one task into at most this many.
_DAYS_MAX = conf.getint("core", "max_map_length", fallback=1024)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}")


def runs_of(chooser: OfOnePipeline, *, task_id: str, doc_md: str) -> "MappedOperator":
    """Start the runs of the pipeline's own DAG that an earlier task has listed, and wait for each."""
    return StartRun.partial(
        task_id=task_id,
        trigger_dag_id=f"{{{{ ti.xcom_pull(task_ids='{chooser.task_id}', key='dag_id') }}}}",
        # Retry if Airflow cannot be reached for a moment, but not if the run itself failed.
        **no_retry_after("the started run failed after its own retries"),
        # A retry of this task clears that run; nothing is loaded twice.
        reset_dag_run=True,
        # Otherwise the wait would never end.
        fail_when_dag_is_paused=True,
        poke_interval=2,
        map_index_template="{{ task.conf.get('date', 'all') }}",
        doc_md=doc_md,
    ).expand_kwargs(chooser.output)


class ChooseRuns(OfOnePipeline):
    """List the runs that load what was asked for: one per day, or a single one if the path contains no day."""

    def execute(self, context: "Context") -> list[dict[str, object]]:
        path, declared = self.found(context)
        params, files = context["params"], chosen_files(context)
        with self.opened() as engine:
            refuse_paused(engine, declared.name)
            _refuse_paused_dag(context, declared)
            refuse_choice(declared, files=files, replaces=is_replacing(context))
            days = _days_of_range(path, params["first_day"], params["last_day"])
        context["ti"].xcom_push(key="dag_id", value=dag_id_of(declared.name))
        asked: dict[str, object] = {"files": list(files)} if files else {}
        asked |= {"mode": REPLACE} if is_replacing(context) else {}
        asked |= {"accept_differences": True} if accepts_differences(context) else {}
        return [_as_run(context, day, **asked) for day in days]


class Look(OfOnePipeline, SkipMixin):
    """Show what a recovery would do, and change nothing; skip the rest if there is nothing to do."""

    inherits_from_skipmixin = True

    def execute(self, context: "Context") -> str:
        path, declared = self.found(context)
        with self.opened() as engine:
            if context["params"]["what"] == REWIND:
                _refuse_paused_dag(context, declared)
            if context["params"]["what"] != STATE:
                # Nothing would be loaded again.
                refuse_paused(engine, declared.name)
            words, to = self._look(context, self.pipeline_of(declared), path)
            # For a rebuild, the database is still empty.
            seen = 0 if context["params"]["what"] == REBUILD else PostgresLedger(engine).position(declared.name)
        context["ti"].xcom_push(key="seen", value=seen)
        self.log.info(words)
        if to is None:
            self.skip(ti=context["ti"], tasks=context["task"].get_flat_relatives(upstream=False))
        context["ti"].xcom_push(key="position", value=to)
        # File names are untrusted, and the approval page renders Markdown.
        return "```\n" + words.replace("`", "'") + "\n```"

    def _look(self, context: "Context", pipeline: "Pipeline", path: Path) -> tuple[str, int | None]:
        """The message, and the position to start from; None if there is nothing to do."""
        at = position_of(context)
        match context["params"]["what"]:
            case "state":
                state = pipeline.recover_state(position=at or 0, dry_run=True)
                return state_in_words(state), state.snapshot_position if state.is_different else None
            case "rewind":
                seen = context["params"]["expected_position"]
                found = pipeline.recover_rewind(position=at, expected_position=seen, dry_run=True)
                words = rewind_in_words(found)
                if found.differing and not context["params"]["accept_differences"]:
                    expected = "rows that match their receipts (or set accept_differences to rewind anyway)"
                    raise SettingRefused(f"rewinding pipeline {pipeline.name}", "; ".join(found.differing), expected)
                more = (
                    "\nRows that are loaded before the approval are deleted too. Afterwards everything is loaded again "
                    "from the files that exist then: rows of deleted files do not come back."
                )
                return words + (more if found.entries else ""), found.rewound_to if found.entries else None
            case _:
                from onceload.runs import check_rebuild

                if is_by_day(path):
                    expected = "a source.path without a day (run the DAG backfill for all days in the new database)"
                    raise SettingRefused(f"rebuilding pipeline {pipeline.name}", "one with a day", expected)
                check_rebuild(pipeline)
                return f"pipeline {pipeline.name}: this database has none of its rows; all files would be loaded", 0


class Approve(ApprovalOperator):
    """Ask for approval if rows would be deleted."""

    def __init__(self, *, response_timeout: timedelta, **others: Any) -> None:  # noqa: ANN401
        # Before this argument had its name, a deferred task waited for the timeout of its execution.
        is_known = "response_timeout" in inspect.signature(HITLOperator.__init__).parameters
        timeout = {"response_timeout": response_timeout} if is_known else {"execution_timeout": response_timeout}
        super().__init__(**{**others, **timeout})

    def execute(self, context: "Context") -> Any:  # noqa: ANN401 - as the operator above it has it.
        if context["params"]["what"] != REWIND:
            self.log.info("no row will be deleted, so no approval is needed")
            return None
        return super().execute(context)

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        """The timeout of the approval: not retried, because a retry would wait just as long."""
        raise AirflowFailException(f"{event['error']} Nothing was changed. Clear this task to ask again")


class Apply(OfOnePipeline):
    """Repair producers, or rewind to the approved position; then list the runs that load the rest again.

    The change is one transaction, which fences all running sessions of the pipeline.
    """

    def execute(self, context: "Context") -> list[dict[str, object]]:
        path, declared = self.found(context)
        to = Position(context["ti"].xcom_pull(task_ids="look", key="position"))
        if context["params"]["what"] == REBUILD:
            return []
        with self.opened() as engine:
            pipeline = self.pipeline_of(declared)
            if context["params"]["what"] == STATE:
                self.log.info(state_in_words(pipeline.recover_state(position=to)))
                return []
            seen = Position(context["ti"].xcom_pull(task_ids="look", key="seen"))
            ledger = PostgresLedger(engine)
            gone = _taken_back(ledger, declared, since=seen, to=to)
            if gone is None:
                refuse_paused(engine, declared.name)
                found = pipeline.recover_rewind(position=to, accepts_differences=accepts_differences(context))
                self.log.info(rewind_in_words(found))
                gone = _taken_back(ledger, declared, since=seen, to=to)
        context["ti"].xcom_push(key="dag_id", value=dag_id_of(declared.name))
        if not is_by_day(path):
            return [_as_run(context, None)]
        of_days = _days_of(path, declared, gone or ())
        context["ti"].xcom_push(key="of_no_day", value=sorted(name for name, days in of_days.items() if not days))
        days = sorted({day for days in of_days.values() for day in days})
        context["ti"].xcom_push(key="days_left", value=[str(day) for day in days[_DAYS_MAX:]])
        return [_as_run(context, day) for day in days[:_DAYS_MAX]]


class Conclude(OfOnePipeline):
    """Report the result of a recovery; fail if a person must finish it."""

    def execute(self, context: "Context") -> dict[str, object]:
        _, declared = self.found(context)
        with self.opened() as engine:
            position = PostgresLedger(engine).position(declared.name)
            if context["params"]["what"] == REWIND:
                # The runs that should load again were skipped.
                refuse_paused(engine, declared.name)
        left = []
        if days := context["ti"].xcom_pull(task_ids="apply", key="days_left"):
            left.append(
                f"{len(days):,} days from {days[0]} to {days[-1]}, because Airflow starts at most {_DAYS_MAX:,} runs "
                "at once (start the DAG backfill for them)"
            )
        if names := context["ti"].xcom_pull(task_ids="apply", key="of_no_day"):
            left.append(
                f"files whose names belong to no day of source.path: {', '.join(names)} (run `onceload load` with the "
                "matching --set)"
            )
        if left:
            raise AirflowFailException("The rewind is done, but these are not loaded again yet: " + "; and ".join(left))
        return {"pipeline": declared.name, "what": context["params"]["what"], "position": position}


class Rebuild(OfOnePipeline, Load):
    """Load a whole pipeline into an empty database, on Spark."""

    # Most runs of this DAG do not rebuild, and have no pipeline file.
    operator_extra_links = ()

    def __init__(self, **others: Any) -> None:  # noqa: ANN401
        super().__init__(pipeline_file="", publishes=False, engine="spark", **others)

    def command(self, context: "Context", *, publishes: bool) -> list[str]:
        del publishes
        snapshot = context["params"]["snapshot_file"]
        return ["recover", "rebuild", self.pipeline_file, *([f"--snapshot={snapshot}"] if snapshot else [])]

    def load(self, context: "Context", pipeline: "Pipeline", *, publishes: bool, **how: Any) -> Outcome:  # noqa: ANN401
        del publishes
        done = pipeline.recover_rebuild(snapshot=context["params"]["snapshot_file"] or None, **how)
        show_rebuild(done, self.show, remembers_ids=pipeline.declared.message_id is not None)
        return replace(Outcome.of(done.report), exit_code=done.exit_code)

    def execute(self, context: "Context") -> None:
        if context["params"]["what"] != REBUILD:
            return
        path, _ = self.found(context)
        self.pipeline_file = str(path)
        super().execute(context)


def _taken_back(
    ledger: PostgresLedger, declared: "Declared", *, since: Position, to: Position
) -> frozenset[str] | None:
    """The producers of the rewind since the dry run; an approval is for one rewind, however often it is retried."""
    entries = ledger.entries(declared.name, after=since)
    ours = [each for each in entries if each.kind is EntryKind.REWIND and each.batch.endswith(f"-to-{to}")]
    return frozenset(receipt.producer for entry in ours for receipt in entry.receipts) if ours else None


def _refuse_paused_dag(context: "Context", declared: "Declared") -> None:
    dag_id = dag_id_of(declared.name)
    if context["ti"].get_dag(dag_id).is_paused:
        raise SettingRefused(
            f"DAG {dag_id}", "a paused DAG", "an active DAG, because its runs do the loading (unpause it)"
        )


def position_of(context: "Context") -> Position | None:
    """The position parameter, or None."""
    position = context["params"]["position"]
    return None if position is None else Position(int(position))


def _days_of_range(path: Path, first: str | None, last: str | None) -> Sequence[date | None]:
    if not is_by_day(path):
        if first or last:
            expected = "no days, because its source.path contains no day (choose files instead)"
            raise SettingRefused(f"the days of {path.name}", f"{first} to {last}", expected)
        return [None]
    if not first or not last:
        expected = "the first and the last day, because its source.path contains a day"
        raise SettingRefused(f"the days of {path.name}", f"{first} to {last}", expected)
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    if not 0 <= (end - start).days < _DAYS_MAX:
        raise SettingRefused(
            f"the days of {path.name}", f"{first} to {last}", f"1 to {_DAYS_MAX:,} days, the first one first"
        )
    return [start + timedelta(days=number) for number in range((end - start).days + 1)]


def _days_of(path: Path, declared: "Declared", producers: Collection[str]) -> dict[str, set[date]]:
    """The days whose runs read each file: a date in its name counts if the path of that day matches the file."""
    from onceload_jobs.files.patterns import Pattern

    @cache
    def pattern_of(day: date) -> Pattern:
        source = read_pipeline(path, offered=values_of_day(day)).source
        return Pattern.parse(source.path, root=source.root)

    def is_read(name: str, pattern: Pattern) -> bool:
        return name.startswith(pattern.prefix) and pattern.matches(name.removeprefix(pattern.prefix))

    return {
        name: {day for found in _DAY.findall(name) for day in _day_of(found) if is_read(name, pattern_of(day))}
        for name in producers
        if not _is_named_by_records(declared, name)
    }


def _day_of(found: str) -> Iterator[date]:
    with suppress(ValueError):
        yield date.fromisoformat(found)


def _is_named_by_records(declared: "Declared", name: str) -> bool:
    return declared.producer is not None and name.startswith(declared.producer.prefix)


def _as_run(context: "Context", day: date | None, **asked: object) -> dict[str, object]:
    """A run of the pipeline's own DAG, with a name that is the same in every retry of this run only."""
    by = f"{context['run_id']}__{context['dag'].dag_id}"
    if day is None:
        return {"trigger_run_id": by, "conf": asked}
    return {"trigger_run_id": f"{by}__{day}", "conf": {"date": str(day), **asked}}
