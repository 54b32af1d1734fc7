"""The data of a staged batch, besides rows, that another process needs to audit and publish it.

The claim of the batch then names the stage. The ledger is authoritative: a process that publishes a second time finds
the claim gone and the batch in the ledger. If it finds neither, nothing is lost, because the next load plans the same
records again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.connection import transaction
from onceload_jobs.batch.job import Job, Replacement
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage import Stage, read_proof, write_proof
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

    written: tuple[Column, ...]
    has_lineage: bool
    replaced: Mapping[ProducerId, Replacement]
    notes: tuple[Note, ...]
    sealed: tuple[SealedEnd, ...] = ()
    #: What ran the workers that staged it.
    engine: str | None = None
    spark_ui: str | None = None


def keep_batch(
    engine: Engine,
    job: Job,
    stage: Stage,
    claim: Claim,
    *,
    pieces: Sequence[Piece],
    notes: Sequence[Note],
    sealed: Sequence[SealedEnd],
) -> None:
    """Store what publishing needs, and keep the stage with the claim of the batch."""
    publish_input = PublishInput(
        written=job.written,
        has_lineage=job.has_lineage,
        replaced=job.replaced,
        notes=tuple(notes),
        sealed=tuple(sealed),
        engine=job.engine,
        spark_ui=job.spark_ui,
    )
    batches = PostgresBatches(engine, job.declared.name)
    # Their rows are in the table of the stage.
    encoded = [encode(publish_input), *(encode(replace(each, file=None, blocks=())) for each in pieces)]

    def keep_now() -> None:
        with transaction(engine, job.declared.name, doing="keeping a batch") as connection:
            write_proof(connection, stage, encoded)
        batches.keep(claim, stage=stage.name)

    # Idempotent, because it is retried when an answer was lost.
    until_answered(keep_now)


def publish_input_of(engine: Engine, pipeline: str, stage: Stage) -> tuple[PublishInput, tuple[Piece, ...]]:
    """What publishing needs, and what the batch proves."""
    with transaction(engine, pipeline, doing="looking at a stage") as connection:
        publish_input, *pieces = read_proof(connection, stage)
    # Decoding many bad records takes long, and the server ends transactions that are idle for that time.
    return decode(PublishInput, publish_input), tuple(decode(Piece, each) for each in pieces)
