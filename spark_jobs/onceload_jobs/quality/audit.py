"""Audit staged rows with a suite of Great Expectations before they are published.

The checks run on the server; only counts and a few unexpected values come back. An audit sees the rows that would be
published: records that are already loaded or repeated in the batch are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from onceload_core.errors import NeedsAPerson, SettingRefused
from onceload_core.events import event
from onceload_core.names import Batch
from onceload_core.postgres.batches import Audit, Finding, PostgresBatches
from onceload_core.postgres.connection import statements, translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage import SCHEMA, Stage
from onceload_jobs.pipeline.columns import LINEAGE
from onceload_jobs.pipeline.declared import Severity, Suite
from onceload_jobs.quality.pages import context_of, write_pages
from onceload_jobs.write.sql import filled, run
from onceload_jobs.write.target import undeclared_columns
from onceload_jobs.write.writer import cast_to_target

SQL = statements("quality.sql", package=__package__)
#: How many unexpected values are shown.
_SHOWN = 5
_SHOWN_CHARACTERS_MAX = 200


@dataclass(eq=False)
class AuditFailed(NeedsAPerson):
    """Staged rows do not meet a critical expectation."""

    pipeline: str
    batch: str
    suite: str
    expectations: int
    failed: tuple[str, ...]
    stage: str
    kept_s: int

    def __str__(self) -> str:
        failed = "".join(f"\n  {each}" for each in self.failed)
        return (
            f"pipeline {self.pipeline}: batch {self.batch} failed its audit. These critical expectations of "
            f"{self.suite} ({self.expectations} expectations in all) were not met:{failed}\nNothing was published, and "
            f"the files can be loaded again. The rows are kept in {self.stage} for {self.kept_s / 3600:g} h. Fix the "
            "data or the suite, and load again."
        )


def audit_stage(engine: Engine, job: Job, stage: Stage, pieces: Sequence[Piece], *, docs: Path | None) -> Audit:
    """Run the suite, and record its result; a batch without new rows meets every expectation."""
    suite = job.declared.suite
    if suite is None:
        raise SettingRefused("audit", f"{job.declared.name}, which has no suite", "quality: {suite: <file>}")
    rows = sum(piece.rows for piece in pieces)
    findings: tuple[Finding, ...] = ()
    with translated(pipeline=job.declared.name, doing="auditing"):
        if rows:
            with _view(engine, job, stage) as view:
                findings = _ask(engine, suite, view, job.batch, docs=docs, is_traced=stage.lineage)
    audit = Audit(batch=job.batch, stage=stage.name, suite=suite.name, asked=suite.digest, rows=rows, findings=findings)
    PostgresBatches(engine, job.declared.name).record(audit, kept_s=suite.kept_s)
    _log_audited(job, audit)
    return audit


def _log_audited(job: Job, audit: Audit) -> None:
    """Log the counts only: findings have values of records."""
    event(
        "batch_audited",
        pipeline=job.declared.name,
        batch=job.batch,
        suite=audit.suite,
        passed=audit.passed,
        rows=audit.rows,
        expectations=len(audit.findings),
        unmet=sum(not finding.success for finding in audit.findings),
    )


def check(audit: Audit, job: Job, stage: Stage) -> None:
    """Refuse to publish a failed batch."""
    suite = job.declared.suite
    if audit.passed or suite is None:
        return
    raise AuditFailed(
        pipeline=job.declared.name,
        batch=job.batch,
        suite=audit.suite,
        expectations=len(audit.findings),
        failed=tuple(str(each) for each in audit.findings if each.is_refusal),
        stage=stage.rows,
        kept_s=int(suite.kept_s),
    )


@contextmanager
def _view(engine: Engine, job: Job, stage: Stage) -> Iterator[str]:
    """The rows to be published, with the columns of the target."""
    # The library does not quote names.
    view = f"audited_{stage.name}"
    with engine.begin() as connection:
        added = undeclared_columns(connection, stage.rows, known=[column.name for column in job.written])
        columns = cast_to_target((*job.written, *added), lineage=True)
        connection.execute(filled(SQL["create_audited"], view=f"{SCHEMA}.{view}", columns=columns, source=stage.rows))
    try:
        yield view
    finally:
        with engine.begin() as connection:
            run(connection, f"DROP VIEW IF EXISTS {SCHEMA}.{view}")


def _ask(
    engine: Engine, suite: Suite, view: str, batch: Batch, *, docs: Path | None, is_traced: bool
) -> tuple[Finding, ...]:
    from onceload_jobs.quality.library import gx

    # Its type hints are incomplete.
    context: Any = gx.get_context(project_config=context_of(docs), mode="ephemeral")
    source = context.data_sources.add_postgres(
        "onceload",
        # Only its form is looked at: the creator connects.
        connection_string="postgresql+psycopg2://any@any/any",
        create_temp_table=False,
        kwargs={"creator": lambda: _connection(engine)},
    )
    rows = source.add_table_asset("rows", table_name=view)
    asked = context.suites.add(gx.ExpectationSuite(name=suite.name, expectations=_expectations(suite)))
    definition = gx.ValidationDefinition(
        name=suite.name, data=rows.add_batch_definition_whole_table("all"), suite=asked
    )
    definition = context.validation_definitions.add(definition)
    traced = {"unexpected_index_column_names": [field.name for field in LINEAGE]} if is_traced else {}
    validation = definition.run(
        result_format={"result_format": "SUMMARY", "partial_unexpected_count": _SHOWN, **traced},
        run_id=gx.RunIdentifier(run_name=batch),
    )
    if docs is not None:
        write_pages(context, validation, docs)
    return tuple(_finding(engine, each.to_json_dict()) for each in validation.results)


def _connection(engine: Engine) -> Any:  # noqa: ANN401 - the driver's own.
    """A read-only connection that finds the view by its name; an audit may take long, so there is no idle timeout."""
    proxied = engine.raw_connection()
    connection: Any = proxied.driver_connection
    proxied.detach()
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = 0; SET default_transaction_read_only = on")
        cursor.execute(SQL["find_view_by_name"].text, (SCHEMA,))
    connection.commit()
    return connection


def _expectations(suite: Suite) -> list[Any]:
    from great_expectations.exceptions.exceptions import GreatExpectationsError
    from great_expectations.expectations.registry import get_expectation_impl

    made = []
    for number, each in enumerate(suite.expectations, 1):
        try:
            kind: Any = get_expectation_impl(each.type)
            made.append(kind(**each.kwargs, severity=str(each.severity)))
        except (GreatExpectationsError, ValueError, TypeError) as error:
            found = _cut("; ".join(line.strip() for line in str(error).splitlines()))
            expected = "an expectation of Great Expectations 1.x, with its kwargs"
            raise SettingRefused(f"suite {suite.path}, expectation {number} ({each.type})", found, expected) from error
    return made


def _finding(engine: Engine, evaluated: Mapping[str, Any]) -> Finding:
    config, result = evaluated["expectation_config"], evaluated["result"]
    kwargs = config.get("kwargs", {})
    about = [kwargs[key] for key in ("column", "column_A", "column_B", "column_list", "column_set") if key in kwargs]
    observed = result.get("observed_value")
    return Finding(
        expectation=config["type"],
        about=", ".join(map(str, about)) or None,
        severity=config.get("severity") or Severity.CRITICAL,
        success=bool(evaluated["success"]),
        unexpected=result.get("unexpected_count"),
        checked=result.get("element_count"),
        observed=_raised(evaluated.get("exception_info") or {}) or (None if observed is None else _cut(str(observed))),
        sample=_sample(engine, result),
    )


def _raised(info: Mapping[str, Any]) -> str | None:
    """Why an expectation could not be evaluated, such as a missing column or a wrong type."""
    each = info if "raised_exception" in info else next(iter(info.values()), {})
    if not each.get("raised_exception"):
        return None
    return _cut(f"it could not be evaluated: {_first_line(each.get('exception_message') or 'no reason given')}")


def _sample(engine: Engine, result: Mapping[str, Any]) -> str | None:
    """A few of the values, and where each was read."""
    traced = result.get("partial_unexpected_index_list") or []
    if not traced:
        shown = [_cut(repr(value)) for value in (result.get("partial_unexpected_list") or [])[:_SHOWN]]
        return ", ".join(shown) or None
    names = _names(engine, {each["_producer_id"] for each in traced})
    return ", ".join(
        f"{names.get(each['_producer_id'], 'a forgotten producer')} {each['_sequence']}: "
        + ", ".join(_cut(repr(value)) for name, value in each.items() if not name.startswith("_"))
        for each in traced[:_SHOWN]
    )


def _names(engine: Engine, producer_ids: set[int]) -> dict[int, str]:
    with engine.begin() as connection:
        return {row.producer_id: row.name for row in connection.execute(SQL["names"], {"ids": list(producer_ids)})}


def _first_line(message: object) -> str:
    return _cut((str(message).strip().splitlines() or ["no reason given"])[0])


def _cut(words: str) -> str:
    return words if len(words) <= _SHOWN_CHARACTERS_MAX else words[:_SHOWN_CHARACTERS_MAX] + "…"
