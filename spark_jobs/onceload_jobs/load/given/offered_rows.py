"""Rows that a program offers, with their ids: an Arrow table, or mappings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from onceload_core.names import ProducerId
from onceload_core.spans import SpanSet
from onceload_jobs.formats.mappings import read_mappings
from onceload_jobs.formats.parquet.tables import read_table
from onceload_jobs.formats.records import Indices, Mask, Records
from onceload_jobs.pipeline.columns import SEQUENCE, Column
from onceload_jobs.pipeline.declared import UnknownFields

Mappings: TypeAlias = Sequence[Mapping[str, object]]


@dataclass(frozen=True, eq=False)
class OfferedRows:
    """Rows to commit together. Their ids ascend strictly."""

    rows: pa.Table | Mappings
    ids: Indices

    @cached_property
    def spans(self) -> SpanSet:
        ends = np.flatnonzero(np.diff(self.ids) != 1)
        firsts = self.ids[np.concatenate([[0], ends + 1])] if len(self.ids) else self.ids
        lasts = self.ids[np.concatenate([ends, [len(self.ids) - 1]])] if len(self.ids) else self.ids
        return SpanSet.of(*zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))

    def among(self, wanted: SpanSet) -> "OfferedRows":
        """The rows whose ids are wanted."""
        if wanted == self.spans:
            return self
        mask = _is_inside(self.ids, wanted)
        rows = self.rows
        if isinstance(rows, pa.Table):
            return OfferedRows(rows.filter(pa.array(mask)), self.ids[mask])
        return OfferedRows([rows[number] for number in np.flatnonzero(mask).tolist()], self.ids[mask])

    def records(self, producer_id: ProducerId, columns: tuple[Column, ...], unknown_fields: UnknownFields) -> Records:
        """Read them as the declared columns."""
        if isinstance(self.rows, pa.Table):
            records = read_table(self.rows, producer_id=producer_id, columns=columns, unknown_fields=unknown_fields)
        else:
            records = read_mappings(self.rows, producer_id=producer_id, columns=columns, unknown_fields=unknown_fields)
        ids = pa.array(self.ids[records.rows.column(SEQUENCE).to_numpy()], pa.int64())
        rows = records.rows.set_column(records.rows.schema.get_field_index(SEQUENCE), SEQUENCE, ids)
        bad = tuple(replace(each, sequence_id=int(self.ids[each.sequence_id])) for each in records.bad)
        return replace(records, rows=rows, bad=bad)


def _is_inside(ids: Indices, spans: SpanSet) -> Mask:
    firsts, ends = (np.array([getattr(span, edge) for span in spans], np.int64) for edge in ("first", "end"))
    places = np.searchsorted(firsts, ids, side="right") - 1
    inside: Mask = (places >= 0) & (ids < ends[places])
    return inside
