"""Copy files into the target while other pieces are being staged, in the transaction that publishes all of them."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import psycopg2.extensions
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_jobs.batch.job import Job
from onceload_jobs.batch.pieces import staged_files
from onceload_jobs.batch.spool import read_file
from onceload_jobs.batch.stage import Stage
from onceload_jobs.publish.postgres_transform import transform_file, transform_table
from onceload_jobs.write.binary_copy import copy_encoded
from onceload_jobs.write.target import Written
from onceload_jobs.write.writer import Writer

THREAD_NAME = "onceload copies files"
#: How often it looks for files at most, and which part of its time that may take.
_LOOKS_EVERY_S = 0.02
_LOOKS_SHARE = 0.1


@dataclass(kw_only=True)
class OpenTransaction:
    """A transaction with rows in the target, which are not visible before it commits."""

    job: Job
    stage: Stage
    connection: Connection
    written: Written
    #: How many rows of each file it has written.
    copied: dict[str, int] = field(default_factory=dict)
    #: How many rows of a transform it has made of the records of each file that was loaded.
    made: Counter[int | None] = field(default_factory=Counter)

    @classmethod
    def begin(cls, engine: Engine, job: Job, stage: Stage) -> "OpenTransaction":
        connection = engine.connect()
        try:
            written = Writer.into_target(job.declared.target, job.written).counting(connection)
        except BaseException:
            connection.close()
            raise
        return cls(job=job, stage=stage, connection=connection, written=written)

    def copy(self, file: str) -> None:
        rows = read_file(self.stage.spool or "", file)
        if self.job.is_by_record:
            self._note(file, transform_file(self.connection, self.job, self.stage, rows))
        else:
            writer = Writer.into_target(self.job.declared.target, self.job.written)
            self.copied[file] = copy_encoded(self.connection, rows, table=writer.table, names=writer.names)

    def transform_rest(self, files: Sequence[str]) -> None:
        """Transform the records of all other files, and of the pieces without one."""
        for file in set(files) - self.copied.keys():
            self.copy(file)
        in_table = self.stage.of_records(self.job.columns).rows
        self._note("", transform_table(self.connection, self.job, in_table))

    def _note(self, file: str, made: tuple[int, Counter[int | None]]) -> None:
        self.copied[file], counted = made
        self.made.update(counted)

    def close(self) -> None:
        # If the server is gone, so is the transaction.
        with suppress(DBAPIError):
            self.connection.close()


class EarlyCopy:
    """A thread with a transaction. If anything fails, it is rolled back, and publishing starts from the beginning."""

    def __init__(self, engine: Engine, job: Job, stage: Stage) -> None:
        self._engine, self._job, self._stage = engine, job, stage
        self._transaction: OpenTransaction | None = None
        self._is_whole = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._copy, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def take(self, files: Sequence[str]) -> OpenTransaction | None:
        """Its transaction, if it has copied nothing but these files: a piece may have been staged again."""
        self._is_over.set()
        self._thread.join()
        if self._transaction and self._is_whole and self._transaction.copied.keys() <= set(files):
            return self._transaction
        # Another transaction would wait for it where both write the same key.
        self.close()
        return None

    def close(self) -> None:
        """Roll back what is not committed, also if it waits for the server."""
        self._is_over.set()
        if self._thread.is_alive() and self._transaction is not None:
            with suppress(DBAPIError, psycopg2.Error):
                cast(psycopg2.extensions.connection, self._transaction.connection.connection.dbapi_connection).cancel()
        self._thread.join()
        if self._transaction is not None:
            self._transaction.close()
            self._transaction = None

    def _copy(self) -> None:
        try:
            self._transaction = transaction = OpenTransaction.begin(self._engine, self._job, self._stage)
            pause_s = _LOOKS_EVERY_S
            while not self._is_over.wait(pause_s):
                started = time.monotonic()
                new = staged_files(transaction.connection, self._stage) - transaction.copied.keys()
                # With thousands of pieces, looking takes longer.
                pause_s = max(_LOOKS_EVERY_S, (time.monotonic() - started) / _LOOKS_SHARE)
                self._copy_all(transaction, new)
            self._is_whole = True
        except Exception:  # noqa: BLE001, S110 - publishing finds the same error, or has none.
            pass

    def _copy_all(self, transaction: OpenTransaction, files: Iterable[str]) -> None:
        for file in files:
            if self._is_over.is_set():
                return
            transaction.copy(file)
