"""The questions of a process to the ledger, and the answers, written down as they happen: a kill leaves all of them.

One file for each process, a line for each thing said, in the one clock that all processes of a machine share.
"""

import json
import os
import time
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

from onceload_core.errors import AskTheLedger, OnceloadError
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.deliveries import PostgresDeliveries

_numbers = count()


def record(folder: str) -> None:
    """From now on, write down every commit and every session that is opened."""

    def say(**said: Any) -> None:
        # Opened each time, as a process may have been forked meanwhile; one small write is never torn.
        descriptor = os.open(Path(folder) / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, (json.dumps({**said, "at": time.monotonic_ns()}) + "\n").encode())
        finally:
            os.close(descriptor)

    commit, open_session = PostgresLedger.commit, PostgresDeliveries.open_session

    @wraps(commit)
    def recorded_commit(self: PostgresLedger, asked: Any, **named: Any) -> Any:
        number = f"{os.getpid()}:{next(_numbers)}"
        spans = {str(each.producer_id): str(each.spans) for each in asked.advances if each.spans}
        say(op=number, said="asked", session=asked.session.name, epoch=asked.session.epoch, spans=spans)
        try:
            position = commit(self, asked, **named)
        except OnceloadError as error:
            said = "unknown" if isinstance(error, AskTheLedger) else "failed"
            say(op=number, said=said, error=type(error).__name__)
            raise
        say(op=number, said="ok", position=position)
        return position

    @wraps(open_session)
    def recorded_open(self: PostgresDeliveries, *arguments: Any, **named: Any) -> Any:
        session = open_session(self, *arguments, **named)
        if session:
            say(said="opened", session=session.name, epoch=session.epoch)
        return session

    PostgresLedger.commit = recorded_commit  # type: ignore[method-assign, assignment]
    PostgresDeliveries.open_session = recorded_open  # type: ignore[method-assign]
