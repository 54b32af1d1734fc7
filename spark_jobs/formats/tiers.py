"""Two tiers of reading: whole columns where Arrow reads them correctly, and single records where in doubt.

The fast tier may refuse anything, but what it accepts must equal the result of the slow tier. So a record gives the
same row, or the same bad record, whatever its neighbours are. Groups that the fast tier cannot read are cut into
smaller groups, and rows that it doubts go to the slow tier.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dedup_core.names import ProducerId
from spark_jobs.formats.casts import CastColumns
from spark_jobs.formats.records import BadRecord, Indices, Mask, Origins, RecordRefused, Records, ValueRefused
from spark_jobs.pipeline.columns import LINEAGE, RESERVED, Column, arrow_schema

#: Groups up to this size are not cut again: their records are read one by one.
_TOGETHER_MIN = 64
#: A group of this size still fits into the processor's cache when it is cast.
_TOGETHER_MAX = 32_768
_CUT_INTO = 16


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
    read_many: Callable[[Indices], CastColumns | None],
    read_one: Callable[[int], Sequence[object]],
) -> Records:
    """Read all records; `suspects` skip the fast tier."""
    groups, doubted = _groups(np.flatnonzero(~suspects), of=_TOGETHER_MAX), [np.flatnonzero(suspects)]
    tables, indices = list[pa.Table](), list[Indices]()
    while groups:
        group = groups.pop()
        cast = read_many(group) if len(group) else None
        if cast is not None:
            sure = ~cast.doubted
            tables.append(cast.rows if sure.all() else cast.rows.filter(pa.array(sure)))
            indices.append(group[sure])
            doubted.append(group[cast.doubted])
        elif len(group) <= _TOGETHER_MIN:
            doubted.append(group)
        else:
            groups += _groups(group, of=max(_TOGETHER_MIN, -(-len(group) // _CUT_INTO)))
    slow, slow_indices, bad = _read_one_by_one(origins, columns, np.sort(np.concatenate(doubted)), read_one)
    return Records(rows=_in_order([*tables, slow], np.concatenate([*indices, slow_indices]), origins), bad=bad)


def _groups(indices: Indices, *, of: int) -> list[Indices]:
    """Split into groups, last ones first, because groups are taken from the end."""
    return [indices[at : at + of] for at in range(0, len(indices), of)][::-1]


def _read_one_by_one(
    origins: Origins, columns: tuple[Column, ...], indices: Indices, read_one: Callable[[int], Sequence[object]]
) -> tuple[pa.Table, Indices, tuple[BadRecord, ...]]:
    rows, kept, bad = list[Sequence[object]](), list[int](), list[BadRecord]()
    for index in indices.tolist():
        try:
            rows.append(read_one(index))
            kept.append(index)
        except RecordRefused as refused:
            bad.append(
                BadRecord(
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
