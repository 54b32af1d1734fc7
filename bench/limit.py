"""How fast these libraries can be here: JSON lines parsed and copied in by as many processes as COPY has streams.

The rows have their lineage, and each commit the digest of what was read, as those of a load. No Spark, no ledger, no
check of any value: what is left is what every way over these libraries must do. In each process a thread reads and
parses the next chunk while the last one is sent.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pgpq
import psycopg2
import psycopg2.extensions
import pyarrow as pa
import pyarrow.json as pj

from bench.events import COLUMNS, DDL
from onceload_jobs.formats.lines import positions_of
from onceload_jobs.pipeline.columns import arrow_schema, parse_column
from onceload_jobs.read.parts import cuts
from onceload_jobs.write.binary_copy import Reader

_PROCESSES = 2
#: This was the fastest of 8, 16 and 32 MiB. A third process did not help.
_CHUNK_BYTES = 16 * 2**20
_BATCH_ROWS = 4096
_TABLES = f"""
CREATE TABLE target ({DDL}, _producer_id bigint, _sequence bigint);
CREATE TABLE chunk (first bigint, "end" bigint, digest bytea)"""


def parse_and_copy(dsn: str, file: Path) -> float:
    """Answers with the seconds from when all processes are ready until all have committed."""
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(_TABLES)
    size = file.stat().st_size
    chunks = list(cuts(str(file), first=0, end=size, chunk_bytes=_CHUNK_BYTES, record_bytes_max=_CHUNK_BYTES))
    context = get_context("spawn")
    # Both at the start and at the end, all processes and this one meet here.
    together = context.Barrier(_PROCESSES + 1, timeout=600)
    work = _Work(dsn=dsn, file=file, chunks=chunks, taken=context.Value("q", 0), together=together)
    processes = [context.Process(target=work.run) for _ in range(_PROCESSES)]
    for process in processes:
        process.start()
    together.wait()
    started = perf_counter()
    together.wait()
    seconds = perf_counter() - started
    for process in processes:
        process.join()
    return seconds


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    first: int
    end: int
    digest: bytes
    rows: pa.Table


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The work of all processes, each of which takes the next chunk when it can."""

    dsn: str
    file: Path
    chunks: list[tuple[int, int]]
    taken: Any
    together: Any

    def run(self) -> None:
        try:
            with closing(psycopg2.connect(self.dsn)) as connection:
                # pyarrow imports pandas for its first value, if it is installed.
                pa.array([0])
                self.together.wait()
                for chunk in _one_ahead(self._read()):
                    _copy(connection, chunk)
                self.together.wait()
        except BaseException:
            # The others would wait for this process.
            self.together.abort()
            raise

    def _read(self) -> Iterator[_Chunk]:
        schema = arrow_schema(tuple(parse_column(*each) for each in COLUMNS.items()))
        with self.file.open("rb") as file:
            while (number := self._next()) < len(self.chunks):
                first, end = self.chunks[number]
                raw = os.pread(file.fileno(), end - first, first)
                rows = pj.read_json(
                    pa.BufferReader(raw),
                    read_options=pj.ReadOptions(use_threads=False),
                    parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
                )
                digest = hashlib.sha256(raw).digest()
                yield _Chunk(first=first, end=end, digest=digest, rows=_with_lineage(rows, raw, first=first))

    def _next(self) -> int:
        with self.taken.get_lock():
            number = int(self.taken.value)
            self.taken.value = number + 1
        return number


def _one_ahead(chunks: Iterator[_Chunk]) -> Iterable[_Chunk]:
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = ahead.submit(next, chunks, None)
            yield chunk


def _with_lineage(rows: pa.Table, raw: bytes, *, first: int) -> pa.Table:
    """The sequence id of a record is where its line begins."""
    begins = np.concatenate([[0], positions_of(b"\n", raw)[:-1] + 1]) + first
    producers = pa.array(np.ones(len(begins), np.int64))
    return rows.append_column("_producer_id", producers).append_column("_sequence", pa.array(begins))


def _copy(connection: psycopg2.extensions.connection, chunk: _Chunk) -> None:
    encoder = pgpq.ArrowToPostgresBinaryEncoder(chunk.rows.schema)
    batches = chunk.rows.to_batches(max_chunksize=_BATCH_ROWS)
    encoded = chain([encoder.write_header()], map(encoder.write_batch, batches), _end_of(encoder))
    with connection, connection.cursor() as cursor:
        cursor.copy_expert("COPY target FROM STDIN (FORMAT binary)", Reader(encoded))
        cursor.execute("INSERT INTO chunk VALUES (%s, %s, %s)", (chunk.first, chunk.end, chunk.digest))


def _end_of(encoder: pgpq.ArrowToPostgresBinaryEncoder) -> Iterator[bytes]:
    # It can be asked for only once all batches are written.
    yield encoder.finish()
