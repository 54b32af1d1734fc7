"""Sample files whose values have types: a few groups of rows, with the types that each file says of them."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from onceload.draft.observe import Observed
from onceload.draft.parquet import sample_parquet
from onceload.draft.sample import Sampled
from onceload.draft.types import Seen
from onceload.draft.values import Written, of_string
from onceload_core.names import ProducerId
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.fingerprints import Fingerprint
from onceload_jobs.files.footers import ORC, PARQUET, footer_bytes, look_bytes
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import read_at
from onceload_jobs.formats.casts import one_array
from onceload_jobs.formats.chunks import FileRefused, Part, RowGroup
from onceload_jobs.formats.orc.arrow import read_schema
from onceload_jobs.formats.orc.rows import read_stripe
from onceload_jobs.formats.parquet.row_groups import read_row_group
from onceload_jobs.formats.plain_values import plain
from onceload_jobs.formats.signatures import AVRO
from onceload_jobs.formats.typed_files import decoding
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.columns import PRECISION_MAX, ColumnType, Kind
from onceload_jobs.pipeline.declared import Format, UnknownFields

#: If the groups have more bytes, only the first is read.
_BYTES_MAX = 2**26
#: How many rows of a group are looked at.
_ROWS_MAX = 10_000


def typed_format(listed: Listed) -> Format | None:
    """The format that the bytes of a file give it, if its values have types."""
    begins = read_at(listed.url, offset=0, size=len(PARQUET))
    if begins in (PARQUET, AVRO):
        return Format.PARQUET if begins == PARQUET else Format.AVRO
    if begins.startswith(ORC):
        look = look_bytes(listed.size)
        return Format.ORC if footer_bytes(read_at(listed.url, offset=listed.size - look, size=look)) else None
    return None


def sample_typed(of_format: Format, listed: Listed) -> Sampled:
    if is_compressed(listed.url):
        name = of_format.proper_name
        found = f"it is {name} inside a compressed file"
        raise FileRefused(listed.url, f"plain {name}", found, f"Decompress it: {name} is compressed internally")
    return sample_parquet(listed) if of_format is Format.PARQUET else _sample_groups(of_format, listed)


def _sample_groups(of_format: Format, listed: Listed) -> Sampled:
    """The first, the middle and the last group of rows; only the first of those that are large."""
    found = read_whole_file(of_format, listed.url, size=listed.size)
    groups = found.row_groups
    chosen = [groups[at] for at in sorted({0, len(groups) // 2, len(groups) - 1})] if groups else []
    if sum(group.bytes for group in chosen) > _BYTES_MAX:
        chosen = chosen[:1]
    parts = tuple(
        Part(
            producer_id=ProducerId(0),
            first=group.first,
            end=group.end,
            raw=read_at(listed.url, offset=group.first_byte, size=group.bytes),
            row_group=group,
        )
        for group in chosen
    )
    empty = None if groups else _empty_table(of_format, listed, found.fingerprint)
    return Sampled(listed=listed, parts=parts, is_whole=len(chosen) == len(groups), header=found.names, empty=empty)


def _empty_table(of_format: Format, listed: Listed, fingerprint: Fingerprint) -> pa.Table:
    if of_format is Format.AVRO:
        from onceload_jobs.formats.avro.rows import empty_columns

        return pa.table(empty_columns(listed.url, fingerprint))
    with decoding(listed.url, kind=of_format.proper_name):
        return read_schema(read_at(listed.url, offset=0, size=listed.size)).empty_table()


def observe_typed(of_format: Format, files: Sequence[Sampled]) -> Observed:
    observed = Observed()
    for file in files:
        for name in file.header:
            observed.of(name).twice += file.header.count(name) > 1
            observed.of(name).is_finer |= name in file.finer
        if file.empty is not None:
            _observe(observed, _plain_once(file.empty), file.empty.schema)
        for part in file.parts:
            if part.row_group is not None:
                _observe(observed, *_table_of(of_format, part, part.row_group, url=file.listed.url))
    return observed


def _table_of(of_format: Format, part: Part, group: RowGroup, *, url: str) -> tuple[pa.Table, pa.Schema]:
    """Plain values of all columns that have a name of their own, with the schema that the file has for them."""
    match of_format:
        case Format.ORC:
            from onceload_jobs.formats.orc.footers import schema_of

            names = _once(schema_of(group.footer).names)
            table, _ = read_stripe(part, url=url, names=names, unknown_fields=UnknownFields.IGNORE)
            return table, table.schema
        case Format.AVRO:
            from onceload_jobs.formats.avro.rows import fields_of, read_group

            fields = fields_of(group, url=url)
            table, _ = read_group(part, url=url, names=list(fields), unknown_fields=UnknownFields.IGNORE)
            schema = pa.schema([each.with_nullable(fields[each.name]) for each in table.schema if each.name in fields])
            return table, schema
        case _:
            schema = pq.read_schema(pa.BufferReader(PARQUET + group.footer))
            table, _ = read_row_group(part, url=url, names=schema.names, unknown_fields=UnknownFields.IGNORE)
            return table, schema


def _plain_once(table: pa.Table) -> pa.Table:
    names = _once(table.column_names)
    return pa.table([plain(one_array(table.column(name))) for name in names], names=names)


def _once(names: Sequence[str]) -> list[str]:
    return [name for name in names if names.count(name) == 1]


def _observe(observed: Observed, table: pa.Table, schema: pa.Schema) -> None:
    observed.records += table.num_rows
    for field in (schema.field(name) for name in _once(schema.names)):
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
