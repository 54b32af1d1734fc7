"""The rows that are new by the business id of their record."""

from dataclasses import replace

from sqlalchemy import Connection

from onceload_core.postgres.connection import statements
from onceload_jobs.batch.stage import Stage
from onceload_jobs.pipeline.declared import Declared, MessageId
from onceload_jobs.publish.source import RowSource, position_of
from onceload_jobs.write.sql import filled, quoted

SQL = statements("by_message.sql", package=__package__)


class ByMessage:
    def __init__(self, declared: Declared, stage: Stage, *, token: str) -> None:
        self._declared = declared
        self._by_message = stage.beside(f"by message {token}")

    @property
    def tables(self) -> tuple[str, ...]:
        return (self._by_message,)

    @property
    def offered(self) -> str | None:
        """The table with the business ids that the commit records, quoted for SQL; None if the pipeline has none."""
        return self._by_message if self._declared.message_id else None

    def select_new(self, connection: Connection, source: RowSource) -> RowSource:
        """Leave out rows whose id is already loaded or repeated in the batch."""
        if self._declared.message_id is None:
            return source
        self._copy_new(connection, source, self._declared.message_id)
        return replace(source, rows=self._by_message)

    def _copy_new(self, connection: Connection, source: RowSource, message_id: MessageId) -> None:
        copy = filled(
            SQL["copy_new"],
            by_message=self._by_message,
            rows=source.rows,
            values=", ".join(f"CAST({quoted(name)} AS text)" for name in message_id.columns),
            position=position_of("_message", of_record=source.of_record),
        )
        connection.execute(copy, {"pipeline": self._declared.name})
