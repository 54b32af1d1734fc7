"""Avro: typed rows, identified by their number in the file; their values mean the same as in Parquet."""

import io
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
from fastavro import schemaless_reader

from onceload_jobs.files.fingerprints import Fingerprint
from onceload_jobs.files.footers import varint
from onceload_jobs.formats.avro.blocks import DamagedBlock, blocks_of, decoding, header_of, read_blocks
from onceload_jobs.formats.avro.codecs import TIMES_HELD, unpack
from onceload_jobs.formats.avro.schemas import Schema, schema_of
from onceload_jobs.formats.chunks import Part, RowGroup
from onceload_jobs.formats.parquet.rows import read_plain
from onceload_jobs.formats.plain_values import BYTES_OF_A_ROW, check_size, plain_batches
from onceload_jobs.formats.records import Records
from onceload_jobs.formats.typed_files import choose_columns
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields

#: A record in Python takes this, however few bytes it has.
_BYTES_OF_A_RECORD = 200


def read_names_and_groups(url: str, fingerprint: Fingerprint) -> tuple[tuple[str, ...], tuple[RowGroup, ...]]:
    """The names of the columns of a file, and the groups of its blocks."""
    header, groups = read_blocks(url, fingerprint)
    return schema_of(header_of(header).schema, url=url).names, groups


def fields_of(group: RowGroup, *, url: str) -> dict[str, bool]:
    """Whether each column of a file may be null."""
    fields = schema_of(header_of(group.footer).schema, url=url).fields
    return {each.name: each.type.is_nullable for each in fields}


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
    check_size(url, rows * (BYTES_OF_A_ROW + _BYTES_OF_A_RECORD))
    with decoding(url):
        records = [each for block in _blocks(part.raw, group, schema, url=url) for each in block]
        if len(records) != rows:
            raise DamagedBlock(f"the row count of a group of blocks is {len(records)} instead of {rows}")
        if not wanted:
            return pa.table({"": pa.nulls(rows)}), undeclared
        chosen = [each for each in schema.fields if each.name in wanted]
        arrays = [each.type.to_arrow([record[each.key] for record in records]) for each in chosen]
        batch = pa.record_batch(arrays, names=[each.name for each in chosen])
        return pa.Table.from_batches(plain_batches([batch], url)), undeclared


def _blocks(raw: bytes, group: RowGroup, schema: Schema, *, url: str) -> Iterator[list[dict[str, Any]]]:
    header, size = header_of(group.footer), 0
    for block in blocks_of(raw, header):
        unpacked = unpack(block.packed, header.codec, url=url)
        size += len(unpacked)
        check_size(url, TIMES_HELD * size)
        if block.rows or unpacked:
            yield _records(block.rows, unpacked, schema)


def _records(rows: int, unpacked: bytes, schema: Schema) -> list[dict[str, Any]]:
    """A count and that many records are a block of an Avro array. A count of 0 ends the array."""
    stream = io.BytesIO(b"".join([varint(rows << 1), unpacked, b"\0"]))
    records: Any = schemaless_reader(stream, schema.of_records, None)
    if stream.read(1):
        raise DamagedBlock("a block holds more than its records")
    return list(records)
