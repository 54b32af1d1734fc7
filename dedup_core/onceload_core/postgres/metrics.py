"""Metrics of every pipeline: what was committed so far, and the current state."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine

from onceload_core.postgres.connection import Record, array, statements, transaction

SQL = statements("metrics.sql")
_SUMS = ("commits", "loaded", "duplicate", "quarantined", "filtered", "bytes")


@dataclass
class Sums:
    """The sums of one pipeline's commits up to a position, by kind of commit."""

    position: int = 0
    by_kind: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, row: Record) -> None:
        self.position = max(self.position, row.position)
        self.by_kind[row.kind].update({name: int(getattr(row, name)) for name in _SUMS})

    def of(self, name: str) -> int:
        return sum(counted[name] for counted in self.by_kind.values())


class MetricsReader:
    """Reads the whole ledger once, and then only its new entries."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sums: dict[int, Sums] = {}

    def look(self) -> Sequence[tuple[Record, Sums]]:
        """The current state and the sums of commits, for every pipeline."""
        with transaction(self._engine, "(any)", doing="reading metrics") as connection:
            now = connection.execute(SQL["now"], {"pipeline": None}).all()
            # A lower position means that the database was restored: count from zero, as for a counter reset.
            known = {
                row.pipeline_id: self._sums[row.pipeline_id]
                for row in now
                if row.pipeline_id in self._sums and row.position >= self._sums[row.pipeline_id].position
            }
            self._sums = self._added(connection, known)
        return [(row, self._sums.get(row.pipeline_id, Sums())) for row in now]

    @staticmethod
    def _added(connection: Connection, known: Mapping[int, Sums]) -> dict[int, Sums]:
        sums = defaultdict(Sums, known)
        binds = {"pipeline_ids": array(known), "positions": array(each.position for each in known.values())}
        for row in connection.execute(SQL["since"], binds):
            sums[row.pipeline_id].add(row)
        return dict(sums)


def look_now(engine: Engine, *, only: str | None = None) -> Sequence[Record]:
    """The current state of every pipeline or of one, without the sums of its commits."""
    with transaction(engine, "(any)", doing="reading the state of all pipelines") as connection:
        return connection.execute(SQL["now"], {"pipeline": only}).all()
