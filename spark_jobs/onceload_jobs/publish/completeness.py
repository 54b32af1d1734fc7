"""What of a batch may be published."""

from collections.abc import Sequence
from dataclasses import dataclass

from onceload_core.errors import NeedsAPerson
from onceload_core.names import ProducerId
from onceload_jobs.batch.job import Job, Replacement
from onceload_jobs.batch.piece import Piece, advances_of
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.limits import check_quarantine


@dataclass(eq=False)
class BatchIncomplete(NeedsAPerson):
    """A part of a batch could not be staged, and the batch may only be published completely."""

    pipeline: str
    batch: str
    tries: int
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: a part of batch {self.batch} failed {self.tries} times, last with: "
            f"{self.reason}. Nothing was published, because this batch is published completely or not at all. Fix the "
            "cause, and load again."
        )


def check_pieces(declared: Declared, pieces: Sequence[Piece]) -> None:
    """Refuse more bad records than the pipeline allows."""
    bad = [record for piece in pieces for record in piece.quarantined]
    check_quarantine(declared, bad, records=sum(piece.records for piece in pieces) + len(bad))


def half_read(job: Job, pieces: Sequence[Piece], notes: Sequence[Note]) -> dict[ProducerId, Replacement]:
    """New generations that were not read completely: they must not replace loaded rows."""
    read = {advance.producer_id: advance for advance in advances_of(pieces)}
    noted = {note.name for note in notes}
    return {
        new: replacement
        for new, replacement in job.replaced.items()
        if new in read and (replacement.name in noted or not replacement.is_whole(read[new]))
    }
