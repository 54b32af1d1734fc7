"""Values inside JSON: where they end, and what `jsonb` accepts."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from json.scanner import make_scanner
from typing import Any

import msgspec

from onceload_jobs.formats.records import ValueRefused


def string_of(raw: str) -> str:
    """Decode a JSON string; refuse unpaired surrogates."""
    if "\\" not in raw:
        return raw[1:-1]
    text: str = json.loads(raw)
    if _SURROGATE.search(text):
        raise ValueRefused("an unpaired surrogate is not a character")
    return text


def end_of_value(text: str, start: int) -> int:
    """Return the end of the JSON value that starts here."""
    try:
        return _scan(text, start)[1]
    except (StopIteration, ValueError, RecursionError):
        # The slow scanner has no depth limit, and accepts `Inf`, which Arrow reads as a number.
        return _end_of_any_value(text, start)


_SURROGATE = re.compile("[\ud800-\udfff]")


#: Postgres fails when its stack is full; this is well below.
DEPTH_MAX = 1000
#: The maximum digits of a numeric before and after its point.
_DIGITS_MAX, FRACTION_MAX = 131_072, 16_383
#: Postgres refuses this exponent and larger ones, even of zero.
EXPONENT_END = 2**30 - 1
_WS = r"[ \t\r\n]*+"
STRING = r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_BARE_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_BARE_NOT_FINITE = r"-?(?:NaN|Inf(?:inity)?)"
_SCALAR = rf"(?:{STRING}|{_BARE_NUMBER}|{_BARE_NOT_FINITE}|true|false|null)"
_OPENING = re.compile(
    rf"{_WS}(?:\[{_WS}\]|\{{{_WS}\}}|(?P<array>\[)|(?P<object>\{{{_WS}{STRING}{_WS}:)|{_SCALAR})",
)
_FOLLOWING = re.compile(rf"{_WS}(?:(?P<closing>[\]}}])|,(?P<name>{_WS}{STRING}{_WS}:)?)")
_LEAF = re.compile(rf"(?P<string>{STRING})|(?P<number>{_BARE_NUMBER})|(?P<not_finite>{_BARE_NOT_FINITE})")
_SUSPECT = re.compile(r"\\u|NaN|Inf|[0-9][eE][+-]?[0-9]{4}")
BLANK = re.compile(_WS)
# An integer of more than 4300 digits is valid JSON, but Python refuses to convert it.
_DECODER: Any = json.JSONDecoder(parse_int=float)
_scan: Callable[[str, int], tuple[object, int]] = make_scanner(_DECODER)


@dataclass
class _Containers:
    """The objects and arrays that are open; `jsonb` limits their depth, and accepts each name of an object once."""

    is_jsonb: bool
    awaited: list[str] = field(default_factory=list)
    names: list[set[str]] = field(default_factory=list)

    def open(self, closing: str) -> None:
        self.awaited.append(closing)
        self.names.append(set())
        if self.is_jsonb and len(self.awaited) > DEPTH_MAX:
            raise ValueRefused(f"the JSON is nested deeper than {DEPTH_MAX} levels")

    def add(self, name: str) -> None:
        if self.is_jsonb:
            names, added = self.names[-1], string_of(name.strip(" \t\r\n:"))
            if added in names:
                raise ValueRefused(f"an object has the name {added[:60]!r} twice")
            names.add(added)

    def close(self, closing: str) -> bool:
        self.names.pop()
        return self.awaited.pop() == closing


def _end_of_any_value(text: str, start: int, *, is_jsonb: bool = False) -> int:
    """Walk over a value of any depth without recursion."""
    at, containers = start, _Containers(is_jsonb)
    while True:
        opening = _OPENING.match(text, at)
        if opening is None:
            raise ValueRefused(f"invalid JSON at character {at}")
        at = opening.end()
        if opening["array"] or opening["object"]:
            containers.open("]" if opening["array"] else "}")
            if opening["object"]:
                containers.add(opening["object"][1:])
            continue
        at = _end_of_containers(text, at, containers)
        if not containers.awaited:
            return at


def _end_of_containers(text: str, at: int, containers: _Containers) -> int:
    """After a value, close the containers that end here, and return the start of the next value."""
    while containers.awaited:
        following = _FOLLOWING.match(text, at)
        if following is None:
            raise ValueRefused(f"invalid JSON at character {at}")
        at = following.end()
        if not following["closing"]:
            if bool(following["name"]) != (containers.awaited[-1] == "}"):
                raise ValueRefused(f"invalid JSON at character {at}")
            if following["name"]:
                containers.add(following["name"])
            return at
        if not containers.close(following["closing"]):
            raise ValueRefused(f"invalid JSON at character {at}")
    return at


_decode, _decode_lines = msgspec.json.Decoder().decode, msgspec.json.Decoder().decode_lines
_encode = msgspec.json.Encoder().encode
_NO_JSON = (msgspec.MsgspecError, RecursionError, OverflowError, ValueError)


def has_each_name_once(raw: str) -> bool:
    """Whether this is strict JSON with each name of an object once. A few such values are not recognized.

    A name that repeats is lost when JSON is read, and its colon with it, unless an escape hides another colon.
    """
    try:
        return _HIDDEN_COLON not in raw and _encode(_decode(raw)).count(b":") == raw.count(":")
    except _NO_JSON:
        return False


def have_each_name_once(texts: Sequence[str]) -> bool:
    """Whether this is so for all of them, which are read at once."""
    lines = "\n".join(texts)
    if lines.count("\n") != len(texts) - 1:
        return all(map(has_each_name_once, texts))
    try:
        values = _decode_lines(lines)
        is_same = _HIDDEN_COLON not in lines and _encode(values).count(b":") == lines.count(":")
    except _NO_JSON:
        return False
    # A text without a newline cannot hold two values.
    return len(values) == len(texts) and is_same


#: The beginning of \u003a and \u003A, and of a few other characters.
_HIDDEN_COLON = r"\u003"


def check_jsonb(raw: str) -> None:
    """Refuse valid JSON that jsonb cannot hold."""
    if "\0" in raw:
        raise ValueRefused("jsonb cannot hold the NUL character")
    if raw.count("[") + raw.count("{") > DEPTH_MAX or not has_each_name_once(raw):
        _end_of_any_value(raw, 0, is_jsonb=True)
    if len(raw) <= FRACTION_MAX and not _SUSPECT.search(raw):
        return
    for leaf in _LEAF.finditer(raw):
        if leaf["not_finite"]:
            raise ValueRefused(f"jsonb cannot hold {leaf['not_finite']}")
        if leaf["number"]:
            _check_range(leaf["number"])
        elif "\\u" in leaf["string"] and "\0" in string_of(leaf["string"]):
            raise ValueRefused("jsonb cannot hold the NUL character")


def _check_range(written: str) -> None:
    mantissa, _, exponent = written.lower().partition("e")
    # Python refuses to convert very many digits, and no exponent in range has that many.
    shift = int(exponent or "0") if len(exponent) < 12 else EXPONENT_END
    number = Decimal(mantissa)
    whole, fraction = number.adjusted() + 1 if number else -shift, len(mantissa.partition(".")[2])
    if whole + shift > _DIGITS_MAX or fraction - shift > FRACTION_MAX or shift >= EXPONENT_END:
        raise ValueRefused(f"{written[:57]} is out of the range of numbers in jsonb")
