"""The ids that a batch uses up: of the producers that its records name, and business ids.

They go from workers to the commit in tables, like the rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection

from onceload_core.postgres.connection import statements
from onceload_jobs.batch.piece import Block, Piece
from onceload_jobs.batch.stage_folder import BlockWriter
from onceload_jobs.pipeline.columns import Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.write.binary_copy import copy_encoded, encoded
from onceload_jobs.write.sql import filled, quoted

SQL = statements("used_ids.sql", package=__package__)
_BIGINT = ColumnType(kind=Kind.BIGINT)
#: A producer may have several ranges of ids, `first` to before `end`, each with a number of rows.
USED_IDS = tuple(Column(name=name, type=_BIGINT) for name in ("producer_id", "first", "end", "rows"))
_USED_NAMES, _MESSAGES = tuple(column.name for column in USED_IDS), ("_message",)
OFFERED = "pg_temp.onceload_offered"
#: A row of COPY with one hash, behind its size.
_HASH_ROW = np.dtype([("columns", ">i2"), ("size", ">i4"), ("hash", "S32")])
_HEADER, _TRAILER = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


@dataclass(frozen=True, kw_only=True)
class IdTables:
    """The tables of the ids that the rows of a batch use up, quoted for SQL, if records name themselves."""

    used: str | None
    messages: str | None
    is_temporary: bool

    @classmethod
    def of(cls, declared: Declared, called: Callable[[str], str], *, is_temporary: bool = False) -> "IdTables":
        return cls(
            used=called("used ids") if declared.producer is not None else None,
            messages=called("messages") if declared.message_id is not None else None,
            is_temporary=is_temporary,
        )

    @classmethod
    def temporary(cls, declared: Declared) -> "IdTables":
        """Those of one transaction."""
        return cls.of(declared, lambda name: f"pg_temp.{quoted(f'onceload {name}')}", is_temporary=True)

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(table for table in (self.used, self.messages) if table is not None)

    def create(self, connection: Connection) -> None:
        """Create them, empty."""
        kind, until = ("TEMPORARY", "ON COMMIT DROP") if self.is_temporary else ("UNLOGGED", "")
        for statement, table in (("create_used", self.used), ("create_messages", self.messages)):
            if table is not None:
                connection.execute(filled(SQL[statement], table=table, kind=kind, until=until))

    def copy(self, connection: Connection, piece: Piece, content: Callable[[Piece, Block], Iterator[bytes]]) -> None:
        """Add what the rows of a piece use up."""
        for blocks, table, names in ((piece.ids, self.used, _USED_NAMES), (piece.messages, self.messages, _MESSAGES)):
            if table is not None:
                for block in blocks:
                    copy_encoded(connection, content(piece, block), table=table, names=names)

    def count_repeats(self, connection: Connection, pipeline: str) -> int:
        """How many of them other commits have used up."""
        asked = (("used_before", self.used), ("messages_before", self.messages))
        return sum(
            connection.execute(filled(SQL[statement], table=table), {"pipeline": pipeline}).scalar_one()
            for statement, table in asked
            if table is not None
        )

    def offer(self, connection: Connection, *, recounted: str | None = None) -> None:
        """Gather the ranges of each producer for the commit of this transaction, in the table `OFFERED`.

        `recounted` is a table with the rows of each producer, if they are not those that workers counted.
        """
        if self.used is not None:
            connection.execute(filled(SQL["offer"], table=self.used))
            if recounted is not None:
                connection.execute(filled(SQL["recount"], rows=recounted))


def used_ids_block(into: BlockWriter, ids: pa.Table) -> None:
    into.write(encoded(ids, USED_IDS, names=ids.column_names), rows=ids.num_rows)


def messages_block(into: BlockWriter, hashes: "np.ndarray[tuple[int], np.dtype[np.bytes_]]") -> None:
    rows = np.empty(len(hashes), _HASH_ROW)
    rows["columns"], rows["size"], rows["hash"] = 1, hashes.dtype.itemsize, hashes
    into.write((_HEADER, rows.tobytes(), _TRAILER), rows=len(hashes))
