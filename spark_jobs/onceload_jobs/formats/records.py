"""What every format makes of parts: rows with their sequence ids, and bad records."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceload_core.ports import QuarantinedRecord
from onceload_jobs.files.notes import Ignored
from onceload_jobs.pipeline.columns import Column

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class ValueRefused(Exception):
    """A value that its column does not accept, with the reason."""


class RecordRefused(Exception):
    """A record that cannot become a row, with the reason."""

    def __init__(self, reason: str, *, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True, kw_only=True)
class Origins:
    """The origin of each record, by its index."""

    producer_ids: Indices
    sequence_ids: Indices
    raw: Callable[[int], bytes]


@dataclass(frozen=True, kw_only=True)
class Records:
    """All records of some parts; each is either a row or a bad record."""

    #: The declared columns in their order and Arrow types, and the two lineage columns.
    rows: pa.Table
    bad: tuple[QuarantinedRecord, ...] = field(default=())
    #: Undeclared fields, if the pipeline adds them: declare these, and read again.
    unknown: tuple[Column, ...] = ()
    #: Undeclared fields, if the pipeline ignores them; of JSON lines, those of a sample.
    ignored: Ignored = field(default_factory=Ignored)

    @property
    def count(self) -> int:
        rows: int = self.rows.num_rows
        return rows + len(self.bad)
