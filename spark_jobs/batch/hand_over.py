"""The data of a staged batch, besides rows and proofs, that another process needs to audit and publish it.

The claim of the batch then names the stage. The ledger is authoritative: a process that publishes a second time finds
the claim gone and the batch in the ledger. If it finds neither, nothing is lost, because the next load plans the same
records again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Engine

from dedup_core.names import ProducerId
from dedup_core.ports import Claim
from dedup_core.postgres.batches import PostgresBatches
from dedup_core.postgres.connection import translated
from dedup_core.spans import SpanSet
from spark_jobs.batch.job import Job, Replacement
from spark_jobs.batch.parts import read_word, write_word
from spark_jobs.batch.stage import Stage
from spark_jobs.files.notes import Note
from spark_jobs.pipeline.columns import Column, ColumnType, Kind
from spark_jobs.write.patience import answered


@dataclass(frozen=True, kw_only=True)
class Word:
    """What the planner of a batch leaves for the process that publishes it."""

    #: The number of deliveries that must be complete.
    deliveries: int
    written: tuple[Column, ...]
    has_lineage: bool
    replaced: Mapping[ProducerId, Replacement]
    notes: tuple[Note, ...]


def keep(engine: Engine, job: Job, stage: Stage, claim: Claim, *, deliveries: int, notes: Sequence[Note]) -> None:
    """Store the word, and keep the stage with the claim of the batch."""
    word = Word(
        deliveries=deliveries,
        written=job.written,
        has_lineage=job.has_lineage,
        replaced=job.replaced,
        notes=tuple(notes),
    )
    batches = PostgresBatches(engine, job.declared.name)

    def keep_now() -> None:
        with translated(pipeline=job.declared.name, doing="keeping a batch"), engine.begin() as connection:
            write_word(connection, stage, _written(word))
        batches.keep(claim, stage=stage.name)

    # Idempotent, because it is retried when an answer was lost.
    answered(keep_now)


def word_of(engine: Engine, pipeline: str, stage: Stage) -> Word:
    with translated(pipeline=pipeline, doing="looking at a stage"), engine.begin() as connection:
        return _read(json.loads(read_word(connection, stage)))


def _written(word: Word) -> str:
    return json.dumps(
        {
            "deliveries": word.deliveries,
            "written": [asdict(column) for column in word.written],
            "has_lineage": word.has_lineage,
            "replaced": [[new, each.old, each.name, str(each.planned)] for new, each in word.replaced.items()],
            "notes": [asdict(note) for note in word.notes],
        }
    )


def _read(said: Mapping[str, Any]) -> Word:
    return Word(
        deliveries=said["deliveries"],
        written=tuple(map(_column, said["written"])),
        has_lineage=said["has_lineage"],
        replaced={
            ProducerId(new): Replacement(old=ProducerId(old), name=name, planned=SpanSet.parse(planned))
            for new, old, name, planned in said["replaced"]
        },
        notes=tuple(Note(**each) for each in said["notes"]),
    )


def _column(said: Mapping[str, Any]) -> Column:
    its_type = ColumnType(**{**said["type"], "kind": Kind(said["type"]["kind"])})
    return Column(name=said["name"], type=its_type, not_null=said["not_null"])
