"""What rewinds rolled back and no commit has loaded again: the producers owe it.

The ledger is authoritative: the receipts of rewinds name the spans, and what is consumed by now is no longer owed.
Nothing else is stored, so what is owed cannot be lost as long as the ledger is there.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Engine

from onceload_core.names import Position
from onceload_core.postgres.connection import Record, statements, transaction
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.spans import SpanSet

SQL = statements("rewound.sql")


@dataclass(frozen=True, kw_only=True)
class Owed:
    """What a producer owes, and the last rewind that rolled back a part of it."""

    producer: str
    spans: SpanSet
    rewind: Position
    rewound_at: datetime
    #: That of its file, when most of it was loaded. A producer that a program names has none.
    fingerprint: bytes | None

    @property
    def is_of_program(self) -> bool:
        """Whether no file has it, so that only the program that gave it can give it again."""
        return self.fingerprint is None

    @property
    def cause(self) -> str:
        return f"the rewind at position {self.rewind:,} ({self.rewound_at:%Y-%m-%d %H:%M:%S}Z)"


def find_owed(engine: Engine, pipeline: str, producer: str) -> Owed | None:
    """What one producer owes."""
    with transaction(engine, pipeline, doing="reading what was rewound") as connection:
        return next(iter(_owed(connection, get_pipeline(connection, pipeline).pipeline_id, producer)), None)


def find_all_owed(engine: Engine, *, only: str | None = None) -> dict[str, tuple[Owed, ...]]:
    """What the producers of each pipeline owe, or of one; without those of which nothing was rewound."""
    with transaction(engine, only or "(any)", doing="reading what was rewound") as connection:
        rewound = connection.execute(SQL["rewound"], {"pipeline": only}).all()
        return {row.name: _owed(connection, row.pipeline_id, None) for row in rewound}


def owed(connection: Connection, pipeline_id: int) -> tuple[Owed, ...]:
    """What each producer of a pipeline owes."""
    return _owed(connection, pipeline_id, None)


class RolledBack(NamedTuple):
    """A file of which a rewind rolls back records: up to which sequence id, and how many."""

    name: str
    end: int
    records: int


def rolled_back(engine: Engine, pipeline: str, *, to: Position, up_to: Position) -> tuple[RolledBack, ...]:
    """The files of which a rewind rolls back records, from one position to another."""
    with transaction(engine, pipeline, doing="reading what is rolled back") as connection:
        binds = {"pipeline_id": get_pipeline(connection, pipeline).pipeline_id, "to": to, "up_to": up_to}
        return tuple(
            RolledBack(row.name, row.end, row.records) for row in connection.execute(SQL["rolled_back"], binds)
        )


def _owed(connection: Connection, pipeline_id: int, producer: str | None) -> tuple[Owed, ...]:
    rows = connection.execute(SQL["owed"], {"pipeline_id": pipeline_id, "producer": producer})
    return tuple(map(_owed_in, rows))


def _owed_in(row: Record) -> Owed:
    return Owed(
        producer=row.producer,
        spans=SpanSet.parse(row.spans),
        rewind=Position(row.position),
        rewound_at=row.rewound_at,
        fingerprint=None if row.fingerprint is None else bytes(row.fingerprint),
    )
