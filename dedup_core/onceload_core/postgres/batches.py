"""Batches that are staged now and published later, and the results of their audits.

The claim of the planner covers the spans of a batch while that process lives. Once everything is staged, the claim
names the stage: from then on the batch itself holds the claim, and any process may audit and publish it.

    claimed ── all is staged ──> kept ── publish (the commit acks the claim) ──> in the ledger
                                  └── given up, or expired and claimed by another batch ──> planned again

A later epoch of the planner (the same batch, run again) plans again. From then on, what an earlier one kept is refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from shlex import quote

from sqlalchemy import Connection, Engine

from onceload_core.errors import DeliveryTakenAway
from onceload_core.events import event
from onceload_core.names import Batch, DeliveryId, Epoch, Position, SessionName
from onceload_core.ports import Claim, Session
from onceload_core.postgres.commit import holder_binds
from onceload_core.postgres.connection import array, change, statements, transaction, translated
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.rows import version_in
from onceload_core.postgres.sessions import session_of

SQL = statements("batches.sql")
#: The lease of a staged batch, extended by each use. After it, other batches may load the same records.
STAGE_KEPT_S = 3_600.0


def planner_of(batch: Batch) -> SessionName:
    """The session that plans a batch, claims its spans, and publishes it."""
    return session_of(batch, "plan")


@dataclass(frozen=True, kw_only=True)
class KeptBatch:
    """A batch that is completely staged and not published."""

    claim: Claim
    stage: str
    #: Whether the last audit of this stage passed.
    has_passed: bool


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one expectation."""

    expectation: str
    #: The column, or another subject.
    about: str | None
    severity: str
    success: bool
    unexpected: int | None = None
    checked: int | None = None
    observed: str | None = None
    #: Some of the unexpected values.
    sample: str | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether it blocks publishing. A failure that is not critical only warns."""
        return self.severity == "critical" and not self.success

    def __str__(self) -> str:
        about = f" {self.about}" if self.about else ""
        found = [f"observed {self.observed}"] if self.observed else []
        if self.unexpected:
            found = [f"{self.unexpected:,} of {self.checked or 0:,} are unexpected", *found]
        if self.sample:
            found.append(f"such as {self.sample}")
        return f"{self.severity}: {self.expectation}{about}: {'; '.join(found) or 'met'}"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of a suite on one stage."""

    batch: Batch
    stage: str
    suite: str
    #: The suite's expectations, abbreviated.
    asked: str
    rows: int
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return not any(each.is_refusal for each in self.findings)


class PostgresBatches:
    """The staged batches of one pipeline."""

    def __init__(self, engine: Engine, pipeline: str) -> None:
        self._engine = engine
        self._pipeline = pipeline

    def keep(self, claim: Claim, *, stage: str) -> None:
        """Pass the planner's claim to the batch, or extend its lease."""
        binds = {**holder_binds(claim), "stage": stage, "lease_s": STAGE_KEPT_S}
        with transaction(self._engine, self._pipeline, doing="keeping a batch") as connection:
            if connection.execute(SQL["keep_stage"], binds).rowcount != 1:
                session = claim.session
                raise DeliveryTakenAway(
                    self._pipeline, claim.delivery_id, session.name, session.epoch, "no longer held"
                )

    def find(self, batch: Batch, *, asked: str | None = None) -> KeptBatch | None:
        """A staged batch, and the result of its last audit with the same expectations."""
        binds = {**self._binds(batch), "asked": asked}
        with transaction(self._engine, self._pipeline, doing="looking for a batch") as connection:
            row = connection.execute(SQL["kept_batch"], binds).one_or_none()
        if row is None:
            return None
        # A new version deletes what earlier ones kept, so this one is in force.
        session = Session(
            pipeline=self._pipeline, name=planner_of(batch), epoch=Epoch(row.epoch), version=version_in(row)
        )
        claim = Claim(delivery_id=DeliveryId(row.delivery_id), session=session, spans={})
        return KeptBatch(claim=claim, stage=row.stage, has_passed=row.has_passed)

    def published_at(self, batch: Batch) -> Position | None:
        """The position at which the last run of a batch was published, if it was."""
        with transaction(self._engine, self._pipeline, doing="reading the ledger") as connection:
            position = connection.execute(SQL["published_at"], self._binds(batch)).scalar_one()
        return None if position is None else Position(position)

    def is_held(self, batch: Batch) -> bool:
        """Whether an earlier run of the same batch holds a claim, staged or not."""
        with transaction(self._engine, self._pipeline, doing="looking for a batch") as connection:
            return bool(connection.execute(SQL["is_held"], self._binds(batch)).scalar_one())

    @contextmanager
    def alone_with(self, kept: KeptBatch) -> Iterator[None]:
        """Lock the batch against other audits and publishes. A caller whose wait times out may retry."""
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            with translated(pipeline=self._pipeline, doing="waiting for the lock of a batch"):
                connection.execute(SQL["lock_batch"], {"stage": kept.stage})
            yield
        finally:
            # Closing the connection releases the lock in all cases.
            connection.invalidate()
            connection.close()

    def give_up(self, kept: KeptBatch) -> None:
        """Release a batch, so that the next load plans the same records again."""
        binds = holder_binds(kept.claim)
        with self._giving_up() as connection:
            batch = connection.execute(SQL["give_up"], binds).scalar_one_or_none()
        if batch is not None:
            event("batch_given_up", pipeline=self._pipeline, batch=batch, stage=kept.stage)

    def drop_evidence(self, batch: Batch) -> tuple[str, ...]:
        """Stop keeping the stages of failed audits, and return them."""
        binds = {"pipeline": self._pipeline, "batch": batch}
        with self._giving_up() as connection:
            stages = tuple(connection.execute(SQL["drop_evidence"], binds).scalars())
        for stage in stages:
            event("audited_rows_given_up", pipeline=self._pipeline, batch=batch, stage=stage)
        return stages

    def _giving_up(self) -> AbstractContextManager[Connection]:
        see = f"onceload deliveries list --pipeline {quote(self._pipeline)}"
        return change(self._engine, self._pipeline, doing="giving up a batch", see=see)

    def record(self, audit: Audit, *, kept_s: float) -> None:
        """Record the result of an audit. Each pipeline keeps the stage of its last failed audit for a while."""
        see = f"onceload audits --pipeline {quote(self._pipeline)}"
        with change(self._engine, self._pipeline, doing="recording an audit", see=see) as connection:
            pipeline_id = get_pipeline(connection, self._pipeline).pipeline_id
            binds = {
                "pipeline_id": pipeline_id,
                "batch": audit.batch,
                "stage": audit.stage,
                "suite": audit.suite,
                "asked": audit.asked,
                "rows": audit.rows,
                "passed": audit.passed,
                "kept_s": None if audit.passed else kept_s,
            }
            audit_id = connection.execute(SQL["record_audit"], binds).scalar_one()
            if not audit.passed:
                connection.execute(SQL["keep_no_other"], {"pipeline_id": pipeline_id, "audit_id": audit_id})
            connection.execute(SQL["record_results"], {"audit_id": audit_id, **_columns(audit.findings)})

    def _binds(self, batch: Batch) -> dict[str, object]:
        return {"pipeline": self._pipeline, "session": planner_of(batch), "batch": batch}


def _columns(findings: Sequence[Finding]) -> dict[str, str]:
    return {
        "expectations": array(each.expectation for each in findings),
        "abouts": array(each.about for each in findings),
        "severities": array(each.severity for each in findings),
        "successes": array(str(each.success).lower() for each in findings),
        "unexpecteds": array(each.unexpected for each in findings),
        "checkeds": array(each.checked for each in findings),
        "observeds": array(each.observed for each in findings),
        "samples": array(each.sample for each in findings),
    }
