"""The form in which a worker hands on rows: for COPY, or for another worker."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from onceload_jobs.batch.stage_folder import BlockWriter
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.work.buckets import Buckets
from onceload_jobs.write.writer import Writer


@dataclass(frozen=True, kw_only=True)
class RowForm:
    #: The columns of the rows, in the order of COPY.
    writer: Writer
    #: As they are, in Arrow's format.
    as_arrow: bool = False
    #: For a worker that leaves out repeats.
    buckets: Buckets | None = None

    def write(self, into: BlockWriter, rows: pa.Table, added: tuple[Column, ...]) -> None:
        """Write rows with their columns for undeclared fields."""
        for bucket, some in self._split(rows):
            into.write(self._encoded(some, added), rows=some.num_rows, added=added, bucket=bucket)

    def _split(self, rows: pa.Table) -> Iterable[tuple[int, pa.Table]]:
        if not rows.num_rows:
            return ()
        return ((0, rows),) if self.buckets is None else self.buckets.split(rows)

    def _encoded(self, rows: pa.Table, added: tuple[Column, ...]) -> Iterable[bytes]:
        if self.as_arrow:
            return (as_stream(rows),)
        return self.writer.adding(added).encoded(rows)


def as_stream(rows: pa.Table) -> bytes:
    """Rows as a stream in Arrow's format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content
