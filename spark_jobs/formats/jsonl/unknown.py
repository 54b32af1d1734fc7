"""Infer types of fields that the pipeline file does not declare."""

import re
from dataclasses import dataclass, field
from decimal import Decimal

from spark_jobs.pipeline.columns import Column, ColumnType, Kind

_BIGINT = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """The undeclared fields of valid records, with types that accept all of their values."""

    kinds: dict[str, set[Kind]] = field(default_factory=dict)

    def see(self, fields: dict[str, str]) -> None:
        for name, raw in fields.items():
            if raw != "null":
                self.kinds.setdefault(name, set()).add(_kind_of(raw))

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(name=name, type=ColumnType(kind=_kind_for_all(kinds))) for name, kinds in sorted(self.kinds.items())
        )


def _kind_of(raw: str) -> Kind:
    match raw[0]:
        case '"':
            return Kind.TEXT
        case "{" | "[":
            return Kind.JSONB
        case "t" | "f":
            return Kind.BOOLEAN
        case _:
            return _kind_of_number(raw)


def _kind_of_number(raw: str) -> Kind:
    """A type that keeps all digits; integers too large for bigint become numeric."""
    if not _BIGINT.fullmatch(raw):
        # More digits than a double holds are as wrong as a too large number.
        return Kind.DOUBLE if _is_double(raw) else Kind.TEXT
    if abs(int(raw)) <= 2**53:
        return Kind.BIGINT
    return Kind.NUMERIC if -(2**63) <= int(raw) < 2**63 else Kind.TEXT


def _is_double(raw: str) -> bool:
    if raw.lstrip("-")[0] in "NI":
        return True
    try:
        return Decimal(raw) == Decimal(repr(float(raw)))
    except ArithmeticError:
        return False


def _kind_for_all(kinds: set[Kind]) -> Kind:
    if Kind.JSONB in kinds:
        return Kind.JSONB
    if kinds <= {Kind.BIGINT, Kind.NUMERIC}:
        return Kind.BIGINT
    if len(kinds) == 1:
        return next(iter(kinds))
    return Kind.DOUBLE if kinds == {Kind.BIGINT, Kind.DOUBLE} else Kind.TEXT
