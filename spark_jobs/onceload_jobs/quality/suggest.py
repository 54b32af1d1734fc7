"""Draft a first suite for a pipeline from existing rows, for a person to read and correct.

The server computes statistics of a sample in one statement. The guesses are generous: an expectation that ordinary rows
of tomorrow fail is worse than none. So ids and counters get no upper bound, sets and patterns need many rows that
agree, and nothing stops a batch until a person makes it critical. What the column contract already refuses is left out.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from shlex import quote
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.exc import DBAPIError

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import SettingRefused
from onceload_core.names import Batch
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.connection import Record, sqlstate, statements, translated
from onceload_jobs.batch.stage import Stage, publish_input_of
from onceload_jobs.pipeline.columns import INTEGERS, RESERVED, Column, Kind
from onceload_jobs.pipeline.declared import Declared, Expectation, Severity
from onceload_jobs.write.sql import filled, quoted, table_name
from onceload_jobs.write.target import added_columns, columns_there, undeclared_columns

_ROWS_MAX = 100_000
#: The planner's row count of an unanalyzed table is a guess; a sample may then be this many times larger.
_GUESSED_TOO_LOW = 5
#: Fewer rows do not show what is ordinary.
_ROWS_MIN = 100
#: With this many distinct values, the next one is expected to be distinct too.
_UNIQUE_ROWS_MIN = 500
_VALUES_MAX = 20
_EACH_VALUE_SEEN_MIN = 10
#: Longer texts are prose, without sets or patterns.
_SHORT = 60
_CUT = 200
_NULLS_ALLOWED = 0.05
_BATCHES_MIN = 5
_STATEMENT_TIMEOUT_S = 120
_CANCELLED = "57014"
_BIGGEST = Decimal(10) ** 15


_NUMBERS = (*INTEGERS, Kind.NUMERIC, Kind.REAL, Kind.DOUBLE)
_TEXTS = (Kind.TEXT, Kind.VARCHAR)
_TIMES = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
SQL = statements("quality.sql", package=__package__)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """An expectation, and the observation that supports it."""

    expectation: Expectation
    seen: str


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A draft of a suite."""

    pipeline: str
    #: The source of the rows.
    source: str
    rows: int
    suggestions: tuple[Suggestion, ...]


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """The rows that were examined."""

    rows: int
    #: A sample hides duplicates.
    is_all: bool
    on: str


def suggest(engine: Engine, declared: Declared, *, batch: Batch | None, now: datetime) -> Draft:
    """Draft a suite from the rows in the target, or in a staged batch."""
    with translated(pipeline=declared.name, doing="looking at rows"), engine.connect() as connection:
        connection.execute(text(f"SET LOCAL statement_timeout = '{_STATEMENT_TIMEOUT_S}s'"))
        connection.execute(text("SET LOCAL transaction_read_only = on"))
        table, columns, source = _where(engine, connection, declared, batch)
        sample = _sample(connection, table)
        found = _look(connection, _asked(table, columns, sample), source)
        looked = _Looked(
            rows=found[0],
            is_all="TABLESAMPLE" not in sample and found[0] < _ROWS_MAX,
            on=f"{now.astimezone(UTC):%Y-%m-%d}",
        )
        if looked.rows < _ROWS_MIN:
            expected = f"at least {_ROWS_MIN} rows to guess from (load more, or write the suite by hand)"
            raise SettingRefused(f"rows of {source}", str(looked.rows), expected)
        batches = connection.execute(SQL["batches"], {"pipeline": declared.name}).one()
    suggestions = [_of_batches(batches, looked, staged=batch is not None)]
    for column, stats in zip(columns, found[1:], strict=True):
        suggestions += _of_column(declared, column, stats, looked)
    return Draft(pipeline=declared.name, source=source, rows=looked.rows, suggestions=tuple(suggestions))


def _where(
    engine: Engine, connection: Connection, declared: Declared, batch: Batch | None
) -> tuple[str, Sequence[Column], str]:
    """The table to examine, its columns, and its name for messages."""
    if batch is not None:
        kept = PostgresBatches(engine, declared.name).find(batch)
        if kept is None:
            staging = f"`onceload stage {PIPELINE_FILE} --batch={quote(batch)}`"
            no_batch = "no --batch, because with publish: direct nothing is staged"
            expected = no_batch if declared.is_direct else f"a staged batch ({staging})"
            raise SettingRefused("--batch", f"{batch}, which is not staged", expected)
        stage = Stage.called(kept.stage, (), declared.target, lineage=True)
        written = publish_input_of(engine, declared.name, stage)[0].written
        added = undeclared_columns(connection, stage.rows, known=[column.name for column in written])
        return stage.rows, (*written, *added), f"batch {batch}"
    target, table = declared.target, table_name(declared.target)
    source = f"{target.schema}.{target.table}"
    if target.deleted:
        source += f" (without the rows that {target.deleted} deleted)"
    there = columns_there(connection, table)
    if not there:
        expected = "a table with rows (load first, or stage a batch and name it with --batch)"
        raise SettingRefused("target.table", f"{source}, which does not exist yet", expected)
    if declared.transform is not None:
        made = (each for name, each in there.items() if name not in RESERVED)
        return table, [each for each in made if isinstance(each, Column)], source
    # Rows where it is true are deleted.
    columns = [column for column in declared.columns if column.name != target.deleted]
    return table, [*columns, *added_columns(connection, declared)], source


def _sample(connection: Connection, table: str) -> str:
    """A sample of pages of a large table; a small one is read completely."""
    (planned,) = connection.execute(filled(SQL["guess_rows"], table=table)).scalar_one()
    rows = planned["Plan"]["Plan Rows"]
    if rows <= _ROWS_MAX:
        return f"LIMIT {_ROWS_MAX}"
    # The limit only applies if the guess is far off, because the first pages are the oldest.
    return f"TABLESAMPLE SYSTEM ({100 * _ROWS_MAX / rows:f}) LIMIT {_GUESSED_TOO_LOW * _ROWS_MAX}"


def _look(connection: Connection, asked: TextClause, source: str) -> Record:
    try:
        return connection.execute(asked).one()
    except DBAPIError as error:
        if sqlstate(error) != _CANCELLED:
            raise
        expected = f"rows that can be counted in {_STATEMENT_TIMEOUT_S} s (write the suite by hand)"
        raise SettingRefused(f"rows of {source}", "too many rows, or a busy server", expected) from error


def _asked(table: str, columns: Sequence[Column], sample: str) -> TextClause:
    taken = ["row_number() OVER () AS came", *(_taken(column, at) for at, column in enumerate(columns))]
    statistics = ["count(*)", *(_statistics(column, at).text for at, column in enumerate(columns))]
    return filled(
        SQL["look"], table=table, sample=sample, taken=", ".join(taken), statistics=text(", ".join(statistics))
    )


def _taken(column: Column, at: int) -> str:
    """The values of one column; of a text, its beginning and its length."""
    name = quoted(column.name)
    is_text = column.type.kind in _TEXTS and not column.type.is_array
    return f"left({name}, {_CUT}) AS c{at}, length({name}) AS l{at}" if is_text else f"{name} AS c{at}"


def _statistics(column: Column, at: int) -> TextClause:
    """The statistics of one column, as a part of a statement."""
    kind = None if column.type.is_array else column.type.kind
    if kind in _NUMBERS:
        name = "of_numbers"
    elif kind in _TIMES:
        name = "of_times"
    elif kind in _TEXTS:
        name = "of_texts"
    else:
        name = "of_others"
    return filled(SQL[name], value=f"c{at}", length=f"l{at}", values_max=str(_VALUES_MAX + 1))


def _of_batches(batches: Record, looked: _Looked, *, staged: bool) -> Suggestion:
    """How many rows a batch has: ten times as many, or a tenth, is unusual."""
    most = max(batches.most or 0, looked.rows if staged or not batches.batches else 0)
    kwargs: dict[str, object] = {"max_value": int(_outward(Decimal(10 * most), Decimal(10 * most), up=True))}
    seen = f"at most {int(most):,} rows in a batch"
    if batches.batches >= _BATCHES_MIN:
        seen = f"{int(batches.fewest):,} … {int(most):,} rows in {batches.batches:,} batches"
        if fewest := int(batches.fewest) // 10:
            kwargs = {"min_value": fewest, **kwargs}
    return _suggestion("expect_table_row_count_to_be_between", kwargs, f"{seen}, {looked.on}")


def _of_column(declared: Declared, column: Column, stats: dict[str, Any], looked: _Looked) -> Iterator[Suggestion]:
    share = 1 - stats["count"] / looked.rows
    mostly = math.floor(100 * (1 - 2 * share - _NULLS_ALLOWED)) / 100
    if not column.not_null and mostly >= 0.5:
        nulls = f"null in {f'{share:.2%}' if share else 'none'} of {looked.rows:,} rows, {looked.on}"
        kwargs = {"column": column.name, "mostly": mostly}
        yield _suggestion("expect_column_values_to_not_be_null", kwargs, nulls)
    if stats["count"] < _ROWS_MIN or column.type.is_array:
        return
    kind = column.type.kind
    if kind in _NUMBERS:
        yield from _of_numbers(column, stats, looked)
    elif kind in _TIMES:
        yield from _of_times(column, stats, looked)
    elif kind in _TEXTS:
        yield from _of_texts(column, stats, looked)
    if kind in (*INTEGERS, *_TEXTS) and not _is_known_unique(declared, column) and _is_unique(stats, looked):
        seen = f"all {stats['count']:,} differ, {looked.on}"
        yield _suggestion("expect_column_values_to_be_unique", {"column": column.name}, seen)


def _is_unique(stats: dict[str, Any], looked: _Looked) -> bool:
    is_many = stats["count"] >= _UNIQUE_ROWS_MIN
    return bool(looked.is_all and is_many and stats["distinct"] == stats["count"])


def _is_known_unique(declared: Declared, column: Column) -> bool:
    """A merge keeps one row per key, and a business id is loaded once, whatever a file contains."""
    ids = declared.message_id.columns if declared.message_id else ()
    return column.name in declared.target.key or ids == (column.name,)


def _of_numbers(column: Column, stats: dict[str, Any], looked: _Looked) -> Iterator[Suggestion]:
    least, most = Decimal(stats["min"]), Decimal(stats["max"])
    if not (least.is_finite() and most.is_finite()) or max(abs(least), abs(most)) > _BIGGEST:
        return
    seen = f"{least:,f} … {most:,f} in {stats['count']:,} rows, {looked.on}"
    if _is_identity(column, stats):
        if least >= 0:
            yield _between(column, {"min_value": 0}, f"{seen}; an id or a counter, which may grow")
        return
    first, last = (Decimal(each) for each in stats["most"])
    if (first, last) != (least, most):
        seen += f"; 98 of 100 are {first:,f} … {last:,f}"
    low, high = _with_room(least, most)
    yield _between(column, {"min_value": low, "max_value": high}, seen)


def _is_identity(column: Column, stats: dict[str, Any]) -> bool:
    """Whether a number is an id or a counter, which has no final bound."""
    grows = bool(abs(stats["growth"] or 0) > 0.9)
    if column.type.kind not in INTEGERS:
        return grows
    is_named_so = column.name.lower() == "id" or column.name.lower().endswith(("_id", "_no", "_nr"))
    return bool(grows or is_named_so or stats["distinct"] == stats["count"])


def _with_room(least: Decimal, most: Decimal) -> tuple[int | float, int | float]:
    """Extend the range by its width on both sides; a bound near zero becomes zero."""
    spread = most - least or abs(most) or Decimal(1)
    low, high = _outward(least - spread, spread, up=False), _outward(most + spread, spread, up=True)
    if 0 <= least <= spread / 10:
        low = Decimal(0)
    if 0 <= -most <= spread / 10:
        high = Decimal(0)
    return _plain(low), _plain(high)


def _outward(number: Decimal, spread: Decimal, *, up: bool) -> Decimal:
    """Round outward to two significant digits."""
    step = Decimal(10) ** (spread.adjusted() - 1)
    return (number / step).to_integral_value(ROUND_CEILING if up else ROUND_FLOOR) * step


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


def _of_times(column: Column, stats: dict[str, Any], looked: _Looked) -> Iterator[Suggestion]:
    earliest = stats["earliest"]
    if earliest and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", earliest):
        seen = f"{stats['min']} … {stats['max']} in {stats['count']:,} rows, {looked.on}; min_value is one year earlier"
        yield _between(column, {"min_value": earliest}, seen)


def _of_texts(column: Column, stats: dict[str, Any], looked: _Looked) -> Iterator[Suggestion]:
    of_rows = f"in {stats['count']:,} rows, {looked.on}"
    values = stats["values"]
    if _is_set(values, stats):
        seen = f"{len(values)} values, each at least {min(each['times'] for each in values):,} times, {of_rows}"
        kwargs: dict[str, object] = {"column": column.name, "value_set": [each["value"] for each in values]}
        yield _suggestion("expect_column_values_to_be_in_set", kwargs, seen)
    elif (pattern := _pattern(stats)) is not None:
        kwargs = {"column": column.name, "regex": pattern}
        yield _suggestion("expect_column_values_to_match_regex", kwargs, f"all of the same form {of_rows}")
    elif stats["longest"]:
        kwargs = {"column": column.name, "min_value": min(stats["shortest"], 1), "max_value": 2 * stats["longest"]}
        seen = f"{stats['shortest']:,} … {stats['longest']:,} characters {of_rows}"
        yield _suggestion("expect_column_value_lengths_to_be_between", kwargs, seen)


def _is_set(values: Sequence[dict[str, Any]], stats: dict[str, Any]) -> bool:
    """Few values, each seen often; if all contain numbers, expect a next number."""
    return bool(
        len(values) <= _VALUES_MAX
        and stats["longest"] <= _SHORT
        # Great Expectations fails on other characters in a set.
        and all(each["value"].isprintable() and "\\" not in each["value"] for each in values)
        and all(each["times"] >= _EACH_VALUE_SEEN_MIN for each in values)
        and not all(re.search("[0-9]", each["value"]) for each in values)
    )


def _pattern(stats: dict[str, Any]) -> str | None:
    """The common pattern of all values, if it is more than letters or digits."""
    if stats["longest"] > _SHORT:
        return None
    if stats["numbered_shapes"] == 1:
        shape, parts = stats["numbered_shape"], {"9": "[0-9]+"}
    elif stats["spelled_shapes"] == 1:
        shape, parts = stats["spelled_shape"], {"9": "[0-9]+", "a": "[A-Za-z]+"}
    else:
        return None
    if not shape.isprintable() or not shape.isascii() or set(shape) & {"\\", "^"}:
        return None
    return "^" + "".join(parts.get(sign) or _literal(sign) for sign in shape) + "$"


def _literal(sign: str) -> str:
    return sign if sign.isalnum() or sign in " -_/:,;@#" else f"[{sign}]"


def _between(column: Column, bounds: dict[str, object], seen: str) -> Suggestion:
    return _suggestion("expect_column_values_to_be_between", {"column": column.name, **bounds}, seen)


def _suggestion(of_type: str, kwargs: dict[str, object], seen: str) -> Suggestion:
    return Suggestion(expectation=Expectation(type=of_type, kwargs=kwargs, severity=Severity.WARNING), seen=seen)
