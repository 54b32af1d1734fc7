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
from onceload_jobs.formats.parquet.tables import as_parquet, read_given
from onceload_jobs.formats.records import Indices, Mask, Records
from onceload_jobs.pipeline.columns import SEQUENCE, Column
from onceload_jobs.pipeline.declared import UnknownFields

Mappings: TypeAlias = Sequence[Mapping[str, object]]


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows that can be read again: a table as the Parquet file that holds it, or what was read of mappings."""

    ids: Indices
    content: bytes | Records

    def read(self, producer_id: ProducerId, columns: tuple[Column, ...], unknown_fields: UnknownFields) -> Records:
        """Read them as these columns; mappings were read when they were kept."""
        if isinstance(self.content, Records):
            return self.content
        rows = len(self.ids)
        found = read_given(
            self.content, rows=rows, producer_id=producer_id, columns=columns, unknown_fields=unknown_fields
        )
        return _under(self.ids, found)


@dataclass(frozen=True, eq=False)
class OfferedRows:
    """Some rows of a call. Their ids ascend strictly."""

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

    def kept(self, producer_id: ProducerId, columns: tuple[Column, ...], unknown_fields: UnknownFields) -> KeptRows:
        if isinstance(self.rows, pa.Table):
            return KeptRows(self.ids, as_parquet(self.rows))
        read = read_mappings(self.rows, producer_id=producer_id, columns=columns, unknown_fields=unknown_fields)
        return KeptRows(self.ids, _under(self.ids, read))


def among(records: Records, wanted: SpanSet) -> Records:
    """The records whose ids are wanted."""
    rows = records.rows.filter(pa.array(_is_inside(records.rows.column(SEQUENCE).to_numpy(), wanted)))
    return replace(records, rows=rows, bad=tuple(each for each in records.bad if each.sequence_id in wanted))


def _under(ids: Indices, records: Records) -> Records:
    """Records that are numbered from 0, under their ids."""
    sequence = pa.array(ids[records.rows.column(SEQUENCE).to_numpy()], pa.int64())
    rows = records.rows.set_column(records.rows.schema.get_field_index(SEQUENCE), SEQUENCE, sequence)
    bad = tuple(replace(each, sequence_id=int(ids[each.sequence_id])) for each in records.bad)
    return replace(records, rows=rows, bad=bad)


def _is_inside(ids: Indices, spans: SpanSet) -> Mask:
    firsts, ends = (np.array([getattr(span, edge) for span in spans], np.int64) for edge in ("first", "end"))
    places = np.searchsorted(firsts, ids, side="right") - 1
    inside: Mask = (places >= 0) & (ids < ends[places])
    return inside
