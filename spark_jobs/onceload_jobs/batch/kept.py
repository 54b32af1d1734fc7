"""The data of a staged batch, besides rows and proofs, that another process needs to audit and publish it.

The claim of the batch then names the stage. The ledger is authoritative: a process that publishes a second time finds
the claim gone and the batch in the ledger. If it finds neither, nothing is lost, because the next load plans the same
records again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.connection import transaction
from onceload_jobs.batch.job import Job, Replacement
from onceload_jobs.batch.pieces import read_publish_input, write_publish_input
from onceload_jobs.batch.stage import Stage
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.write.codec import decode, encode
from onceload_jobs.write.patience import until_answered


@dataclass(frozen=True, kw_only=True)
class SealedEnd:
    """Where a local file ended when its last line counted as sealed."""

    name: str
    url: str
    #: In its unpacked content.
    end: int
    #: The size of the file.
    size: int


@dataclass(frozen=True, kw_only=True)
class PublishInput:
    """What the planner of a batch leaves for the process that publishes it."""

    #: The number of deliveries that must be complete.
    deliveries: int
    written: tuple[Column, ...]
    has_lineage: bool
    replaced: Mapping[ProducerId, Replacement]
    notes: tuple[Note, ...]
    sealed: tuple[SealedEnd, ...] = ()


def keep_batch(
    engine: Engine,
    job: Job,
    stage: Stage,
    claim: Claim,
    *,
    deliveries: int,
    notes: Sequence[Note],
    sealed: Sequence[SealedEnd],
) -> None:
    """Store what publishing needs, and keep the stage with the claim of the batch."""
    publish_input = PublishInput(
        deliveries=deliveries,
        written=job.written,
        has_lineage=job.has_lineage,
        replaced=job.replaced,
        notes=tuple(notes),
        sealed=tuple(sealed),
    )
    batches = PostgresBatches(engine, job.declared.name)

    def keep_now() -> None:
        with transaction(engine, job.declared.name, doing="keeping a batch") as connection:
            write_publish_input(connection, stage, encode(publish_input))
        batches.keep(claim, stage=stage.name)

    # Idempotent, because it is retried when an answer was lost.
    until_answered(keep_now)


def publish_input_of(engine: Engine, pipeline: str, stage: Stage) -> PublishInput:
    with transaction(engine, pipeline, doing="looking at a stage") as connection:
        return decode(PublishInput, read_publish_input(connection, stage))
