"""Sample Parquet files: their schema, and the first rows of a few row groups."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from onceload.draft.observe import Observed
from onceload.draft.sample import Sampled
from onceload.draft.types import Seen
from onceload.draft.values import Written, of_string
from onceload_core.names import ProducerId
from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.fingerprints import MAGIC, read_whole
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import open_stream
from onceload_jobs.formats.chunks import FileRefused, Part, RowGroup
from onceload_jobs.formats.parquet.footers import damaged, read_row_groups
from onceload_jobs.formats.parquet.row_groups import read_row_group
from onceload_jobs.pipeline.columns import PRECISION_MAX, ColumnType, Kind
from onceload_jobs.pipeline.declared import UnknownFields

#: How much of one row group is read.
_ROWS_MAX = 10_000
_BYTES_MAX = 2**22
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**16


def sample_parquet(listed: Listed) -> Sampled:
    """The first rows of a few row groups, written again as a small Parquet file in memory."""
    if is_compressed(listed.url):
        found = "it is a Parquet file inside a compressed file"
        raise FileRefused(listed.url, "a plain Parquet file", found, "Decompress it: Parquet is compressed internally")
    # Arrow must not open a file before its footer is checked.
    _, tail = read_whole(listed.url, size=listed.size)
    groups = read_row_groups(tail, url=listed.url, size=listed.size)
    chosen = [groups[at] for at in sorted({0, len(groups) // 2, len(groups) - 1})] if groups else []
    with _decoding(listed.url), open_stream(listed.url) as stream:
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
    return Sampled(listed=listed, parts=parts, is_whole=is_whole, header=tuple(table.column_names))


@contextmanager
def _decoding(url: str) -> Iterator[None]:
    with errors_naming(url):
        try:
            yield
        except (pa.ArrowException, UnicodeError) as error:
            raise damaged(url, " ".join(str(error).split())) from error


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
    with _decoding(url):
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


def observe_parquet(files: Sequence[Sampled]) -> Observed:
    observed = Observed()
    for file in files:
        for name in file.header:
            observed.of(name).twice += file.header.count(name) > 1
        for part in file.parts:
            if part.row_group is not None:
                _observe(observed, part, part.row_group, url=file.listed.url)
    return observed


def _observe(observed: Observed, part: Part, group: RowGroup, *, url: str) -> None:
    schema = pq.read_schema(pa.BufferReader(MAGIC + group.footer))
    table, _ = read_row_group(part, url=url, names=schema.names, unknown_fields=UnknownFields.IGNORE)
    observed.records += table.num_rows
    for field in schema:
        seen, values = observed.of(field.name), table.column(field.name).drop_null()
        stored = ColumnType(kind=Kind.UUID) if _is_uuid(field.type) else _stored_type(values.type)
        seen.is_required = (seen.is_required or not seen.stored) and not field.nullable
        seen.stored.add(stored)
        if stored.kind is Kind.TEXT and pa.types.is_string(values.type):
            _see_texts(seen, values)
        else:
            seen.written[Written.STORED] += len(values)
            seen.distinct |= set(map(str, values.to_pylist())) if stored.kind in _OF_KEYS else set()


#: The types that keys usually have.
_OF_KEYS = (Kind.BIGINT, Kind.UUID)


def _see_texts(seen: Seen, values: pa.ChunkedArray) -> None:
    try:
        texts = values.to_pylist()
    except UnicodeDecodeError:
        seen.written[Written.TEXT] += len(values)
        return
    for text in texts:
        seen.see(text, of_string(text))


def _is_uuid(arrow: pa.DataType) -> bool:
    return getattr(arrow, "extension_name", "") == "arrow.uuid"


def _stored_type(arrow: pa.DataType) -> ColumnType:
    """The type that keeps every value of a stored type."""
    if pa.types.is_decimal(arrow):
        if arrow.precision > PRECISION_MAX or not 0 <= arrow.scale <= arrow.precision:
            return ColumnType(kind=Kind.TEXT)
        return ColumnType(kind=Kind.NUMERIC, precision=arrow.precision, scale=arrow.scale)
    if pa.types.is_uint64(arrow):
        return ColumnType(kind=Kind.NUMERIC, precision=20, scale=0)
    if pa.types.is_timestamp(arrow):
        return ColumnType(kind=Kind.TIMESTAMPTZ if arrow.tz else Kind.TIMESTAMP)
    return ColumnType(kind=next((kind for holds, kind in _KINDS if holds(arrow)), Kind.TEXT))


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Kind], ...] = (
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_integer, Kind.BIGINT),
    (pa.types.is_float32, Kind.REAL),
    (pa.types.is_floating, Kind.DOUBLE),
    (pa.types.is_date, Kind.DATE),
    (pa.types.is_time, Kind.TIME),
    (pa.types.is_binary, Kind.BYTEA),
    (pa.types.is_fixed_size_binary, Kind.BYTEA),
    (pa.types.is_nested, Kind.JSONB),
)
