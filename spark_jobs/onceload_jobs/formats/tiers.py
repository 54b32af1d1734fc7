"""Tiers of reading: whole columns where Arrow reads them correctly, and single records where in doubt.

A fast tier may refuse anything, but what it accepts must equal the result of the slow tier. So a record gives the same
row, or the same bad record, whatever its neighbours are. Groups that a tier cannot read, and rows that it doubts, go to
the next one. JSON lines have a tier between the two, which takes lines apart without converting their values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from onceload_core.names import ProducerId
from onceload_core.ports import QuarantinedRecord
from onceload_jobs.formats.casts import CastColumns
from onceload_jobs.formats.records import Indices, Mask, Origins, RecordRefused, Records, ValueRefused
from onceload_jobs.pipeline.columns import LINEAGE, RESERVED, Column, arrow_schema

#: A group of this size still fits into the processor's cache when it is cast.
_TOGETHER_MAX = 32_768
#: How many lines, and how many of their fields, are in memory as raw values.
_SLICED_TOGETHER_MAX = 8_192
_SLICED_FIELDS_MAX = 2**18
_AGAIN_TOGETHER_MAX = 256

#: The rows of some records, or None if they cannot be read together.
ReadMany = Callable[[Indices], CastColumns | None]


def declared_value(column: Column, read: Callable[[], object]) -> object:
    """Return the value of one record for its column."""
    try:
        value = read()
    except ValueRefused as refused:
        raise RecordRefused(str(refused), column=column.name) from None
    if value is None and column.not_null:
        raise RecordRefused("null, but declared not null", column=column.name)
    return value


#: Postgres truncates longer names.
_NAME_BYTES_MAX = 63


def may_be_added(name: str) -> bool:
    """Whether the name of a field can be the name of a column."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < length <= _NAME_BYTES_MAX and "\0" not in name and name not in RESERVED


def read_in_tiers(
    origins: Origins,
    columns: tuple[Column, ...],
    *,
    suspects: Mask,
    read_many: ReadMany,
    read_one: Callable[[int], Sequence[object]],
    read_sliced: ReadMany | None = None,
) -> Records:
    """Read all records; `suspects` skip the fast tier."""
    sure, suspected = np.flatnonzero(~suspects), np.flatnonzero(suspects)
    tiers = [_read_together(read_many, sure, of=_TOGETHER_MAX, stops=read_sliced is not None)]
    left = tiers[-1].left
    if read_sliced is not None:
        together = min(_SLICED_TOGETHER_MAX, 1 + _SLICED_FIELDS_MAX // len(columns))
        tiers.append(_read_together(read_sliced, np.sort(np.concatenate([left, suspected])), of=together))
        left, suspected = (tiers[-1].left[mask[tiers[-1].left]] for mask in (~suspects, suspects))
    # Few of the other records of a group were the reason that it was refused.
    tiers.append(_read_together(read_many, left, of=_AGAIN_TOGETHER_MAX))
    left = np.sort(np.concatenate([tiers[-1].left, suspected]))
    slow, slow_indices, bad = _read_one_by_one(origins, columns, left, read_one)
    tables, indices = [*(table for tier in tiers for table in tier.tables), slow], [tier.indices for tier in tiers]
    return Records(rows=_in_order(tables, np.concatenate([*indices, slow_indices]), origins), bad=bad)


@dataclass(frozen=True, kw_only=True)
class _Tier:
    """The rows that one tier read, the indices of their records, and those of the records that it left."""

    tables: list[pa.Table]
    indices: Indices
    left: Indices


def _read_together(read: ReadMany, indices: Indices, *, of: int, stops: bool = False) -> _Tier:
    """Read groups of this size; `stops` leaves all groups after one that was refused."""
    tables, sure, left = list[pa.Table](), [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for at in range(0, len(indices), of):
        group = indices[at : at + of]
        cast = read(group)
        if cast is None:
            left.append(group)
            if not stops:
                continue
            left.append(indices[at + of :])
            break
        is_sure = ~cast.doubted
        tables.append(cast.rows if is_sure.all() else cast.rows.filter(pa.array(is_sure)))
        sure.append(group[is_sure])
        left.append(group[cast.doubted])
    return _Tier(tables=tables, indices=np.concatenate(sure), left=np.concatenate(left))


def _read_one_by_one(
    origins: Origins, columns: tuple[Column, ...], indices: Indices, read_one: Callable[[int], Sequence[object]]
) -> tuple[pa.Table, Indices, tuple[QuarantinedRecord, ...]]:
    rows, kept, bad = list[Sequence[object]](), list[int](), list[QuarantinedRecord]()
    for index in indices.tolist():
        try:
            rows.append(read_one(index))
            kept.append(index)
        except RecordRefused as refused:
            bad.append(
                QuarantinedRecord(
                    producer_id=ProducerId(int(origins.producer_ids[index])),
                    sequence_id=int(origins.sequence_ids[index]),
                    raw=origins.raw(index),
                    reason=str(refused),
                    column=refused.column,
                )
            )
    schema = arrow_schema(columns)
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema), np.array(kept, np.int64), tuple(bad)


def _in_order(tables: list[pa.Table], indices: Indices, origins: Origins) -> pa.Table:
    filled = [table for table in tables if table.num_rows]
    rows = pa.concat_tables(filled) if filled else tables[-1]
    if len(indices) > 1 and (np.diff(indices) < 0).any():
        order = np.argsort(indices)
        indices, rows = indices[order], rows.take(pa.array(order))
    for field, ids in zip(LINEAGE, (origins.producer_ids, origins.sequence_ids), strict=True):
        rows = rows.append_column(field, pa.array(ids[indices], pa.int64()))
    return rows
