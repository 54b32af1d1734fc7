"""The statements that compare the rows that were read again with those of the target."""

from sqlalchemy import TextClause

from onceload_core.postgres.connection import statements
from onceload_jobs.pipeline.columns import LINEAGE, PRODUCER_ID, SEQUENCE, Column
from onceload_jobs.pipeline.declared import Declared, RecordProducer, Target, Write
from onceload_jobs.write.sql import Sql, filled, listed, literal, quoted, table_name
from onceload_jobs.write.writer import cast_to_target

SQL = statements("values.sql", package=__package__)


class Questions:
    """Each row that was read again (expected) is compared with the one that has its lineage or key (found)."""

    def __init__(
        self, declared: Declared, columns: tuple[Column, ...], dropped: tuple[Column, ...], *, is_of_records: bool
    ) -> None:
        target = declared.target
        # The last record of a key may repeat a business id, so that an earlier one counts: the row names it.
        is_by_key = target.write is Write.MERGE and declared.message_id is None
        key = target.key if is_by_key else (PRODUCER_ID, SEQUENCE)
        self._columns = columns
        self._dropped = dropped
        self._rows: dict[str, Sql] = {
            "expected": _expected(target, columns + dropped, is_by_key=is_by_key),
            "found": _found(target, columns, dropped),
            "is_same": " AND ".join(f"expected.{quoted(name)} = found.{quoted(name)}" for name in key),
        }
        # No load wrote rows without a producer.
        has_record = "true" if is_of_records else f"found.{PRODUCER_ID} IS NOT NULL"
        self._is_ours: Sql = filled(SQL["is_ours"], has_record=has_record) if target.lineage else "true"

    @property
    def changed(self) -> TextClause:
        names = [(column.name, quoted(column.name)) for column in self._columns + self._dropped]
        dropped = {column.name for column in self._dropped}
        pairs = (
            f"({literal(plain)}, CAST(expected.{name} AS text), "
            + ("'no such column'" if plain in dropped else f"CAST(found.{name} AS text)")
            + f", expected.{name} IS DISTINCT FROM found.{name})"
            for plain, name in names
        )
        return filled(
            SQL["find_changed"],
            expected_values=", ".join(f"expected.{name}" for _, name in names),
            found_values=", ".join(f"found.{name}" for _, name in names),
            pairs=", ".join(pairs),
            is_ours=self._is_ours,
            **self._rows,
        )

    @property
    def missing(self) -> TextClause:
        return filled(SQL["find_missing"], **self._rows)

    @property
    def surplus(self) -> TextClause:
        return filled(SQL["find_surplus"], is_ours=self._is_ours, **self._rows)


class NamedQuestions:
    """Each row of a producer that records name is compared with all records that have its name and sequence id.

    Which of several was loaded depends on the files of each batch, so a row is right if it equals one of them.
    """

    def __init__(
        self, target: Target, producer: RecordProducer, columns: tuple[Column, ...], dropped: tuple[Column, ...]
    ) -> None:
        self._columns = columns + dropped
        self._dropped = {column.name for column in dropped}
        self._parts: dict[str, Sql] = {
            "names": SQL["names"],
            "found": filled(SQL["named_rows"], values=self._found(), table=table_name(target)),
        }
        self._expected = filled(
            SQL["named_records"],
            values=self._each("taken.{name} AS {value}"),
            prefix=literal(producer.prefix),
            called=f"taken.{quoted(producer.name)}",
            sequence=f"taken.{quoted(producer.sequence)}",
            records=filled(SQL["records"], cast=cast_to_target(self._columns, lineage=True)),
        )

    @property
    def count(self) -> TextClause:
        return filled(SQL["count_named"], **self._parts)

    @property
    def wrong(self) -> TextClause:
        return filled(
            SQL["find_named"],
            expected=self._expected,
            expected_values=self._each("expected.{value}"),
            found_values=self._each("found.{value}"),
            pairs=", ".join(map(self._pair, range(len(self._columns)))),
            is_ours=filled(SQL["is_ours"], has_record="true"),
            **self._parts,
        )

    def _each(self, of_column: str) -> str:
        """A part of a statement for each column. Other columns of the statements could have the same names."""
        return ", ".join(
            of_column.format(name=quoted(column.name), value=_value(number))
            for number, column in enumerate(self._columns)
        )

    def _found(self) -> str:
        return ", ".join(
            f"{'CAST(NULL AS text)' if column.name in self._dropped else f'there.{quoted(column.name)}'}"
            f" AS {_value(number)}"
            for number, column in enumerate(self._columns)
        )

    def _pair(self, number: int) -> str:
        name, value = self._columns[number].name, _value(number)
        found = "'no such column'" if name in self._dropped else f"CAST(wrong.{value} AS text)"
        differs = f"record.{value} IS DISTINCT FROM wrong.{value}"
        return f"({literal(name)}, CAST(record.{value} AS text), {found}, {differs})"


def _value(number: int) -> str:
    return f"value_{number}"


def _expected(target: Target, columns: tuple[Column, ...], *, is_by_key: bool) -> TextClause:
    records = filled(SQL["records"], cast=cast_to_target(columns, lineage=True))
    if not is_by_key:
        return records
    is_kept = f"{quoted(target.deleted)} IS NOT TRUE" if target.deleted else "true"
    return filled(SQL["latest_records"], key=listed(target.key), records=records, is_kept=is_kept)


def _found(target: Target, columns: tuple[Column, ...], dropped: tuple[Column, ...]) -> TextClause:
    there = [quoted(column.name) for column in columns]
    gone = [f"CAST(NULL AS text) AS {quoted(column.name)}" for column in dropped]
    return filled(
        SQL["rows_of_files" if target.write is Write.APPEND else "rows"],
        columns=", ".join(there + gone),
        lineage=", ".join(each.name if target.lineage else f"CAST(NULL AS bigint) AS {each.name}" for each in LINEAGE),
        table=table_name(target),
    )
