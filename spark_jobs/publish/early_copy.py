"""Copy files into the target while other pieces are still staged, in the transaction that publishes all of them."""

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import psycopg2.extensions
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from spark_jobs.batch.job import Job
from spark_jobs.batch.pieces import staged_files
from spark_jobs.batch.spool import read_file
from spark_jobs.batch.stage import Stage
from spark_jobs.write.binary_copy import copy_encoded
from spark_jobs.write.target import Written
from spark_jobs.write.writer import Writer

#: How often it looks for files at most, and which part of its time that may take.
_LOOKS_EVERY_S = 0.02
_LOOKS_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A transaction with rows in the target, which are not visible before it commits."""

    connection: Connection
    written: Written
    #: How many rows of each file it has copied.
    copied: dict[str, int]


class EarlyCopy:
    """A thread with a transaction. If anything fails, it is rolled back, and publishing starts from the beginning."""

    def __init__(self, engine: Engine, job: Job, stage: Stage) -> None:
        self._engine, self._stage = engine, stage
        self._writer = Writer.into_target(job.declared.target, job.written)
        self._copied: dict[str, int] = {}
        self._begun: Begun | None = None
        self._is_over = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._copy, name="onceload copies files", daemon=True)
        self._thread.start()

    def take(self, files: Sequence[str]) -> Begun | None:
        """Its transaction, if it has copied nothing but these files: a piece may have been staged again."""
        self._is_over.set()
        self._thread.join()
        if self._begun and self._begun.copied.keys() <= set(files):
            return self._begun
        # Another transaction would wait for it where both write the same key.
        self.close()
        return None

    def close(self) -> None:
        """Roll back what is not committed, also if it waits for the server."""
        self._is_over.set()
        if self._thread.is_alive() and self._connection is not None:
            with suppress(DBAPIError, psycopg2.Error):
                cast(psycopg2.extensions.connection, self._connection.connection.dbapi_connection).cancel()
        self._thread.join()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            # If the server is gone, so is the transaction.
            with suppress(DBAPIError):
                connection.close()

    def _copy(self) -> None:
        try:
            self._connection = connection = self._engine.connect()
            writer = self._writer
            written = writer.begun(connection)
            pause_s = _LOOKS_EVERY_S
            while not self._is_over.wait(pause_s):
                started = time.monotonic()
                new = staged_files(connection, self._stage) - self._copied.keys()
                # With thousands of pieces, looking takes longer.
                pause_s = max(_LOOKS_EVERY_S, (time.monotonic() - started) / _LOOKS_SHARE)
                self._copy_all(connection, new)
            self._begun = Begun(connection=connection, written=written, copied=self._copied)
        except Exception:  # noqa: BLE001, S110 - publishing finds the same error, or has none.
            pass

    def _copy_all(self, connection: Connection, files: Iterable[str]) -> None:
        for file in files:
            if self._is_over.is_set():
                return
            rows = read_file(self._stage.spool or "", file)
            self._copied[file] = copy_encoded(connection, rows, table=self._writer.table, names=self._writer.names)
