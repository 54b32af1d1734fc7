"""What one load does: its modules, functions, statements and transactions.

It is the second load of its kind in this process, of one file with 1,000 records, so that nothing is imported, created
or prepared any more. The numbers do not depend on the machine.
"""

import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from sqlalchemy import Connection, Engine, event

from bench.events import Events
from bench.parts.stand import declared_as
from onceload_core.postgres import LedgerSettings
from onceload_jobs.executor.executor import InProcessExecutor
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Declared, Publish

_OURS = re.compile(r"/(?:onceload|onceload_core|onceload_jobs)/")
_RECORDS = 1_000
KINDS = ("staged", "direct", "nothing new")


@dataclass
class Trace:
    """The calls and statements of the time in which it watched."""

    functions: Counter[CodeType] = field(default_factory=Counter)
    statements: list[str] = field(default_factory=list)
    transactions: int = 0

    @property
    def modules(self) -> int:
        return len({code.co_filename for code in self.functions})

    @contextmanager
    def watching(self) -> Iterator["Trace"]:
        """Watch this process, in all of its threads."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        event.listen(Engine, "before_cursor_execute", self._sent)
        event.listen(Engine, "commit", self._ended)
        event.listen(Engine, "rollback", self._ended)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            event.remove(Engine, "before_cursor_execute", self._sent)
            event.remove(Engine, "commit", self._ended)
            event.remove(Engine, "rollback", self._ended)

    def _called(self, frame: FrameType, what: str, _: object) -> None:
        if what == "call" and _OURS.search(frame.f_code.co_filename):
            self.functions[frame.f_code] += 1

    def _sent(self, _: Connection, __: object, statement: str, *___: Any) -> None:  # noqa: ANN401 - of SQLAlchemy.
        self.statements.append(" ".join(statement.split()))

    def _ended(self, _: Connection) -> None:
        self.transactions += 1


def trace(dsn: str, kind: str) -> Trace:
    """Load a first file, and then watch the load of a second one."""
    with tempfile.TemporaryDirectory(prefix="onceload-trace-") as named:
        folder = Path(named)
        publish = Publish.DIRECT if kind == "direct" else Publish.STAGED
        declared = declared_as(folder / "*.jsonl", publish=publish)
        declared = replace(declared, pipeline=replace(declared.pipeline, name=f"trace {kind}"))
        _load_next(dsn, declared, folder, "a")
        if kind != "nothing new":
            Events(rows=_RECORDS, devices=10).write_jsonl(folder / "b.jsonl")
        with Trace().watching() as watched:
            _load(dsn, declared)
    return watched


def _load_next(dsn: str, declared: Declared, folder: Path, name: str) -> None:
    Events(rows=_RECORDS, devices=10).write_jsonl(folder / f"{name}.jsonl")
    _load(dsn, declared)


def _load(dsn: str, declared: Declared) -> None:
    load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=new_batch(), executor=InProcessExecutor())


def report(dsn: str) -> Iterator[str]:
    """A line for each kind, and all statements of each in order."""
    traces = {kind: trace(dsn, kind) for kind in KINDS}
    yield "| load | modules | functions | calls | statements | transactions |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for kind, found in traces.items():
        numbers = (found.modules, len(found.functions), found.functions.total())
        sent = (len(found.statements), found.transactions)
        yield f"| {kind} | {' | '.join(f'{number:,}' for number in (*numbers, *sent))} |"
    for kind, found in traces.items():
        yield f"\n{kind}:"
        for number, statement in enumerate(found.statements, 1):
            yield f"{number:4} {statement[:140]}"
