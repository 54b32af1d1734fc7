"""How fast these libraries can be here: JSON lines parsed and copied in by as many processes as COPY has streams.

No Spark, no proof, no lineage, no check of any value: what is left is what every way over these libraries must do.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import pgpq
import psycopg2
import pyarrow as pa
import pyarrow.json as pj

from bench.events import COLUMNS, DDL
from spark_jobs.pipeline.columns import arrow_schema, parse_column
from spark_jobs.read.cuts import cuts
from spark_jobs.write.binary_copy import Reader

_PROCESSES = 2
_CHUNK_BYTES = 32 * 2**20
_BATCH_ROWS = 4096


def parse_and_copy(dsn: str, file: Path) -> float:
    """Answers with the seconds from when all processes are ready."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE target ({DDL})")
        connection.commit()
    size = file.stat().st_size
    chunks = list(cuts(str(file), first=0, end=size, chunk_bytes=_CHUNK_BYTES, record_bytes_max=_CHUNK_BYTES))
    context = get_context("spawn")
    ready = context.Barrier(_PROCESSES + 1, timeout=60)
    processes = [
        context.Process(target=_work, args=(dsn, file, chunks[number::_PROCESSES], ready))
        for number in range(_PROCESSES)
    ]
    for process in processes:
        process.start()
    ready.wait()
    started = perf_counter()
    for process in processes:
        process.join()
    return perf_counter() - started


def _work(dsn: str, path: Path, chunks: Sequence[tuple[int, int]], ready: Any) -> None:  # noqa: ANN401 - spawn's own.
    schema = arrow_schema(tuple(parse_column(*each) for each in COLUMNS.items()))
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor, path.open("rb") as file:
        ready.wait()
        for first, end in chunks:
            file.seek(first)
            rows = pj.read_json(
                pa.BufferReader(file.read(end - first)),
                read_options=pj.ReadOptions(use_threads=False),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
            )
            encoder = pgpq.ArrowToPostgresBinaryEncoder(schema)
            batches = rows.to_batches(max_chunksize=_BATCH_ROWS)
            encoded = chain([encoder.write_header()], map(encoder.write_batch, batches), _end_of(encoder))
            cursor.copy_expert("COPY target FROM STDIN (FORMAT binary)", Reader(encoded))
            connection.commit()


def _end_of(encoder: pgpq.ArrowToPostgresBinaryEncoder) -> Iterator[bytes]:
    # It can be asked for only once all batches are written.
    yield encoder.finish()
