"""The fields of quarantined records, and why a record cannot be retried because of them.

A record is stored as it was read: a line without the names or places of its fields, and a row of typed values as JSON
with the columns that were declared then. So it is read by the layout of the version that quarantined it. Its fields
are matched by name with the columns that are declared now, whose types and rules apply.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from sqlalchemy import Engine

from onceload_core.names import ProducerId
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.quarantine import KeptRecord, Refusal, find_declarations
from onceload_jobs.files.fingerprints import Fingerprint, Resemblance, compare
from onceload_jobs.files.listing import Listed, list_files
from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.csv.header import read_checked_header
from onceload_jobs.formats.json_values import STRING
from onceload_jobs.formats.jsonl.fields import fields_of
from onceload_jobs.formats.parquet.values import FLOATS
from onceload_jobs.formats.records import RecordRefused, ValueRefused
from onceload_jobs.pipeline.columns import ColumnType, Kind, parse_type
from onceload_jobs.pipeline.declared import Declared, Format, Source, UnknownFields
from onceload_jobs.pipeline.layout import Layout
from onceload_jobs.plan.declaration_texts import find_layout


@dataclass(frozen=True, kw_only=True)
class Fields:
    """How to find the fields of a record."""

    #: With the layout of the version that quarantined the record, and the rules that are declared now.
    source: Source
    layout: Layout
    #: The settings that have changed since then, so that the same bytes would have other fields now.
    differences: tuple[str, ...] = ()
    #: The names of the fields of CSV, in their order.
    header: tuple[str, ...] = ()


class StoredFields:
    """The fields of some quarantined records."""

    def __init__(
        self, declared: Declared, engine: Engine, ledger: PostgresLedger, records: Sequence[KeptRecord]
    ) -> None:
        self._declared, self._ledger, self._records = declared, ledger, records
        versions = {record.version for record in records if record.version is not None}
        kept = find_declarations(engine, declared.name, versions) if versions else {}
        now = Layout.of(declared)
        self._by_version: dict[int | None, Fields | Refusal] = {None: _UNKNOWN, **dict.fromkeys(versions, _UNKNOWN)}
        for version, declaration in kept.items():
            if layout := find_layout(declaration, declared):
                source, differences = layout.applied_to(declared.source), layout.differences(now)
                self._by_version[version] = _refusal(declared, layout) or Fields(
                    source=source, layout=layout, differences=differences, header=layout.names
                )
        self._of_files: dict[tuple[int | None, ProducerId], Fields | Refusal] = {}

    def of(self, record: KeptRecord) -> Fields | Refusal:
        """The fields of a record, or why they cannot be found."""
        found = self._by_version[record.version]
        if isinstance(found, Refusal) or found.layout.csv.get("header") is not True:
            return found
        of_file = (record.version, record.producer_id)
        if of_file not in self._of_files:
            listed = self._files.get(record.producer_id)
            self._of_files[of_file] = _GONE if listed is None else _with_header(self._declared, found, listed)
        return self._of_files[of_file]

    @cached_property
    def _files(self) -> Mapping[ProducerId, Listed]:
        return dict(_unchanged_files(self._declared, self._ledger, self._records))


_UNKNOWN = Refusal(
    reason="an earlier release of Onceload quarantined it, and format or options have changed since, so it is unknown "
    "where its fields are; load its file again, or restore the earlier options and retry"
)
_GONE = Refusal(
    reason="its file is gone or was rewritten, so the columns of its values are unknown; restore the file as it was "
    "loaded, and retry"
)


def _refusal(declared: Declared, layout: Layout) -> Refusal | None:
    """Why no record of a version can be retried: it has no field for a column, or one that no column takes."""
    match layout.format:
        case Format.CSV if not layout.csv["header"]:
            there = set(layout.names)
        case Format.FIXED:
            there = {place.column for place in layout.places}
        case _:
            return None
    lacking = [name for name in declared.column_names if name not in there]
    if lacking:
        return Refusal(reason=_lacking(lacking))
    undeclared = sorted(there.difference(declared.column_names))
    if undeclared and declared.unknown_fields is UnknownFields.FAIL:
        return Refusal(reason=f"the field {undeclared[0]!r} is not declared", column=undeclared[0])
    return None


def _lacking(names: Sequence[str]) -> str:
    return f"the record was stored without a value for {', '.join(map(repr, names))}, declared as columns since"


def _unchanged_files(
    declared: Declared, ledger: PostgresLedger, records: Sequence[KeptRecord]
) -> Iterator[tuple[ProducerId, Listed]]:
    """The files that still begin with their loaded content."""
    source = declared.source
    listed = {each.name: each for each in list_files(source.path, root=source.root).files}
    known = ledger.find(declared.name, sorted({each.file for each in records}))
    for name, (producer_id, knowledge) in known.items():
        state = knowledge.state
        if name not in listed or state.fingerprint is None:
            continue
        fingerprint = Fingerprint.from_bytes(state.fingerprint)
        found = compare(listed[name], fingerprint, consumed_end=state.consumed.end)
        if found in (Resemblance.SAME, Resemblance.GROWN):
            yield knowledge.shared.producer_id if knowledge.shared else producer_id, listed[name]


def _with_header(declared: Declared, fields: Fields, listed: Listed) -> Fields | Refusal:
    """A file that a load would refuse is refused here too, in the same words."""
    try:
        header = read_checked_header(listed.url, declared.columns, fields.source.csv, sealed=True) or ()
    except FileRefused as refused:
        return Refusal(reason=f"{refused.found}; expected {refused.expected}. {refused.fix}")
    return replace(fields, header=header)


def find_unmapped(declared: Declared, layout: Layout, text: bytes, *, is_edited: bool) -> Refusal | None:
    """Why a row of typed values cannot be retried: its JSON has not all values in the form of their columns."""
    try:
        stored, _ = fields_of(text.decode())
    except (UnicodeDecodeError, RecordRefused, ValueRefused):
        # Reading it gives the reason.
        return None
    # A row of a program may leave out columns. In a line that was edited, that is more likely a mistake.
    may_lack = frozenset() if is_edited else frozenset(layout.names)
    if lacking := [name for name in declared.column_names if name not in stored and name not in may_lack]:
        return Refusal(reason=_lacking(lacking))
    for column in () if is_edited else declared.columns:
        then = layout.types.get(column.name)
        raw = stored.get(column.name, "null")
        if not means_the_same(raw, None if then is None else parse_type(column.name, then), column.type):
            was = "not declared" if then is None else f"stored as {then}"
            reason = f"its column was {was} and is {column.type} now, in which the stored text may mean another value"
            return Refusal(reason=reason, column=column.name)
    return None


#: The kinds for which a value is stored in the same form.
_ALIKE = frozenset(Kind) - {Kind.BYTEA, Kind.UUID, Kind.JSONB, Kind.DATE}


def means_the_same(raw: str, then: ColumnType | None, now: ColumnType) -> bool:
    """Whether the stored form of a value, which depends on its type, is the one that it would have now.

    Bytes, points in time and documents are stored as texts, in a form for each type; 32-bit floats with more or fewer
    digits. All other values have the same form in each type.
    """
    if then is not None and (then.kind, then.is_array) == (now.kind, now.is_array):
        return True
    return not _may_have_other_digits(raw, then, now) and ('"' not in raw or _has_same_texts(raw, then, now))


_NUMBER = re.compile(rf"{STRING}|(-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")


def _may_have_other_digits(raw: str, then: ColumnType | None, now: ColumnType) -> bool:
    """Whether a number may be a 32-bit float that has the digits of a double in one of these types alone."""
    was_double, is_double = (_has_digits_of_double(raw, each) for each in (then, now))
    # A real is the same by any of its forms.
    if was_double == is_double or now.kind is Kind.REAL:
        return False
    with np.errstate(over="ignore"):
        reals = [(number, np.float32(number)) for number in _NUMBER.findall(raw) if number]
    forms = ((number, str(real), repr(float(real))) for number, real in reals)
    return any(short != long and number == (long if was_double else short) for number, short, long in forms)


def _has_digits_of_double(raw: str, column_type: ColumnType | None) -> bool:
    is_inside = column_type is not None and not column_type.is_array and raw[0] in "[{"
    return column_type is None or column_type.kind in FLOATS or is_inside


def _has_same_texts(raw: str, then: ColumnType | None, now: ColumnType) -> bool:
    if now.kind is Kind.JSONB and '{"unreadable":' in raw:
        # It stands for a value that could not be read. Only documents take it for a value.
        return False
    may_be_bytes = '"\\\\x' in raw
    if then is None:
        return now.kind is Kind.BYTEA or not may_be_bytes
    if now.kind is Kind.BYTEA:
        return False
    if then.kind is Kind.BYTEA:
        return not may_be_bytes
    is_alike = then.kind in _ALIKE or (then.kind, now.kind) == (Kind.DATE, Kind.TIMESTAMP)
    if then.is_array != now.is_array:
        is_alike = is_alike and now.is_array and not may_be_bytes
    return is_alike
