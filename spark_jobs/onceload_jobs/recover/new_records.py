"""Which retried records are new, where records name themselves: by their producers, or by business ids.

The others stay in quarantine, with the reason: a record with their id is loaded already.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlalchemy import Connection

from onceload_core.postgres.quarantine import QuarantineId, Refusal
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import Job
from onceload_jobs.recover.stored_records import Reading
from onceload_jobs.work.bucket import Records, with_columns
from onceload_jobs.work.by_message import new_messages
from onceload_jobs.work.by_producer import NewOfProducers, new_of_producers
from onceload_jobs.work.new_ids import Mask

_ID_IS_LOADED = "its producer has loaded a record with this sequence id already"
_ID_IS_PASSED = (
    "its producer has loaded this sequence id or a later one already (order: ordered). Load the record with a separate "
    "pipeline file that declares order: any, or discard it"
)
_MESSAGE_IS_LOADED = "a record with this business id is loaded already"


@dataclass(frozen=True, kw_only=True)
class NewRecords:
    """The new records of a reading, and the ids that they use up."""

    reading: Reading
    #: Under the ids of the producers that they name.
    rows: pa.Table
    producers: NewOfProducers | None = None
    hashes: NDArray[np.bytes_] | None = None


def new_records(connection: Connection, job: Job, reading: Reading) -> NewRecords:
    """Leave out the records whose id is loaded, or is that of another record of this retry."""
    found = NewRecords(reading=reading, rows=reading.rows)
    if job.declared.producer is not None and reading.good:
        records = Records(parts=[(found.rows, reading.added)])
        # Whether one of these is called like a file, only a load of files can ask.
        producers = new_of_producers(connection, job.declared.producer, job, records, files=())
        why = _ID_IS_PASSED if producers.order is Order.ORDERED else _ID_IS_LOADED
        named = with_columns(found.rows, producers.columns)
        found = _without(replace(found, rows=named, producers=producers), producers.new.rows, why=why)
    if job.declared.message_id is not None and found.reading.good:
        records = Records(parts=[(found.rows, reading.added)])
        messages = new_messages(connection, job.declared.message_id, job, records)
        found = _without(replace(found, hashes=messages.hashes), messages.rows, why=_MESSAGE_IS_LOADED)
    return found


def _without(found: NewRecords, is_new: Mask, *, why: str) -> NewRecords:
    reading, mask = found.reading, pa.array(is_new)
    good = tuple(record for record, new in zip(reading.good, is_new.tolist(), strict=True) if new)
    left_out = _ids(reading, ~is_new)
    refusals = {**reading.refusals, **dict.fromkeys(left_out, Refusal(reason=why))}
    return replace(
        found,
        reading=replace(reading, good=good, rows=reading.rows.filter(mask), refusals=refusals),
        rows=found.rows.filter(mask),
        producers=found.producers and found.producers.among(is_new),
    )


def _ids(reading: Reading, mask: Mask) -> Sequence[QuarantineId]:
    return [reading.good[number].quarantine_id for number in np.flatnonzero(mask).tolist()]
