"""Avro: typed rows, identified by their number in the file; their values mean the same as in Parquet."""

import io
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from fastavro import schemaless_reader

from onceload_jobs.files.fingerprints import Fingerprint
from onceload_jobs.files.footers import varint
from onceload_jobs.formats.avro.blocks import DamagedBlock, blocks_of, decoding, header_of, read_blocks
from onceload_jobs.formats.avro.codecs import unpack
from onceload_jobs.formats.avro.schemas import Field, Schema, schema_of
from onceload_jobs.formats.chunks import Part, RowGroup
from onceload_jobs.formats.parquet.rows import read_plain
from onceload_jobs.formats.plain_values import BYTES_OF_A_ROW, check_size, plain_batches
from onceload_jobs.formats.records import Records
from onceload_jobs.formats.typed_files import choose_columns
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields

#: Blocks are converted to Arrow together, as long as their records take no more than this.
_HELD_BYTES = 2**28


def read_names_and_groups(
    url: str, fingerprint: Fingerprint, version: Hashable
) -> tuple[tuple[str, ...], tuple[RowGroup, ...]]:
    """The names of the columns of a file, and the groups of its blocks."""
    header, groups = read_blocks(url, fingerprint, version)
    return schema_of(header_of(header).schema, url=url).names, groups


def fields_of(group: RowGroup, *, url: str) -> dict[str, bool]:
    """Whether each column of a file may be null."""
    fields = schema_of(header_of(group.footer).schema, url=url).fields
    return {each.name: each.type.is_nullable for each in fields}


def empty_columns(url: str, fingerprint: Fingerprint) -> dict[str, pa.Array]:
    """The columns of a file without rows, each of its type."""
    header, _ = read_blocks(url, fingerprint, None)
    return {each.name: each.type.to_arrow([]) for each in schema_of(header_of(header).schema, url=url).fields}


def read_avro(part: Part, *, url: str, columns: tuple[Column, ...], unknown_fields: UnknownFields) -> Records:
    """Read the rows of some blocks, only from the bytes in memory."""
    names = [column.name for column in columns]
    found = read_group(part, url=url, names=names, unknown_fields=unknown_fields)
    return read_plain(*found, part=part, columns=columns, unknown_fields=unknown_fields)


def read_group(
    part: Part, *, url: str, names: Collection[str], unknown_fields: UnknownFields
) -> tuple[pa.Table, tuple[str, ...]]:
    """The wanted columns, and the names of undeclared ones."""
    group = part.row_group
    if group is None:
        raise ValueError("bytes of an Avro file without their group")
    schema, rows = schema_of(header_of(group.footer).schema, url=url), group.end - group.first
    wanted, undeclared = choose_columns(schema.names, url=url, names=names, unknown_fields=unknown_fields)
    check_size(url, rows * BYTES_OF_A_ROW)
    chosen = [each for each in schema.fields if each.name in wanted]
    with decoding(url):
        batches = list(plain_batches(_batches(part.raw, group, schema, chosen, url=url), url))
        if not chosen:
            return pa.table({"": pa.nulls(rows)}), undeclared
        # Only some of them may have decimals of more digits than the schema allows.
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        return pa.concat_tables(tables, promote_options="permissive"), undeclared


def _batches(
    raw: bytes, group: RowGroup, schema: Schema, chosen: Sequence[Field], *, url: str
) -> Iterator[pa.RecordBatch]:
    found, rows = 0, group.end - group.first
    for records in _records(raw, group, schema, url=url):
        found += len(records)
        arrays = [each.type.to_arrow([record[each.key] for record in records]) for each in chosen]
        yield pa.record_batch(arrays, names=[each.name for each in chosen])
    if found != rows:
        raise DamagedBlock(f"the row count of a group of blocks is {found} instead of {rows}")


def _records(raw: bytes, group: RowGroup, schema: Schema, *, url: str) -> Iterator[list[dict[str, Any]]]:
    """The records of the blocks, never more at once than fit into memory."""
    header, held = header_of(group.footer), 0
    records: list[dict[str, Any]] = []
    for block in blocks_of(raw, header):
        unpacked = unpack(block.packed, header.codec, url=url)
        takes = schema.held.bytes_of(block.rows, len(unpacked))
        check_size(url, takes)
        if held and held + takes > _HELD_BYTES:
            yield records
            records, held = [], 0
        if block.rows or unpacked:
            records += _records_of(block.rows, unpacked, schema)
            held += takes
    if records:
        yield records


def _records_of(rows: int, unpacked: bytes, schema: Schema) -> list[dict[str, Any]]:
    """A count and that many records are a block of an Avro array. A count of 0 ends the array."""
    stream = io.BytesIO(b"".join([varint(rows << 1), unpacked, b"\0"]))
    records: Any = schemaless_reader(stream, schema.of_records, None)
    if stream.read(1):
        raise DamagedBlock("a block holds more than its records")
    return list(records)
