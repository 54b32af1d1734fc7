"""How the columns of a target table differ from the declared ones, and which ALTER TABLE would settle it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from onceload_core.errors import SettingRefused
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, ColumnType, Kind, parse_type
from onceload_jobs.pipeline.declared import OnNewColumn
from onceload_jobs.write.sql import quoted


class Cost(Enum):
    """What a change of the table costs."""

    #: Nothing: only the catalog changes.
    NONE = "none"
    #: Every row is written again, and no other transaction can use the table meanwhile.
    REWRITE = "rewrite"
    #: Values could be lost or refused.
    VALUES = "values"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A column of the table that differs from the declared one."""

    name: str
    of_type: str
    #: Its type in the table, as Postgres writes it; None: there is no such column.
    found: str | None

    @property
    def fault(self) -> str:
        if self.found is None:
            return f"{self.name} is missing"
        return f"{self.name} is {self.found} instead of {self.of_type}"

    @property
    def outcome(self) -> str:
        """How the change altered the table."""
        if self.found is None:
            return f"the column {self.name} {self.of_type} was added. Existing rows have null in it"
        return f"the column {self.name} was widened from {self.found} to {self.of_type}"

    @property
    def cost(self) -> Cost:
        return Cost.NONE if self.found is None else _cost(self.name, self.found, self.of_type)

    @property
    def clause(self) -> str:
        """The part of ALTER TABLE that makes it."""
        if self.found is None:
            return f"ADD COLUMN {quoted(self.name)} {self.of_type}"
        return f"ALTER COLUMN {quoted(self.name)} TYPE {self.of_type}"


def _cost(name: str, found: str, wanted: str) -> Cost:
    try:
        before, after = parse_type(name, found), parse_type(name, wanted)
    except SettingRefused:
        return Cost.VALUES
    if before.is_array or after.is_array:
        return Cost.VALUES
    return Cost.NONE if _is_relabelled(before, after) else Cost.REWRITE if _is_wider(before, after) else Cost.VALUES


def _is_relabelled(before: ColumnType, after: ColumnType) -> bool:
    """Whether Postgres keeps the stored values as they are."""
    match before.kind, after.kind:
        case Kind.VARCHAR, Kind.TEXT:
            return True
        case Kind.VARCHAR, Kind.VARCHAR:
            return after.length is None or (before.length is not None and before.length <= after.length)
        case Kind.NUMERIC, Kind.NUMERIC:
            return before.scale == after.scale and (before.precision or 0) <= (after.precision or 0)
        case _:
            return False


#: The digits of each type of integers.
_DIGITS = {Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}


def _is_wider(before: ColumnType, after: ColumnType) -> bool:
    """Whether each value has the same value in the other type."""
    if before.kind in _DIGITS and after.kind in _DIGITS:
        return _DIGITS[before.kind] <= _DIGITS[after.kind]
    if after.kind is Kind.NUMERIC and before.kind in (*_DIGITS, Kind.NUMERIC):
        scale, precision = after.scale or 0, after.precision or 0
        whole = _DIGITS.get(before.kind, (before.precision or 0) - (before.scale or 0))
        return scale >= (before.scale or 0) and precision - scale >= whole
    return (before.kind, after.kind) == (Kind.REAL, Kind.DOUBLE)


def alter_table(table: str, changes: Sequence[Change]) -> str:
    return f"ALTER TABLE {table} {', '.join(each.clause for each in changes)}"


def settled_by(table: str, changes: Sequence[Change]) -> str:
    """What to do so that the table fits, for a message."""
    possible = [each for each in changes if each.cost is not Cost.VALUES]
    advice = []
    if possible:
        slow = [each.name for each in possible if each.cost is Cost.REWRITE]
        if slow:
            hint = f" (this rewrites the whole table for {', '.join(slow)}, and blocks all reads and writes meanwhile)"
        elif len(possible) < len(changes) or any(each.name in (PRODUCER_ID, SEQUENCE) for each in possible):
            # Loads change a table only if it fits afterwards.
            hint = ""
        else:
            hint = f", or set on_new_column: {OnNewColumn.ADD}, so that loads do it"
        advice.append(f"run `{alter_table(table, possible)}`{hint}")
    advice += [_other_way(table, each) for each in changes if each.cost is Cost.VALUES]
    return "; ".join(advice)


def _other_way(table: str, change: Change) -> str:
    try:
        parse_type(change.name, change.found or "")
    except SettingRefused:
        return (
            f"loads do not write columns of the type {change.found}: give the column another name, or run "
            f"`{alter_table(table, [change])}` if {change.of_type} can hold its values"
        )
    return (
        f"declare {change.name} as {change.found}, or give the column another name: a change of {change.found} to "
        f"{change.of_type} could lose values"
    )


def types_of(columns: Sequence[Column], *, lineage: bool) -> dict[str, str]:
    """The types that the table needs."""
    types = {column.name: str(column.type) for column in columns}
    return types | {PRODUCER_ID: "bigint", SEQUENCE: "bigint"} if lineage else types


def differing(wanted: Mapping[str, str], there: Mapping[str, str]) -> Iterator[Change]:
    """Each column that is missing or has another type."""
    for name, of_type in wanted.items():
        if there.get(name) != _as_postgres_writes(of_type):
            yield Change(name=name, of_type=of_type, found=there.get(name))


#: The long Postgres names of types with a shorter name.
_LONG_NAMES = {
    "varchar": "character varying",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "time": "time without time zone",
}


def _as_postgres_writes(declared: str) -> str:
    name, bracket, rest = declared.partition("(") if "(" in declared else declared.partition("[")
    return _LONG_NAMES.get(name, name) + bracket + rest
