"""The line numbers of quarantined records, for looking them up in an editor.

Only local files are read, and only up to a limit. A line is reported only if the file still has the record's bytes
there.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import BinaryIO

from sqlalchemy import Engine

from onceload_core.errors import OnceloadError
from onceload_core.postgres.quarantine import KeptRecord, QuarantineId, find_root
from onceload_jobs.files.addresses import local_path
from onceload_jobs.files.reading import open_stream

#: How many bytes of each record are compared.
COMPARED_BYTES = 64
_LOOKED_THROUGH_BYTES = 256 * 2**20
_BLOCK_BYTES = 2**20


def find_lines(engine: Engine, records: Sequence[KeptRecord]) -> Mapping[QuarantineId, int]:
    """The line of each record of one pipeline, if it can be found."""
    root = find_root(engine, records[0].pipeline) if records else None
    lines: dict[QuarantineId, int] = {}
    if root is None or local_path(root) is None:
        return lines
    near = [record for record in records if record.sequence_id < _LOOKED_THROUGH_BYTES]
    # The file now has the last of several generations.
    in_order = sorted(near, key=lambda record: (record.file, record.sequence_id, -record.quarantine_id))
    for file, some in groupby(in_order, key=lambda record: record.file):
        # A file that is missing, or no longer decompresses, gives no further lines.
        with suppress(OnceloadError), open_stream(posixpath.join(root, file)) as stream:
            lines.update(_lines(stream, some))
    return lines


def _lines(stream: BinaryIO, in_order: Iterator[KeptRecord]) -> Iterator[tuple[QuarantineId, int]]:
    at, line = 0, 1
    for record in in_order:
        while at < record.sequence_id and (block := stream.read(min(_BLOCK_BYTES, record.sequence_id - at))):
            at, line = at + len(block), line + block.count(b"\n")
        if at == record.sequence_id:
            raw = record.raw[:COMPARED_BYTES]
            found = stream.read(len(raw))
            if found == raw:
                yield record.quarantine_id, line
            at, line = at + len(found), line + found.count(b"\n")
