"""One call with rows of a program: its producer, its session, and how its rows are written."""

from dataclasses import dataclass

from sqlalchemy import Engine

from onceload_core.names import Batch, ProducerId
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.commit import Reached
from onceload_core.postgres.rewound import Owed, find_owed
from onceload_core.postgres.sessions import session_of
from onceload_core.replay import Run
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import Job
from onceload_jobs.load.given.refusals import OfferRefused
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.rights import check_schema
from onceload_jobs.write.target import check_target, columns_to_read, ensure_target


@dataclass(frozen=True, kw_only=True)
class Call:
    job: Job
    engine: Engine
    ledger: PostgresLedger
    producer: str
    producer_id: ProducerId
    #: The ids that were loaded before.
    consumed: SpanSet
    #: What rewinds rolled back of it. A later rewind fences the session.
    owed: Owed | None
    #: Whether ids count up by one, so that a gap means lost rows.
    is_without_gaps: bool
    #: How many rows of this call were offered before.
    offered: int = 0

    def refusal(self, found: str, expected: str) -> OfferRefused:
        return OfferRefused(self.job.declared.name, self.producer, found, expected, self.offered)

    @classmethod
    def begun(
        cls,
        declared: Declared,
        engine: Engine,
        *,
        producer: str,
        is_without_gaps: bool,
        batch: Batch,
        run: Run | None,
        reached: Reached,
    ) -> "Call":
        ledger = PostgresLedger(engine, reached=reached)
        check_schema(engine, declared)
        version = ledger.declare(pipeline_with_declaration(declared), may_be_paused=False)
        is_recorded = check_target(engine, ledger, declared)
        session = ledger.open_session(declared.name, session_of(batch, "rows"), version=version)
        owed = find_owed(engine, declared.name, producer)
        evolve_target(engine, declared, session, columns=declared.columns_as_read)
        ensure_target(engine, declared, columns=declared.columns_as_read, is_recorded=is_recorded)
        producer_id = ledger.register(declared.name, [(producer, 1)])[producer, 1]
        columns = columns_to_read(engine, declared)
        job = Job(declared=declared, columns=columns, written=columns, session=session, batch=batch, run=run)
        return cls(
            job=job,
            engine=engine,
            ledger=ledger,
            producer=producer,
            producer_id=producer_id,
            consumed=ledger.know(session, [producer_id])[producer_id].state.consumed,
            owed=owed,
            is_without_gaps=is_without_gaps,
        )
