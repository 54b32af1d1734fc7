"""The values that only a pipeline file has, such as its schedule and its table."""

import difflib
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import yaml

from onceload.yaml_nodes import is_text, is_whole_number
from onceload.yaml_values import NAME_BYTES_MAX, duration, names, not_what, some_text, text
from onceload_core.errors import SettingRefused
from onceload_core.pipeline import Pipeline
from onceload_jobs.pipeline.columns import Column, Kind, parse_column
from onceload_jobs.pipeline.declared import ON_ARRIVAL, Place, QuarantineLimit

INT4_MAX = 2**31 - 1
#: Postgres allows no more arguments.
_MESSAGE_COLUMNS_MAX = 100


def pipeline_name(node: yaml.Node) -> str:
    return Pipeline(name=text(node)).name


def column(name: str, node: yaml.Node) -> Column:
    declared = text(node)
    # No type is that long, and its numbers are parsed without a bound.
    if len(declared) > 200:
        raise not_what(node, "a Postgres type, such as `numeric(12,2) not null`")
    try:
        return parse_column(name, declared)
    except SettingRefused as refused:
        hint = f"; did you mean {meant}?" if (meant := _meant(declared)) else ""
        raise SettingRefused(refused.setting, f"{refused.found}{hint}", refused.expected) from None


def _meant(declared: str) -> str | None:
    """The type that was probably meant by a name from another language, or by a misspelled one."""
    name = re.split(r"[(\[]|\s+not\s+null", declared.strip().lower())[0].strip()
    if name in set(Kind):
        return None
    close = difflib.get_close_matches(name, (*_ELSEWHERE, *Kind), n=1)
    return _ELSEWHERE.get(close[0], close[0]) if close else None


#: The types of other databases and languages.
_ELSEWHERE = {
    **dict.fromkeys(("string", "str", "char", "character", "nvarchar", "varchar2", "clob", "enum"), "text"),
    **dict.fromkeys(("number", "money", "decimal", "bigdecimal", "currency"), "numeric(12,2)"),
    **dict.fromkeys(("float", "float64", "double"), "double precision"),
    "float32": "real",
    **dict.fromkeys(("long", "int64", "uint32", "bigserial"), "bigint"),
    **dict.fromkeys(("int32", "serial", "mediumint"), "integer"),
    **dict.fromkeys(("int16", "short", "tinyint"), "smallint"),
    "bit": "boolean",
    **dict.fromkeys(("datetime", "datetime64", "datetimeoffset", "timestamp_tz"), "timestamptz"),
    **dict.fromkeys(("json", "object", "struct", "map", "variant"), "jsonb"),
    **dict.fromkeys(("array", "list"), "text[]"),
    **dict.fromkeys(("guid", "uniqueidentifier"), "uuid"),
    **dict.fromkeys(("blob", "binary", "varbinary", "bytes"), "bytea"),
}


def field_path(node: yaml.Node) -> tuple[str, ...]:
    """The names of a field and of the objects that it is inside, joined by dots or in a list."""
    if isinstance(node, yaml.SequenceNode):
        steps = tuple(some_text(each) for each in node.value)
    else:
        steps = tuple(some_text(node).split("."))
    if not all(steps) or not 1 <= len(steps) <= _STEPS_MAX:
        expected = f'1 to {_STEPS_MAX} names joined by dots, or, if a name has a dot itself, a list: [a, "b.c"]'
        raise not_what(node, expected)
    return steps


_STEPS_MAX = 20


def sealed_after(node: yaml.Node) -> float | None:
    if is_text(node) and node.value in _SEALED:
        return _SEALED[node.value]
    try:
        return duration(least_s=0, most_s=INT4_MAX)(node)
    except SettingRefused:
        raise not_what(node, "never, always, or a duration with its unit, such as 10m") from None


_SEALED = {"never": None, "always": 0.0}


def whole_days(node: yaml.Node) -> int:
    days = duration(least_s=1, most_s=INT4_MAX)(node) / 86_400
    if not days.is_integer():
        raise not_what(node, "whole days, such as 30d")
    return int(days)


def one_byte(node: yaml.Node) -> str:
    value = text(node)
    if len(value.encode()) != 1 or value in "\r\n":
        raise not_what(node, 'one character of one byte, no line end; a tab is "\\t"; most symbols need quotes: "|"')
    return value


def one_byte_or_none(node: yaml.Node) -> str:
    return "" if text(node) == "" else one_byte(node)


def some_names(node: yaml.Node) -> tuple[str, ...]:
    found = names(node)
    if not found:
        raise not_what(node, "at least one name, such as [id]")
    if len(found) > _MESSAGE_COLUMNS_MAX:
        raise not_what(node, f"at most {_MESSAGE_COLUMNS_MAX} names; name only the columns that identify a record")
    return found


def place(column: str, node: yaml.Node) -> Place:
    """`1-8`, or `8` for one character."""
    found = _PLACE.fullmatch(text(node) if is_text(node) else str(node.value))
    first = int(found["first"]) if found else 0
    last = int(found["last"] or first) if found else 0
    if not 0 < first <= last:
        raise not_what(node, "the first and last character, counted from 1, such as 1-8")
    return Place(column=column, first=first - 1, end=last)


_PLACE = re.compile(r"(?P<first>[0-9]{1,8})(?: ?- ?(?P<last>[0-9]{1,8}))?")


def table_name(node: yaml.Node) -> tuple[str, str]:
    """`schema.table` or `table`; quoted parts keep their case and special characters."""
    match = _TABLE.fullmatch(text(node))
    if match is None:
        raise not_what(node, "schema.table or table; anything but letters, digits and _ needs quotes: '\"my table\"'")
    parts = [part for part in match.groups() if part]
    if any(part[0] != '"' and part != part.lower() for part in parts):
        raise not_what(node, "lower case, or quotes to keep the upper case: '\"Events\"'")
    *schema, table = (part[1:-1].replace('""', '"') if part[0] == '"' else part for part in parts)
    for name in (*schema, table):
        if len(name.encode()) > NAME_BYTES_MAX:
            raise not_what(node, f"names of at most {NAME_BYTES_MAX} bytes")
    if schema and (schema[0] in _SCHEMAS_TAKEN or schema[0].startswith("pg_")):
        raise not_what(node, "a schema of your own; this one belongs to Postgres or Onceload")
    return (schema[0] if schema else "public"), table


_PART = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART})?")
_SCHEMAS_TAKEN = ("onceload", "onceload_stage", "information_schema")


def quarantine_limit(node: yaml.Node) -> QuarantineLimit:
    match = _SHARE.fullmatch(node.value) if is_text(node) else None
    if match and float(match[1]) <= 100:
        return QuarantineLimit(share=float(match[1]) / 100)
    if is_whole_number(node) and int(node.value) >= 0:
        return QuarantineLimit(records=int(node.value))
    raise not_what(node, "a percentage such as 0.1%, at most 100%, or a number of records")


_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?) ?%")


def cron(node: yaml.Node) -> str:
    """Five cron fields that match at least one time, one of Airflow's presets, or on_arrival."""
    value = text(node)
    fields = value.split()
    if value not in (*_PRESETS, ON_ARRIVAL) and not _is_cron(fields):
        others = ", ".join((*_PRESETS, ON_ARRIVAL))
        expected = f'five cron fields in range, such as "*/5 * * * *" (every five minutes), or one of {others}'
        raise not_what(node, expected)
    return " ".join(fields)


def _is_cron(fields: Sequence[str]) -> bool:
    """Whether the library that Airflow reads schedules with finds a next run. For 30 February there is none."""
    # A random field (R) would be another time at each look, and one long list would take long.
    if len(fields) != 5 or any(field[0] in "RrHh" or len(field) > _CRON_FIELD_MAX for field in fields):
        return False
    # Imported late: most commands read no schedule.
    from croniter import CroniterError, croniter

    try:
        croniter(" ".join(fields), datetime(2000, 1, 1, tzinfo=UTC)).get_next()
    except CroniterError:
        return False
    return True


_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
#: All minutes of an hour, one by one.
_CRON_FIELD_MAX = 200
