"""COPY reads from this process: what goes wrong there is neither the server's fault nor a reason to wait for it."""

import os
import signal
import threading
from itertools import chain, repeat

import pgpq
import pyarrow as pa
import pytest
from sqlalchemy import text

from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.write import binary_copy
from onceload_jobs.write.binary_copy import copy_in
from tests.servers import execute
from tests.waiting import until

COLUMNS = (parse_column("id", "bigint"),)
ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def connection(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE target (id bigint)"))
        connection.commit()
        yield connection
    engine.dispose()


def copy(connection):
    with connection.begin():
        copy_in(connection, ROWS, table="target", names=["id"], columns=COLUMNS)


@pytest.mark.parametrize("failure", [ValueError("no such encoding"), MemoryError(), KeyboardInterrupt(), SystemExit(1)])
def test_an_error_while_rows_are_encoded_is_the_error_of_the_copy(connection, monkeypatch, failure):
    def broken(rows, columns):
        yield pgpq.ArrowToPostgresBinaryEncoder(rows.schema).write_header()
        raise failure

    monkeypatch.setattr(binary_copy, "_encoded", broken)

    with pytest.raises(type(failure)) as raised:
        copy(connection)

    assert raised.value is failure
    monkeypatch.undo()
    copy(connection)
    assert connection.execute(text("SELECT count(*) FROM target")).scalar_one() == 3


def test_a_copy_ends_with_the_first_signal(connection, monkeypatch, dsn):
    """Nothing of Python runs in this encoder, so that the signal comes while the driver or its caller runs."""
    encoder = pgpq.ArrowToPostgresBinaryEncoder(ROWS.schema)
    header, rows = encoder.write_header(), encoder.write_batch(ROWS.to_batches()[0]) + encoder.finish()[:-2]
    # Long, but not without end: what no signal ends must not fill the disk.
    monkeypatch.setattr(binary_copy, "_encoded", lambda *_: chain([header], repeat(rows, 2_000_000)))

    def interrupt():
        copies = "SELECT 1 FROM pg_stat_progress_copy WHERE bytes_processed > 1000000"
        until(lambda: execute(dsn, copies), "the copy runs")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        copy(connection)
    interrupter.join()
