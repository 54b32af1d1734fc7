"""What a batch proves in all, and whether it took effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onceload_core.names import ProducerId
from onceload_core.ports import Advance, QuarantinedRecord
from onceload_core.postgres import PostgresLedger
from onceload_core.replay import Condition, Counts
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, advances_of, rows_by_file
from onceload_jobs.publish.made_rows import MadeRows


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    """The rows and proofs of all pieces of a batch, summed up."""

    rows: int
    #: How many good records were read; a transform may make more or fewer rows of them.
    records: int
    bytes: int
    quarantined: tuple[QuarantinedRecord, ...]
    advances: tuple[Advance, ...]
    #: The generations whose rows are replaced.
    replaced: tuple[ProducerId, ...]
    #: How many records repeat others.
    duplicates: int = 0
    #: How many records a transform made no row of.
    filtered: int = 0
    #: The records of the quarantine that the rows were made of, and how many rows each file has, if not one each.
    settled: Mapping[tuple[ProducerId, int], str] = field(default_factory=dict)
    rows_of_settled: Mapping[ProducerId, int] | None = None

    @classmethod
    def of(cls, job: Job, pieces: Sequence[Piece]) -> "BatchTotals":
        read = advances_of(pieces)
        if job.records_have_own_ids:
            # Workers count the rows that are left, if they are those of files.
            rows_of = rows_by_file(pieces)
            read = tuple(replace(advance, rows=rows_of[advance.producer_id]) for advance in read)
        ids = {advance.producer_id for advance in read}
        replaced = tuple(replacement.old for new, replacement in job.replaced.items() if new in ids)
        return cls(
            rows=sum(piece.rows for piece in pieces),
            records=sum(piece.records for piece in pieces),
            bytes=sum(piece.bytes for piece in pieces),
            quarantined=tuple(record for piece in pieces for record in piece.quarantined),
            advances=read + _noted_as_replaced(replaced),
            replaced=replaced,
            duplicates=sum(piece.duplicates for piece in pieces),
            settled={record: digest for piece in pieces for record, digest in piece.settled.items()},
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.advances or self.settled)

    @property
    def counts(self) -> Counts:
        return Counts(
            loaded=self.rows,
            duplicate=self.duplicates,
            quarantined=len(self.quarantined),
            filtered=self.filtered,
        )

    def with_made(self, made: MadeRows) -> "BatchTotals":
        advances = tuple(replace(each, rows=made.rows_of.get(each.producer_id, 0)) for each in self.advances)
        return replace(self, advances=advances, filtered=made.filtered, rows_of_settled=made.rows_of)

    @property
    def probe(self) -> Advance | None:
        """An advance that shows whether the batch took effect."""
        return next((advance for advance in self.advances if advance.spans), None)


def _noted_as_replaced(replaced: Sequence[ProducerId]) -> tuple[Advance, ...]:
    return tuple(Advance(producer_id=old, spans=SpanSet(), condition=Condition.REPLACED) for old in replaced)


def took_effect(ledger: PostgresLedger, job: Job, totals: BatchTotals) -> bool:
    """A commit exists completely or not at all, so one of its spans is enough to check."""
    probe = totals.probe
    if probe is None:
        return False
    known = ledger.know(job.session, [probe.producer_id])
    return known[probe.producer_id].state.consumed.covers(probe.spans)
