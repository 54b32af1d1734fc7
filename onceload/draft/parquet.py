"""Sample Parquet files: their schema, and the first rows of a few row groups."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from onceload.draft.sample import Sampled
from onceload_core.names import ProducerId
from onceload_jobs.files.fingerprints import read_whole
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import open_stream
from onceload_jobs.formats.chunks import Part, RowGroup
from onceload_jobs.formats.parquet.footers import KIND, read_row_groups
from onceload_jobs.formats.typed_files import decoding

#: How much of one row group is read.
_ROWS_MAX = 10_000
_BYTES_MAX = 2**22
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**16


def sample_parquet(listed: Listed) -> Sampled:
    """The first rows of a few row groups, written again as a small Parquet file in memory."""
    # Arrow must not open a file before its footer is checked.
    _, tail = read_whole(listed.url, size=listed.size)
    groups = read_row_groups(tail, url=listed.url, size=listed.size)
    chosen = [groups[at] for at in sorted({0, len(groups) // 2, len(groups) - 1})] if groups else []
    with decoding(listed.url, kind=KIND), open_stream(listed.url) as stream:
        file = pq.ParquetFile(
            stream,
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        )
        tables = [_first_rows(file, each) for each in chosen] or [file.schema_arrow.empty_table()]
    table = pa.concat_tables(tables)
    is_whole = table.num_rows == sum(each.end - each.first for each in groups)
    parts = _written_again(_with_each_name_once(table), url=listed.url)
    return Sampled(
        listed=listed,
        parts=parts,
        is_whole=is_whole,
        header=tuple(table.column_names),
        empty=None if groups else table,
        finer=frozenset(field.name for field, column in zip(table.schema, table, strict=True) if _is_finer(column)),
    )


def _is_finer(column: pa.ChunkedArray) -> bool:
    """Whether there are times with nanoseconds, of which a column keeps the microseconds."""
    if not (pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type)) or column.type.unit != "ns":
        return False
    return bool((column.cast(pa.int64()).drop_null().to_numpy() % 1000).any())


def _first_rows(file: pq.ParquetFile, group: RowGroup) -> pa.Table:
    batches, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in file.iter_batches(_BATCH_ROWS, [group.number], use_threads=False):
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROWS_MAX or size >= _BYTES_MAX:
            break
    return pa.Table.from_batches(batches)


def _with_each_name_once(table: pa.Table) -> pa.Table:
    return table.select([at for at, name in enumerate(table.column_names) if table.column_names.count(name) == 1])


def _written_again(table: pa.Table, *, url: str) -> tuple[Part, ...]:
    with decoding(url, kind=KIND):
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=max(1, table.num_rows))
    raw = sink.getvalue()
    return tuple(
        Part(
            producer_id=ProducerId(0),
            first=group.first,
            end=group.end,
            raw=raw[group.first_byte : group.end_byte],
            row_group=group,
        )
        for group in read_row_groups(raw, url=url, size=len(raw))
    )
