"""Single values: a reading turns one node into a value, or refuses it and says what it expected."""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import yaml

from onceload.yaml_nodes import is_text, is_whole_number, shown, tag_of
from onceload_core.errors import SettingRefused

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

#: Turns a node into a value, or raises SettingRefused; the caller adds the place.
Reading = Callable[[yaml.Node], T]

#: Postgres truncates longer names.
NAME_BYTES_MAX = 63


def not_what(node: yaml.Node, expected: str) -> SettingRefused:
    return SettingRefused("value", shown(node), expected)


def text(node: yaml.Node) -> str:
    """Text as it is written; a value that YAML does not read as text is refused, and must be quoted."""
    if not isinstance(node, yaml.ScalarNode):
        raise not_what(node, "text")
    value: str = node.value
    if not is_text(node):
        kind = f"{shown(node)}, which YAML reads as {_KINDS.get(tag_of(node), 'a type of its own')}"
        fix = f'{kind}; text needs quotes: "{shown(node)}"' if value else 'nothing; the empty text is ""'
        raise SettingRefused("value", fix, "text")
    if "\0" in value:
        raise not_what(node, "text without the character NUL, which Postgres cannot store")
    return value


_KINDS = {
    "null": "nothing",
    "bool": "a boolean",
    "int": "a number",
    "float": "a number",
    "str": "a number",
    "timestamp": "a date",
}


def some_text(node: yaml.Node) -> str:
    value = text(node)
    if not value.strip():
        raise not_what(node, "text that is not empty")
    return value


def column_name(node: yaml.Node) -> str:
    value = some_text(node)
    if len(value.encode()) > NAME_BYTES_MAX:
        raise not_what(node, f"a column name of at most {NAME_BYTES_MAX} bytes")
    return value


def flag(node: yaml.Node) -> bool:
    if tag_of(node) != "bool" or node.value.lower() not in _FLAGS:
        raise not_what(node, "true or false")
    return _FLAGS[node.value.lower()]


_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def whole_number(*, least: int, most: int) -> Reading[int]:
    expected = f"an integer in plain digits, {least} to {most}"

    def read(node: yaml.Node) -> int:
        if not is_whole_number(node) or not least <= int(node.value) <= most:
            raise not_what(node, expected)
        return int(node.value)

    return read


def one_of(kind: type[E]) -> Reading[E]:
    """One of a few words."""

    def read(node: yaml.Node) -> E:
        if is_text(node) and node.value in set(kind):
            return kind(node.value)
        raise not_what(node, f"one of {', '.join(kind)}")

    return read


def names(node: yaml.Node) -> tuple[str, ...]:
    """A list of different column names."""
    if not isinstance(node, yaml.SequenceNode):
        raise not_what(node, "a list, such as [id]")
    found: dict[str, None] = {}
    for each in node.value:
        name = column_name(each)
        if name in found:
            raise SettingRefused("value", f"{shown(each)} twice", "each name once")
        found[name] = None
    return tuple(found)


def size(*, least: int, most: int) -> Reading[int]:
    """A number of bytes, with or without a unit."""

    def read(node: yaml.Node) -> int:
        match = _SIZE.fullmatch(node.value) if is_text(node) else None
        if match is None and not is_whole_number(node):
            raise not_what(node, f"a size such as 32MB, 1MiB or 4096, {least} to {most} bytes")
        found = int(match["number"]) * _UNITS[match["unit"].lower()] if match else int(node.value)
        if not least <= found <= most:
            raise not_what(node, f"a size of {least} to {most} bytes")
        return found

    return read


_SIZE = re.compile(r"(?P<number>[0-9]{1,12}) ?(?P<unit>(?:[kmg]i?)?b)", re.IGNORECASE)
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def duration(*, least_s: int, most_s: int) -> Reading[float]:
    """A time in seconds, written with its unit."""

    def read(node: yaml.Node) -> float:
        match = _DURATION.fullmatch(node.value) if is_text(node) else None
        found = int(match["number"]) * _SECONDS[match["unit"]] if match else None
        if found is None or not least_s <= found <= most_s:
            raise not_what(node, f"a duration with its unit, such as 30s, 10m, 2h or 30d, {least_s}s to {most_s}s")
        return float(found)

    return read


_DURATION = re.compile(r"(?P<number>[0-9]{1,12}) ?(?P<unit>[smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
