"""Copy files into the target while other pieces are being staged, in the transaction that publishes all of them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import psycopg2.extensions
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, ResourceClosedError

from onceload_core.guards import RowsDiffer
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.named_file import NeedsTable
from onceload_jobs.batch.pieces import StagedPiece, move_to_table, staged_files
from onceload_jobs.batch.spool import read_file
from onceload_jobs.batch.stage import Stage
from onceload_jobs.publish.named_rows import NamedRows
from onceload_jobs.write.binary_copy import copy_encoded
from onceload_jobs.write.target import Written
from onceload_jobs.write.writer import Writer

THREAD_NAME = "onceload copies files"
#: How often it looks for files at most, and which part of its time that may take.
_LOOKS_EVERY_S = 0.02
_LOOKS_SHARE = 0.1


def copy_all(connection: Connection, job: Job, encoded: Iterator[bytes], *, rows: int) -> None:
    """Copy the rows of a piece into the target; the server must take as many as the piece has."""
    writer = Writer.into_target(job.declared.target, job.written)
    copied = copy_encoded(connection, encoded, table=writer.table, names=writer.names)
    if copied != rows:
        raise RowsDiffer(job.declared.name, job.batch, written=copied, expected=rows)


@dataclass(kw_only=True)
class OpenTransaction:
    """A transaction with rows in the target, which are not visible before it commits."""

    job: Job
    stage: Stage
    connection: Connection
    written: Written
    #: How many rows of each file it has written.
    copied: dict[str, int] = field(default_factory=dict)
    #: If the records in the files name a producer: their rows, and in the end the table of what they consume.
    named: NamedRows | None = None
    offered: str | None = None

    @classmethod
    def begin(cls, engine: Engine, job: Job, stage: Stage, named: NamedRows | None = None) -> "OpenTransaction":
        connection = engine.connect()
        try:
            written = Writer.into_target(job.declared.target, job.written).counting(connection)
        except BaseException:
            connection.close()
            raise
        return cls(job=job, stage=stage, connection=connection, written=written, named=named)

    def copy(self, file: str, rows: int) -> None:
        encoded = self.named.encoded(file) if self.named else read_file(self.stage.spool or "", file)
        copy_all(self.connection, self.job, encoded, rows=rows)
        self.copied[file] = rows

    def close(self) -> None:
        # If the server is gone, so is the transaction.
        with suppress(DBAPIError):
            self.connection.close()


class EarlyCopy:
    """A thread with a transaction. If anything fails, it is rolled back, and publishing starts from the beginning.

    Files whose records name a producer are then moved to the table of the stage.
    """

    def __init__(self, engine: Engine, job: Job, stage: Stage) -> None:
        self._engine, self._job, self._stage = engine, job, stage
        self._named = NamedRows(job, stage, stage.producer) if stage.producer else None
        self._transaction: OpenTransaction | None = None
        self._is_whole = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._copy, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def take(self, pieces: Sequence[StagedPiece]) -> OpenTransaction | None:
        """Its transaction, if it has copied nothing but files of these pieces: a piece may have been staged again."""
        self._is_over.set()
        self._thread.join()
        files = {piece.file for piece in pieces if piece.file}
        transaction, named = self._transaction, self._named
        is_of_batch = transaction is not None and self._is_whole and transaction.copied.keys() <= files
        if transaction and is_of_batch and (named is None or self._offers(named, transaction, pieces)):
            return transaction
        # Another transaction would wait for it where both write the same key.
        self.close()
        return None

    def close(self) -> None:
        """Roll back what is not committed, also if it waits for the server."""
        self._is_over.set()
        transaction = self._transaction
        if self._thread.is_alive() and transaction is not None:
            # The thread may be closing it.
            with suppress(DBAPIError, ResourceClosedError, psycopg2.Error):
                cast(psycopg2.extensions.connection, transaction.connection.connection.dbapi_connection).cancel()
        self._thread.join()
        self._roll_back()

    def _roll_back(self) -> None:
        if self._transaction is not None:
            self._transaction.close()
            self._transaction = None

    def _copy(self) -> None:
        # Publishing finds the same errors, or has none.
        with suppress(Exception):
            self._transaction = transaction = OpenTransaction.begin(self._engine, self._job, self._stage, self._named)
            self._watch(transaction.connection, partial(self._copy_all, transaction, is_over=self._is_over.is_set))
            self._is_whole = True
            return
        if self._named is None:
            return
        self._roll_back()
        with suppress(Exception), self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            self._watch(connection, self._move_all)

    def _watch(self, connection: Connection, take: Callable[[Mapping[str | None, int]], None]) -> None:
        """Pass on the files that sessions have finished, until all are staged."""
        pause_s, taken = _LOOKS_EVERY_S, set[str | None]()
        while not self._is_over.wait(pause_s):
            started = time.monotonic()
            there = staged_files(connection, self._stage)
            new = {file: rows for file, rows in there.items() if file not in taken}
            # With thousands of pieces, looking takes longer.
            pause_s = max(_LOOKS_EVERY_S, (time.monotonic() - started) / _LOOKS_SHARE)
            take(new)
            taken |= new.keys()

    def _copy_all(
        self, transaction: OpenTransaction, files: Mapping[str | None, int], *, is_over: Callable[[], bool]
    ) -> None:
        for file, rows in files.items():
            if is_over():
                return
            if file is not None:
                transaction.copy(file, rows)
            elif self._named:
                raise NeedsTable

    def _move_all(self, files: Iterable[str | None]) -> None:
        for file in files:
            if self._is_over.is_set():
                return
            if file is not None:
                move_to_table(self._engine, self._stage, file)

    def _offers(self, named: NamedRows, transaction: OpenTransaction, pieces: Sequence[StagedPiece]) -> bool:
        """Copy the files that are left, and collect what the records consume."""
        if any(piece.rows and not piece.file for piece in pieces):
            return False
        left: dict[str | None, int] = {
            piece.file: piece.rows for piece in pieces if piece.file and piece.file not in transaction.copied
        }
        files = [advance.producer_id for piece in pieces for advance in piece.advances]
        # Publishing finds the same errors, or has none.
        with suppress(Exception):
            self._copy_all(transaction, left, is_over=lambda: False)
            rows = sum(piece.rows for piece in pieces)
            transaction.offered = named.offer(transaction.connection, rows=rows, files=files)
        return transaction.offered is not None
