"""Split one JSON object into its fields, as raw bytes."""

import json
import re

from onceload_jobs.formats.json_values import end_of_value
from onceload_jobs.formats.records import RecordRefused

_WS = r"[ \t\r\n]*+"
_PLAIN_STRING = r'"[^"\\\x00-\x1f]*+"'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_BEHIND = rf"{_WS}(?:,{_WS}|(?P<end>\}}){_WS})"
_OBJECT = re.compile(rf"{_WS}\{{{_WS}")
_EMPTY = re.compile(rf"\}}{_WS}")
#: The common case: nothing is escaped or nested, so one match is enough.
_MEMBER = re.compile(
    rf"(?P<name>{_PLAIN_STRING}){_WS}:{_WS}(?P<raw>{_PLAIN_STRING}|{_NUMBER}|true|false|null){_BEHIND}"
)
_COLON = re.compile(rf"{_WS}:{_WS}")
_NEXT = re.compile(_BEHIND)


def fields_of(text: str) -> tuple[dict[str, str], set[str]]:
    """The raw value of each field, and the names that occur twice."""
    found, twice = dict[str, str](), set[str]()
    opening = _OBJECT.match(text)
    if opening is None:
        raise RecordRefused("the line is not a JSON object")
    empty = _EMPTY.match(text, opening.end())
    at, is_open = (empty or opening).end(), empty is None
    while is_open:
        member = _MEMBER.match(text, at)
        if member is not None:
            name, raw, at, is_open = member["name"][1:-1], member["raw"], member.end(), member["end"] is None
        else:
            name, raw, at, is_open = _any_member(text, at)
        if name in found:
            twice.add(name)
        found[name] = raw
    if at != len(text):
        raise RecordRefused(f"the line continues after its object, at character {at}")
    return found, twice


def _any_member(text: str, at: int) -> tuple[str, str, int, bool]:
    name, start = _name_at(text, at)
    end = end_of_value(text, start)
    following = _NEXT.match(text, end)
    if following is None:
        raise RecordRefused(f"invalid JSON at character {end}")
    return name, text[start:end], following.end(), following["end"] is None


def _name_at(text: str, at: int) -> tuple[str, int]:
    if not text.startswith('"', at):
        raise RecordRefused(f"invalid JSON at character {at}")
    end = end_of_value(text, at)
    colon = _COLON.match(text, end)
    if colon is None:
        raise RecordRefused(f"invalid JSON at character {end}")
    # The name of an undeclared field may contain anything, including unpaired surrogates.
    return str(json.loads(text[at:end])), colon.end()
