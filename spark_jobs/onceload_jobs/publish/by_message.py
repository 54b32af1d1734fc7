"""The rows that are new by the business id of their record.

The ids are computed into a table of their own. Usually all of them are new, and the rows stay where they are.
"""

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
        self._ids = stage.beside(f"message ids {token}")
        self._repeats = stage.beside(f"repeats {token}")
        self._new = stage.beside(f"by message {token}")
        #: The table with the business ids that the commit records, quoted for SQL; None if the pipeline has none.
        self.offered: str | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        return self._ids, self._repeats, self._new

    def select_new(self, connection: Connection, source: RowSource) -> RowSource:
        """Leave out rows whose id is already loaded or repeated in the batch."""
        if self._declared.message_id is None:
            return source
        texts = {
            "ids": self._ids,
            "repeats": self._repeats,
            "new": self._new,
            "rows": source.rows,
            "id": _id_of(self._declared.message_id),
            "of_record": ", ".join(source.of_record),
            "position": position_of("_message", of_record=source.of_record),
            "is_same_record": " AND ".join(f"repeat.{name} = there.{name}" for name in source.of_record),
        }
        connection.execute(filled(SQL["make_ids"], **texts))
        connection.execute(filled(SQL["find_repeats"], **texts), {"pipeline": self._declared.name})
        self.offered = self._ids
        if not connection.execute(filled(SQL["has_repeats"], **texts)).scalar_one():
            return source
        if self._declared.transform is None:
            connection.execute(filled(SQL["forget_repeats"], **texts))
            return replace(source, rows=filled(SQL["without_repeats"], **texts))
        connection.execute(filled(SQL["copy_new"], **texts))
        self.offered = self._new
        return replace(source, rows=self._new)


def _id_of(message_id: MessageId) -> str:
    """The hash of the values of a row, as SQL."""
    values = ", ".join(f"CAST({quoted(name)} AS text)" for name in message_id.columns)
    return f"sha256(convert_to(CAST(json_build_array({values}) AS text), 'UTF8'))"
