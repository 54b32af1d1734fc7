"""Infer types of fields that the pipeline file does not declare."""

import re
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_jobs.formats.casts import mask_of
from onceload_jobs.formats.jsonl.slices import RawValues
from onceload_jobs.formats.records import Mask
from onceload_jobs.pipeline.columns import Column, ColumnType, Kind

#: Integers and fractions that a double holds.
_SHORT = ("^-?[0-9]{1,15}$", r"^-?[0-9]{1,7}\.[0-9]{1,8}$")
_BIGINT = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """The undeclared fields of valid records, with types that accept all of their values."""

    kinds: dict[str, set[Kind]] = field(default_factory=dict)

    def see(self, fields: dict[str, str]) -> None:
        for name, raw in fields.items():
            if raw != "null":
                self.kinds.setdefault(name, set()).add(_kind_of(raw))

    def add(self, kinds: dict[str, set[Kind]]) -> None:
        for name, found in kinds.items():
            if found:
                self.kinds.setdefault(name, set()).update(found)

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(name=name, type=ColumnType(kind=_kind_for_all(kinds))) for name, kinds in sorted(self.kinds.items())
        )


def kinds_of(raw: RawValues, rows: Mask) -> set[Kind]:
    """The kinds of the values in these rows that are not null."""
    chosen = rows & ~raw.nulls
    texts = raw.texts(~chosen)
    is_short_integer, is_short_fraction = (mask_of(pc.match_substring_regex(texts, each)) for each in _SHORT)
    rest = chosen & ~is_short_integer & ~is_short_fraction
    # A string, object or array needs no closer look than its first byte.
    is_number = rest & np.isin(raw.firsts, np.frombuffer(b"-0123456789", np.uint8))
    found = {_kind_of(chr(first)) for first in np.unique(raw.firsts[rest & ~is_number]).tolist()}
    found |= {_kind_of_number(number) for number in texts.filter(pa.array(is_number)).to_pylist()}
    found |= {Kind.BIGINT} if is_short_integer.any() else set()
    return found | ({Kind.DOUBLE} if is_short_fraction.any() else set())


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
