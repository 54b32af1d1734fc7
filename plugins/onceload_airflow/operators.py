"""The tasks of a run: context in, one call, result out. The rules are in the packages that they call."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import BaseOperator, BaseOperatorLink, BaseSensorOperator, Connection

import onceload
from onceload.databases import open_database
from onceload.loads_in_words import show_report
from onceload.named_files import with_file
from onceload.outcome import Outcome
from onceload.pipeline import Pipeline
from onceload.pipeline_file import placeholders, read_pipeline
from onceload_airflow.arrivals import Arrivals
from onceload_airflow.asked import (
    accepts_differences,
    batch_of,
    chosen_files,
    given_values,
    is_followed,
    is_replacing,
)
from onceload_airflow.connections import CONNECTION
from onceload_airflow.failures import ANY, CLEAR, failure_of, in_airflows_words, not_loaded
from onceload_airflow.hook import OnceloadHook
from onceload_airflow.links import DataDocsLink, LedgerLink, SparkLink, console_page
from onceload_airflow.spark_submit import SPARK_CONNECTION, run_submitted, where_of
from onceload_airflow.task_log import progress_lines
from onceload_airflow.versions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    stats,
)
from onceload_core.errors import ExitCode

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from onceload import Report as LoadReport
    from onceload.engines import EngineName
    from onceload.runs import Found
    from onceload_airflow.lineage import Lineage

#: The XCom key of problems for which the report fails.
_NEEDS_A_PERSON = "needs_a_person"
#: The XCom key of files that other runs held when the batch was planned.
_HELD = "held"
_IGNORED_FIELDS = "ignored_fields"


class _OfPipeline(BaseOperator):
    """A task for one pipeline file; the batch has the name of the run, so that a later try fences this one."""

    template_fields: Sequence[str] = ("pipeline_file",)

    def __init__(self, *, pipeline_file: str, onceload_conn_id: str = CONNECTION, **others: Any) -> None:  # noqa: ANN401
        super().__init__(**others)
        self.pipeline_file = pipeline_file
        #: As all tasks of a DAG have it: a template is filled in only for the task that runs.
        self.file_as_declared = pipeline_file
        self.onceload_conn_id = onceload_conn_id

    def pipeline(self, context: "Context") -> Pipeline:
        with in_airflows_words(self.pipeline_file):
            declared = read_pipeline(Path(self.pipeline_file), offered=given_values(context))
            return OnceloadHook(self.onceload_conn_id).pipeline(declared)

    def with_file(self, text: str) -> str:
        return with_file(text, Path(self.pipeline_file))

    def look(self, context: "Context", pipeline: Pipeline, *, batch: str | None = None) -> "Found":
        """What there is to load of the files that the run was asked for."""
        from onceload.runs import look

        with in_airflows_words(self.pipeline_file):
            files, replaces = chosen_files(context), is_replacing(context)
            return look(pipeline, only=files, replaces=replaces, batch=batch)

    @contextmanager
    def skipped_without_rows(self, context: "Context") -> Iterator[None]:
        """Skip the task if nothing is staged because the batch is published, or another load was faster."""
        from onceload.runs import is_published

        with in_airflows_words(self.pipeline_file):
            try:
                yield
            except onceload.NothingKept as error:
                pipeline = self.pipeline(context)
                if is_published(pipeline, batch=batch_of(context)):
                    raise AirflowSkipException("this batch is already published") from error
                found = self.look(context, pipeline, batch=batch_of(context))
                if found.is_busy:
                    raise
                if found.is_anything_new or found.needs_a_person or found.is_paused:
                    # The staging table is gone, and only another load can create it.
                    raise AirflowFailException(str(error)) from error
                raise AirflowSkipException(
                    "nothing was staged, because another load has already loaded these records"
                ) from error

    def publish(self, context: "Context") -> "LoadReport":
        """Publish the staged batch, and leave its problems to the report."""
        with self.skipped_without_rows(context):
            accepts = accepts_differences(context)
            report = self.pipeline(context).publish(batch_of(context), accepts_differences=accepts)
        if report.problems:
            context["ti"].xcom_push(key=_NEEDS_A_PERSON, value=report.problems)
        return report


class Plan(ShortCircuitOperator, _OfPipeline):
    """Look for new records; if there are none, skip the rest of the run, so that Spark is not started."""

    template_fields: Sequence[str] = ("pipeline_file",)

    def __init__(self, *, pipeline_file: str, **others: Any) -> None:  # noqa: ANN401
        super().__init__(pipeline_file=pipeline_file, python_callable=self._is_anything_new, **others)

    def execute(self, context: "Context") -> Any:  # noqa: ANN401 - as the operator above it has it.
        self.op_kwargs = {"context": context}
        return super().execute(context)

    def _is_anything_new(self, context: "Context") -> bool:
        from onceload.runs import look_for_run

        with in_airflows_words(self.pipeline_file):
            files, replaces = chosen_files(context), is_replacing(context)
            found = look_for_run(self.pipeline(context), only=files, replaces=replaces, batch=batch_of(context))
        for line in found.lines:
            self.log.info(self.with_file(line))
        needs_a_person, held = self.with_file(found.needs_a_person), self.with_file(found.held)
        if not found.is_anything_new and needs_a_person:
            raise AirflowFailException(f"nothing can be loaded, and these files need a person: {needs_a_person}")
        if not found.is_anything_new and held:
            # Its run may be about to publish it.
            raise AirflowException(f"nothing can be loaded, because other runs hold all new files: {held}. {CLEAR}")
        # The task load waits for other loads, and then loads what they leave.
        is_awaited = found.is_busy and not is_followed(context, Path(self.pipeline_file))
        return found.is_anything_new or is_awaited


class WaitForFiles(_OfPipeline, BaseSensorOperator):
    """Wait until a pipeline has new records, for `timeout` at most; waiting does not occupy a worker."""

    template_fields: Sequence[str] = ("pipeline_file",)

    def execute(self, context: "Context") -> dict[str, object]:
        found = self.look(context, self.pipeline(context))
        if not found.is_anything_new:
            trigger = Arrivals(
                pipeline_file=self.pipeline_file,
                onceload_conn_id=self.onceload_conn_id,
                values=given_values(context),
                every_s=self.poke_interval,
            )
            self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))
        return {"files": found.files, "bytes": found.bytes}

    def resume(self, context: "Context", event: dict[str, object]) -> dict[str, object]:
        del context
        return event


class Load(_OfPipeline):
    """Stage a batch for the tasks after it, or also publish it.

    It runs in this process, with the Spark that ONCELOAD_SPARK or the connection names, or with processes of this
    worker. To a master it is submitted: spark-submit starts `onceload stage | load` in a process of its own.
    """

    operator_extra_links: Collection[BaseOperatorLink] = (LedgerLink(), SparkLink())

    def __init__(
        self,
        *,
        publishes: bool,
        engine: "EngineName" = "auto",
        conn_id: str = SPARK_CONNECTION,
        conf: Mapping[str, str] = {},
        **others: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**others)
        self.publishes = publishes
        self.engine: EngineName = engine
        self.conn_id = conn_id
        self.conf = conf
        #: Where the link "Spark" leads, once the load has ended.
        self.spark_ui = ""
        self._loads_here = False

    def execute(self, context: "Context") -> None:
        where = where_of(self.engine, self.conn_id)
        self.log.info("the load runs %s", where.words)
        # Only `publish` accepts differences, because it never replaces loaded rows with those of an empty file.
        publishes = self.publishes and not accepts_differences(context)
        with in_airflows_words(self.pipeline_file):
            if where.master is None:
                outcome = self._run_here(context, where.server, publishes=publishes)
            else:
                outcome = self._submit(context, where.master, publishes=publishes)
        is_of_files = outcome.exit_code is ExitCode.NEEDS_A_PERSON and not outcome.error
        if outcome.exit_code is not ExitCode.DONE and not (is_of_files and self.publishes):
            raise failure_of(outcome)
        self.spark_ui = outcome.spark_ui
        self._push(context, outcome)
        if self.publishes and not publishes:
            self.publish(context)

    def _push(self, context: "Context", outcome: Outcome) -> None:
        """Leave to the report what is not loaded: if all other files are, the message names those."""
        reported = {
            _NEEDS_A_PERSON: outcome.message,
            _HELD: outcome.held,
            _IGNORED_FIELDS: dict(outcome.ignored_fields),
        }
        for key, value in reported.items():
            if value:
                context["ti"].xcom_push(key=key, value=value)

    def _run_here(self, context: "Context", server: str | None, *, publishes: bool) -> Outcome:
        pipeline = self.pipeline(context)
        with in_airflows_words(self.pipeline_file, kinds=ANY), self._ended_by_kill():
            return self.load(
                context,
                pipeline,
                publishes=publishes,
                batch=batch_of(context),
                engine=self.engine,
                remote=server,
                on_progress=progress_lines(self.show, pipeline.name),
            )

    def load(self, context: "Context", pipeline: Pipeline, *, publishes: bool, **how: Any) -> Outcome:  # noqa: ANN401
        run = pipeline.load if publishes else pipeline.stage
        report = run(only=chosen_files(context), replaces=is_replacing(context), **how)
        show_report(report, self.show)
        return Outcome.of(report)

    def show(self, line: str) -> None:
        self.log.info("%s", self.with_file(line))

    @contextmanager
    def _ended_by_kill(self) -> Iterator[None]:
        self._loads_here = True
        try:
            yield
        finally:
            self._loads_here = False

    def on_kill(self) -> None:
        """End the load. It releases what it holds by itself; a later try may already use the same name."""
        if self._loads_here:
            # A second signal must not interrupt the release.
            self._loads_here = False
            # Airflow calls this from its handler of the signal, and goes on with the task otherwise.
            raise KeyboardInterrupt
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.terminate()

    def _submit(self, context: "Context", master: Connection, *, publishes: bool) -> Outcome:
        hook = OnceloadHook(self.onceload_conn_id)
        access = hook.access_for(self.pipeline(context).declared.source.path)
        return run_submitted(
            master,
            self.conf,
            name=str(context["run_id"]),
            arguments=self._arguments(context, publishes=publishes),
            environment={**hook.environment(), **access},
        )

    def _arguments(self, context: "Context", *, publishes: bool) -> list[str]:
        values = given_values(context)
        asked = [name for name in placeholders(Path(self.pipeline_file)) if name in values]
        return [
            *self.command(context, publishes=publishes),
            *(f"--set={name}={values[name]}" for name in asked),
            # A value may begin with a hyphen.
            f"--batch={batch_of(context)}",
            "--engine=spark",
        ]

    def command(self, context: "Context", *, publishes: bool) -> list[str]:
        """The arguments of the submitted call, without placeholders and batch."""
        chosen = [f"--only={each}" for each in chosen_files(context)]
        chosen += ["--replace"] if is_replacing(context) else []
        return ["load" if publishes else "stage", self.pipeline_file, *chosen]


class Audit(_OfPipeline):
    """Check the staged batch with its suite; a batch that fails is not published, and not retried."""

    operator_extra_links = (DataDocsLink(),)

    def execute(self, context: "Context") -> dict[str, object]:
        with self.skipped_without_rows(context):
            audit = self.pipeline(context).audit(batch_of(context))
        for finding in audit.findings:
            self.log.info("%s", finding)
        return {"suite": audit.suite, "rows": audit.rows, "passed": audit.passed, "expectations": len(audit.findings)}


class Publish(_OfPipeline):
    """Publish the staged batch in one commit; publishing it twice changes nothing."""

    operator_extra_links = (LedgerLink(),)

    def execute(self, context: "Context") -> dict[str, object]:
        return _counts(self.publish(context))


class Report(_OfPipeline):
    """Report the result of the run from the ledger; fail at the end if files need a person."""

    operator_extra_links = (LedgerLink(),)

    def __init__(self, *, outlet: Any = None, **others: Any) -> None:  # noqa: ANN401 - an asset.
        super().__init__(outlets=[outlet] if outlet else [], **others)
        self._asset = outlet
        self._lineage: Lineage | None = None

    def execute(self, context: "Context") -> dict[str, object]:
        from onceload.runs import outcome
        from onceload_airflow.lineage import Lineage

        with in_airflows_words(self.pipeline_file):
            pipeline = self.pipeline(context)
            report = outcome(pipeline, batch=batch_of(context))
            found = self.look(context, pipeline, batch=batch_of(context))
            with open_database(pipeline.settings) as engine:
                self._lineage = Lineage.of(pipeline.declared, report, engine)
        if found.is_held:
            raise AirflowFailException(
                "the batch of this run is staged but not published. Its rows are not in the table. "
                "Clear the task load to publish it"
            )
        reported = self._of_tasks(context, _NEEDS_A_PERSON)
        held = self._joined([self._held(context, found)])
        problems = self._joined([*reported, report.problems, found.needs_a_person])
        if not (problems or held or report.records):
            raise AirflowSkipException("this run loaded no record, so there is nothing to report")
        counts = _counts(report)
        if ignored := self._of_tasks(context, _IGNORED_FIELDS):
            counts[_IGNORED_FIELDS] = ignored[-1]
        if self._asset is not None:
            context["outlet_events"][self._asset].extra = counts
        self.log.info("%s", counts)
        _send_metrics(counts)
        if problems or held:
            others = "Other files are left for the next run" if found.is_anything_new else "All other files are loaded"
            page = console_page("attention", pipeline=report.pipeline)
            raise AirflowFailException(f"{not_loaded(problems, held)}. {others}. Console: {page}")
        return counts

    def _joined(self, reasons: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(self.with_file(each) for each in reasons if each))

    def _held(self, context: "Context", found: "Found") -> str:
        """The files that are not loaded because a batch holds them, or held them and no later run loads them."""
        if found.held or is_followed(context, Path(self.pipeline_file)):
            return found.held
        is_left = found.is_busy or found.is_anything_new
        return "; ".join(self._of_tasks(context, _HELD)) if is_left else ""

    def _of_tasks(self, context: "Context", key: str) -> list[Any]:
        """What the tasks of this file before it reported. A DAG may load other files before it."""
        before = (each for each in self.get_flat_relatives(upstream=True) if isinstance(each, _OfPipeline))
        of_file = sorted(each.task_id for each in before if each.file_as_declared == self.file_as_declared)
        reported = context["ti"].xcom_pull(task_ids=of_file, key=key) if of_file else []
        return [each for each in reported or [] if each is not None]

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> "OperatorLineage[Any, Any] | None":  # noqa: ANN401
        """The hook of Airflow's OpenLineage provider; also called for a report that fails."""
        del task_instance
        return self._lineage.in_openlineage() if self._lineage else None


def _send_metrics(counts: Mapping[str, Any]) -> None:
    """Send the counts to Airflow's metrics, tagged with the pipeline."""
    metrics = stats()
    for name in ("loaded", "duplicates", "quarantined", "filtered", "bytes"):
        metrics.incr(f"onceload.{name}", counts[name], tags={"pipeline": counts["pipeline"]})
    metrics.gauge("onceload.position", counts["position"], tags={"pipeline": counts["pipeline"]})


def _counts(report: "LoadReport") -> dict[str, Any]:
    fields = asdict(report)
    return {
        name: fields[name]
        for name in ("pipeline", "position", "loaded", "duplicates", "quarantined", "filtered", "bytes")
    }
