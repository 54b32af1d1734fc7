"""Guess the columns of a pipeline file, each with a comment for what was guessed and why."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onceload.draft.observe import Observed
from onceload.draft.sample import Sampled
from onceload.draft.types import MANY_FRACTION_DIGITS, Seen, type_of
from onceload.draft.values import Written
from onceload.pipeline_file import COLUMNS_MAX, find_column_name_problem
from onceload.yaml_values import NAME_BYTES_MAX
from onceload_jobs.pipeline.columns import Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import Format

OVER_COLUMNS_MAX = f"a table has at most {COLUMNS_MAX:,} columns"


@dataclass(frozen=True, kw_only=True)
class GuessedColumn:
    """A column, and what its comment says."""

    column: Column
    comments: tuple[str, ...] = ()
    #: The fields inside its objects that can be columns as well, and whether there are more.
    inside: tuple["GuessedColumn", ...] = ()
    has_more_inside: bool = False

    def noting(self, comment: str) -> "GuessedColumn":
        return replace(self, comments=(comment, *self.comments))


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The columns, and the fields that cannot be columns."""

    columns: tuple[GuessedColumn, ...]
    #: Each name with the reason.
    left_out: tuple[tuple[str, str], ...]
    key: str | None
    #: Whether some files lack some columns, which then are null.
    has_missing_columns: bool


#: Fewer records say little about which values are always there.
RECORDS_MIN = 100
#: The share of nulls from which a column is almost always null.
_ALMOST_ALWAYS = 0.95
#: The largest share of values that may be errors.
_FEW = 0.1
_OF_KEYS = (Kind.BIGINT, Kind.UUID, Kind.TEXT)
_OF_TIMES = (Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE)
_KEY_WORD = re.compile(r"(?:^|[^a-z])(?:id|uuid|guid|key|no|nr|number|code)$")
_TIME_WORD = re.compile(r"(?:^|[^a-z])(?:ts|at|time|timestamp|datetime|created|occurred|event_?time|date|day)$")
#: How many digits seconds, milliseconds, microseconds and nanoseconds since 1970 have.
_EPOCH_DIGITS = (10, 13, 16, 19)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def guess_columns(observed: Observed, files: Sequence[Sampled], of_format: Format, *, topic: str) -> Guess:
    """The columns for what was observed; `topic` is the name of the pipeline, such as orders."""
    missing = _missing_names(observed, files, of_format)
    kept, left_out = list[GuessedColumn](), list[tuple[str, str]]()
    for name, seen in observed.fields.items():
        if problem := _find_problem(name, seen, observed, of_format, is_missing=name in missing):
            left_out.append((name, problem))
        elif len(kept) == COLUMNS_MAX:
            left_out.append((name, OVER_COLUMNS_MAX))
        else:
            kept.append(guess_column(name, seen, observed, of_format, is_missing=name in missing))
    key, time = _find_key(kept, observed, topic), _find_time(kept, observed)
    columns = tuple(_with_role(each, observed, key=key, time=time) for each in kept)
    is_missing = of_format is Format.CSV and any(each.column.name in missing for each in kept)
    return Guess(columns=columns, left_out=tuple(left_out), key=key, has_missing_columns=is_missing)


def _missing_names(observed: Observed, files: Sequence[Sampled], of_format: Format) -> set[str]:
    """The columns that some of the files do not name."""
    if of_format in (Format.JSONL, Format.JSON):
        return set()
    return {name for name in observed.fields if not all(name in file.header for file in files)}


def _find_problem(name: str, seen: Seen, observed: Observed, of_format: Format, *, is_missing: bool) -> str | None:
    """Why a field cannot be a column, and what to do."""
    if not name:
        return "it has no name. Name it in the source to load it"
    if "\0" in name or not is_utf8(name):
        return "no column can have this name. Rename it in the source to load it"
    if find_column_name_problem(name):
        why = "its name is too long" if len(name.encode()) > NAME_BYTES_MAX else "its name is reserved"
        return f"{why}. Rename it in the source to load it"
    if seen.twice > observed.records / 2 or (seen.twice and of_format.is_typed):
        return "several fields of a record have this name. Give each its own name in the source to load them"
    if is_missing and of_format.is_typed:
        return f"not every file has it, and {of_format.proper_name} without a declared column is refused"
    return None


def is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def guess_column(name: str, seen: Seen, observed: Observed, of_format: Format, *, is_missing: bool) -> GuessedColumn:
    column_type = type_of(seen, is_json=of_format in (Format.JSONL, Format.JSON))
    not_null = seen.is_required and not observed.absent(seen) and not is_missing
    comments = tuple(_comments(name, seen, observed, column_type, is_missing=is_missing))
    return GuessedColumn(column=Column(name=name, type=column_type, not_null=not_null), comments=comments)


def _comments(name: str, seen: Seen, observed: Observed, column_type: ColumnType, *, is_missing: bool) -> Iterator[str]:
    absent, records = observed.absent(seen), observed.records
    if is_missing:
        yield "not every file has this column: it is null there"
    if records and absent == records:
        yield "always null or absent, so its type cannot be guessed"
    elif records and absent >= _ALMOST_ALWAYS * records:
        yield f"almost always null: {absent:,} of {records:,} records have no value"
    if len(seen.stored) > 1:
        yield f"mixed: the files store it as {' and as '.join(sorted(map(str, seen.stored)))}"
    elif not seen.stored:
        yield from _comments_on_values(seen, column_type)
    if column_type.kind is Kind.BIGINT and seen.whole in _EPOCH_DIGITS and _TIME_WORD.search(_words(name)):
        yield "maybe a Unix time, which no date or time type accepts: convert it in a transform"
    if seen.is_finer:
        yield "some times have nanoseconds, which are rounded to microseconds"
    if seen.twice:
        yield f"{seen.twice:,} of {records:,} records have it twice, and go to quarantine"
    if name != name.lower() or not name.isidentifier():
        yield "in SQL, write its name in double quotes"


def _comments_on_values(seen: Seen, column_type: ColumnType) -> Iterator[str]:
    written = seen.written
    if column_type.kind in (Kind.TEXT, Kind.JSONB) and len(seen.kinds) > 1 and not seen.kinds <= _NOT_MIXED:
        mixed = ", ".join(f"{each.value} ({count:,})" for each, count in written.most_common())
        yield f"mixed: {mixed}{_narrower(seen, column_type)}"
    elif written[Written.UNFIT]:
        yield f"{written[Written.UNFIT]:,} {Written.UNFIT.value}"
    if column_type.kind is Kind.NUMERIC and seen.fraction > MANY_FRACTION_DIGITS:
        yield f"up to {seen.fraction} digits after the point: for measured values, double precision may be meant"
    if column_type.kind is Kind.DOUBLE:
        yield "a float: some numbers have an exponent, or are NaN or infinite"
    if column_type.kind is Kind.TIMESTAMP:
        yield "no value has a zone; if the times are in UTC, timestamptz is the better type"
    if column_type.kind is Kind.TIMESTAMPTZ and (without := written[Written.TIMESTAMP] + written[Written.DATE]):
        yield f"{without:,} of {seen.values:,} values have no zone, and count as UTC"
    if written[Written.COMMA_DECIMAL]:
        yield "decimals with a comma, which no numeric type accepts: convert them in a transform"
    if column_type.kind is Kind.TEXT and seen.kinds == {Written.LARGE_INTEGER}:
        yield "integers with more digits than a numeric holds"


def _narrower(seen: Seen, column_type: ColumnType) -> str:
    """The type that fits all but a few texts, if there is one."""
    others = seen.without_texts()
    few = seen.values - others.values
    if column_type.kind is not Kind.TEXT or not others.values or few > _FEW * seen.values:
        return ""
    found = type_of(others, is_json=False)
    return "" if found == column_type else f". With {found}, {few:,} of {seen.values:,} would go to quarantine"


#: Several ways to write a text, and of nested values.
_NOT_MIXED = {Written.TEXT, Written.WORD, Written.COMMA_DECIMAL}


def _find_key(columns: Sequence[GuessedColumn], observed: Observed, topic: str) -> str | None:
    """The column that probably identifies a record: always there, always another value, and named like a key."""
    if observed.records < 2:
        return None
    ranked = []
    for at, each in enumerate(columns):
        seen = observed.fields[each.column.name]
        if each.column.type.kind in _OF_KEYS and len(seen.distinct) == seen.values == observed.records:
            ranked.append((_key_rank(each.column, topic), -at, each.column.name))
    best = max(ranked, default=None)
    return best[2] if best and best[0] else None


def _key_rank(column: Column, topic: str) -> int:
    words = _words(column.name)
    if words in {"id", "uuid", "_id", f"{topic}_id", f"{topic.removesuffix('s')}_id"}:
        return 3
    return 2 if _KEY_WORD.search(words) else int(column.type.kind is Kind.UUID)


def _find_time(columns: Sequence[GuessedColumn], observed: Observed) -> str | None:
    """The column that probably says when a record happened."""
    ranked = []
    for at, each in enumerate(columns):
        if each.column.type.kind in _OF_TIMES:
            words = _words(each.column.name)
            filled = observed.fields[each.column.name].values
            rank = (bool(_TIME_WORD.search(words)), filled, -_OF_TIMES.index(each.column.type.kind), -at)
            ranked.append((rank, each.column.name))
    return max(ranked)[1] if ranked else None


def _words(name: str) -> str:
    """The words of a name in lower case, also of orderId."""
    return _CAMEL.sub("_", name).lower()


def _with_role(each: GuessedColumn, observed: Observed, *, key: str | None, time: str | None) -> GuessedColumn:
    column = each.column
    if column.name == key:
        is_safe = observed.records >= RECORDS_MIN
        why = ", and not null because no record lacks it" if is_safe or column.not_null else ""
        found = f"likely the key: {observed.records:,} records, {observed.records:,} different values{why}"
        return replace(each.noting(found), column=replace(column, not_null=is_safe or column.not_null))
    if column.not_null:
        each = each.noting("not null because the schema of the files requires it")
    return each.noting("likely the event time") if column.name == time else each
