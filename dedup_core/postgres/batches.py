"""Batches that are staged now and published later, and what audits said of them.

The claim of whoever planned a batch holds what it covers, as long as that process lives. Once all of it is staged, the
claim names the stage: from then on the batch itself holds it, and any process may audit and publish it.

    claimed ── all is staged ──> kept ── publish (the commit acks the claim) ──> in the ledger
                                  └── given up, or its time is over and another claims the same ──> planned anew

A later life of the planner (the same batch, run again) plans anew: what an earlier one kept is refused from then on.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, text

from dedup_core.errors import DeliveryTakenAway
from dedup_core.names import Batch, DeliveryId, Epoch, Position, SessionName, Version
from dedup_core.ports import Claim, Session
from dedup_core.postgres.commit import get_pipeline, holder_binds
from dedup_core.postgres.connection import array, statements, translated
from dedup_core.postgres.deliveries import session_of

SQL = statements("batches.sql")
#: How long a batch is held, since it was staged or somebody last worked on it; then another may load the same.
KEPT_S = 3_600.0


def planner_of(batch: Batch) -> SessionName:
    """The session that plans a batch, claims what it covers, and publishes it."""
    return session_of(batch, "plan")


@dataclass(frozen=True, kw_only=True)
class KeptBatch:
    """All of a batch, staged, and not published."""

    claim: Claim
    stage: str
    #: What the last audit of this very stage said.
    has_passed: bool


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one expectation came to."""

    expectation: str
    #: The column, or whatever else it is about.
    about: str | None
    severity: str
    success: bool
    unexpected: int | None = None
    checked: int | None = None
    observed: str | None = None
    #: Some of the values that were not expected.
    sample: str | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether nothing may be published because of it: what is not critical warns, and stops nothing."""
        return self.severity == "critical" and not self.success


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What a suite said of one stage."""

    batch: Batch
    stage: str
    suite: str
    #: The suite's expectations, in short.
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
        """Let the batch hold what its planner claimed; again, for another while."""
        binds = {**holder_binds(claim), "stage": stage, "lease_s": KEPT_S}
        with translated(pipeline=self._pipeline, doing="keeping a batch"), self._engine.begin() as connection:
            if connection.execute(SQL["keep_stage"], binds).rowcount != 1:
                session = claim.session
                raise DeliveryTakenAway(
                    self._pipeline, claim.delivery_id, session.name, session.epoch, "no longer held"
                )

    def find(self, batch: Batch, *, asked: str | None = None) -> KeptBatch | None:
        """A batch that waits, and what an audit said of it that asked the same."""
        binds = {**self._binds(batch), "asked": asked}
        with translated(pipeline=self._pipeline, doing="looking for a batch"), self._engine.begin() as connection:
            row = connection.execute(SQL["kept_batch"], binds).one_or_none()
        if row is None:
            return None
        # What was kept under an earlier version is gone with it.
        session = Session(
            pipeline=self._pipeline, name=planner_of(batch), epoch=Epoch(row.epoch), version=Version(row.version)
        )
        claim = Claim(delivery_id=DeliveryId(row.delivery_id), session=session, spans={})
        return KeptBatch(claim=claim, stage=row.stage, has_passed=row.has_passed)

    def published_at(self, batch: Batch) -> Position | None:
        """Where the last run of a batch was published; nothing, if it was not."""
        with translated(pipeline=self._pipeline, doing="asking the ledger"), self._engine.begin() as connection:
            position = connection.execute(SQL["published_at"], self._binds(batch)).scalar_one()
        return None if position is None else Position(position)

    def is_held(self, batch: Batch) -> bool:
        """Whether an earlier call of the same batch holds something, staged or not."""
        with translated(pipeline=self._pipeline, doing="looking for a batch"), self._engine.begin() as connection:
            return bool(connection.execute(SQL["is_held"], self._binds(batch)).scalar_one())

    @contextmanager
    def alone_with(self, kept: KeptBatch) -> Iterator[None]:
        """Nobody else audits or publishes it meanwhile; whoever waits for that for too long may call again."""
        lock = text("SELECT pg_advisory_lock(hashtextextended('onceload.batch ' || :stage, 0))")
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            with translated(pipeline=self._pipeline, doing="waiting for a batch"):
                connection.execute(lock, {"stage": kept.stage})
            yield
        finally:
            # The lock goes with its connection, however this ends.
            connection.invalidate()
            connection.close()

    def give_up(self, kept: KeptBatch) -> None:
        """Let go of a batch, so that the next load plans the same records anew."""
        binds = holder_binds(kept.claim)
        with translated(pipeline=self._pipeline, doing="giving a batch up"), self._engine.begin() as connection:
            connection.execute(SQL["give_up"], binds)

    def drop_evidence(self, batch: Batch) -> tuple[str, ...]:
        """Keep no longer what failed its audit: the stages."""
        binds = {"pipeline": self._pipeline, "batch": batch}
        with translated(pipeline=self._pipeline, doing="giving a batch up"), self._engine.begin() as connection:
            return tuple(connection.execute(SQL["drop_evidence"], binds).scalars())

    def record(self, audit: Audit, *, kept_s: float) -> None:
        """Write down what an audit said; of a pipeline the stage of the last one that failed is kept for a while."""
        with translated(pipeline=self._pipeline, doing="recording an audit"), self._engine.begin() as connection:
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
