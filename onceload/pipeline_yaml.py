"""YAML with line numbers: every value knows its line, and errors are collected, not raised.

Only PyYAML's node graph is read: no object is ever constructed from a file, and aliases are never expanded.
"""

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import yaml

from dedup_core.errors import SettingRefused

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)

#: Turns a node into a value, or raises SettingRefused; the caller adds the place.
Reading = Callable[[yaml.Node], T]

FILE_BYTES_MAX = 2**20
#: Postgres truncates longer names.
NAME_BYTES_MAX = 63
#: A pipeline of 1 600 columns has 3 300 nodes.
_NODES_MAX = 20_000
#: PyYAML composes recursively, and a pipeline file is four levels deep.
_DEPTH_MAX = 20
#: More problems are only counted.
PROBLEMS_MAX = 100
_SHOWN_MAX = 60
# libyaml, which is in every wheel of PyYAML: PyYAML's own scanner is slow, and accepts escapes of invalid characters.
_LOADER = yaml.CSafeLoader


@dataclass
class Document:
    """One file while it is read: the lines of its values, and its problems."""

    path: str
    _lines: dict[str, int] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _problems: list[tuple[int, str]] = field(default_factory=list)
    _sections: list["Section"] = field(default_factory=list)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems, from top to bottom."""
        found = [words for _, words in sorted(self._problems, key=lambda problem: problem[0])]
        if len(found) > PROBLEMS_MAX:
            return (*found[:PROBLEMS_MAX], f"{self.path}: and {len(found) - PROBLEMS_MAX} more problems")
        return tuple(found)

    def read(self, content: bytes) -> "Section | None":
        """Parse the top level of the file; the section reads what is below."""
        try:
            node = _compose(content)
        except _NotAPipeline as refused:
            self.refuse_line(refused.line, refused.message)
            return None
        self.stands("", node)
        return self.section("", node)

    def open(self, path: Path) -> "Section | None":
        """Parse a file; if it cannot be read, that is a problem too."""
        try:
            with path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.refuse_line(1, f"the file cannot be read: {reason}; check the path")
            return None
        return self.read(content)

    def section(self, where: str, node: yaml.MappingNode | None) -> "Section":
        self._sections.append(Section(self, where, node))
        return self._sections[-1]

    def stands(self, where: str, node: yaml.Node) -> None:
        self._lines[where] = _line(node)

    def refuse(self, where: str, message: str) -> None:
        self._refused.add(where)
        place = _cut(where, at_most=200)
        self.refuse_line(self._line_of(where), f"{place}: {message}" if place else message)

    def refuse_line(self, line: int, message: str) -> None:
        # Names come from the file, and unprintable characters could control the terminal.
        shown_as = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in message)
        self._problems.append((line, f"{self.path}:{line}: {shown_as}"))

    def doubt(self, where: str) -> None:
        """Report nothing more about a key that was probably misspelled elsewhere."""
        self._refused.add(where)

    def is_sound(self, where: str) -> bool:
        """Whether nothing was refused at a place or above it."""
        return not any(place in self._refused for place in _upwards(where))

    def is_full(self) -> bool:
        return len(self._problems) > PROBLEMS_MAX

    def refuse_unknown_keys(self) -> None:
        """Refuse the keys that nothing has read; call this last."""
        for section in self._sections:
            section.refuse_unknown_keys()

    def _line_of(self, where: str) -> int:
        return next((self._lines[place] for place in _upwards(where) if place in self._lines), 1)


class Section:
    """A mapping of the file; empty if it is missing."""

    def __init__(self, document: Document, where: str, node: yaml.MappingNode | None) -> None:
        self._document = document
        self._where = where
        self._nodes: dict[str, yaml.Node] = {}
        self._asked: dict[str, None] = {}
        self.is_given = node is not None
        for key, value in node.value if node is not None else ():
            self._add(key, value)

    def _add(self, key: yaml.Node, value: yaml.Node) -> None:
        if not isinstance(key, yaml.ScalarNode):
            return self._document.refuse_line(_line(key), f"expected a key, found {shown(key)}")
        # The key as it was written: `null`, `no` and `on` are names like any other here.
        name: str = key.value
        if name in self._nodes:
            # The first one is read, but the error shows the line of the second.
            self._document.stands(self.place(name), key)
            return self.refuse(name, "this key appears twice; remove one of them")
        self._nodes[name] = value
        return self._document.stands(self.place(name), key)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._nodes)

    def place(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def refuse(self, key: str, message: str) -> None:
        self._document.refuse(self.place(key), message)

    def is_sound(self, key: str) -> bool:
        return self._document.is_sound(self.place(key))

    def has(self, key: str) -> bool:
        """Whether a key has a value; does not count as reading it."""
        return key in self._nodes and not _is_nothing(self._nodes[key])

    def take(self, key: str, reading: Reading[T], *, default: D) -> T | D:
        """Read an optional key."""
        node = self._ask(key)
        if node is None or (default is None and _is_nothing(node)):
            return default
        return self._read(key, node, reading, otherwise=default)

    def need(self, key: str, reading: Reading[T], *, example: str, stand_in: T) -> T:
        """Read a required key; the stand-in only lets the rest of the file be checked too."""
        node = self._ask(key)
        if node is not None:
            return self._read(key, node, reading, otherwise=stand_in)
        if self._document.is_sound(self._where):
            self.refuse(key, f"is missing; add `{example}`")
        return stand_in

    def section(self, key: str) -> "Section":
        """Go one level down; an empty key is the same as no key."""
        node = self._ask(key)
        if node is not None and not isinstance(node, yaml.MappingNode) and not _is_nothing(node):
            self.refuse(key, f"expected keys with values below it, found {shown(node)}")
        return self._document.section(self.place(key), node if isinstance(node, yaml.MappingNode) else None)

    def sections(self, key: str) -> list["Section"]:
        """Go one level down into each element of a list."""
        node = self._ask(key)
        if node is None or _is_nothing(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(key, f"expected a list (each element starts with -), found {shown(node)}")
            return []
        found = []
        for number, each in enumerate(node.value, 1):
            name = f"{key}.{number}"
            self._document.stands(self.place(name), each)
            if isinstance(each, yaml.MappingNode):
                found.append(self._document.section(self.place(name), each))
            else:
                self.refuse(name, f"expected keys with values below it, found {shown(each)}")
        return found

    def refuse_unknown_keys(self) -> None:
        for name in [each for each in self._nodes if each not in self._asked]:
            if self._document.is_full():
                return
            close = difflib.get_close_matches(name[:_SHOWN_MAX], self._asked, n=1)
            fix = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(self._asked)}"
            self.refuse(
                name, "unknown key; " + ("merge keys are not supported, write the keys out" if name == "<<" else fix)
            )
            for meant in close:
                self._document.doubt(self.place(meant))

    def _ask(self, key: str) -> yaml.Node | None:
        self._asked[key] = None
        return self._nodes.get(key)

    def _read(self, key: str, node: yaml.Node, reading: Reading[T], *, otherwise: D) -> T | D:
        try:
            return reading(node)
        except SettingRefused as refused:
            self.refuse(key, f"expected {refused.expected}, found {_cut(refused.found, at_most=300)}")
            return otherwise


def shown(node: yaml.Node) -> str:
    """A value as messages show it."""
    if isinstance(node, yaml.ScalarNode):
        cut = _cut(node.value, at_most=_SHOWN_MAX)
        return repr(cut) if is_text(node) else cut or "nothing"
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        return "a mapping; text that starts with { needs quotes"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def not_what(node: yaml.Node, expected: str) -> SettingRefused:
    return SettingRefused("value", shown(node), expected)


def text(node: yaml.Node) -> str:
    """Text as it is written; a value that YAML does not read as text is refused, and must be quoted."""
    if not isinstance(node, yaml.ScalarNode):
        raise not_what(node, "text")
    value: str = node.value
    if not is_text(node):
        kind = f"{shown(node)}, which YAML reads as {_KINDS.get(_tag(node), 'a type of its own')}"
        fix = f'{kind}; text needs quotes: "{shown(node)}"' if value else 'nothing; the empty text is ""'
        raise SettingRefused("value", fix, "text")
    if "\0" in value:
        raise not_what(node, "text without the character NUL, which Postgres cannot store")
    return value


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
    if _tag(node) != "bool" or node.value.lower() not in _FLAGS:
        raise not_what(node, "true or false")
    return _FLAGS[node.value.lower()]


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


def is_text(node: yaml.Node) -> bool:
    """Whether a value is text in YAML 1.1 and 1.2: 1e3 is a number in 1.2."""
    if not isinstance(node, yaml.ScalarNode) or _tag(node) not in _TEXT:
        return False
    # Real numbers are shorter, and many aliases may lead to one long text.
    return bool(node.style) or len(node.value) > _SHOWN_MAX or not _NUMBER.fullmatch(node.value)


def is_whole_number(node: yaml.Node) -> bool:
    """Whether a number has only one reading: 010, 1:30 and 1_000 have several."""
    return _tag(node) == "int" and bool(_DIGITS.fullmatch(node.value))


# A lone = or << is meant as text.
_TEXT = frozenset({"str", "value", "merge"})
_KINDS = {
    "null": "nothing",
    "bool": "a boolean",
    "int": "a number",
    "float": "a number",
    "str": "a number",
    "timestamp": "a date",
}
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|0o[0-7]+", re.ASCII)
_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)


def _is_nothing(node: yaml.Node) -> bool:
    return _tag(node) == "null"


def _tag(node: yaml.Node) -> str:
    """The YAML type of a scalar; explicit tags on lists and mappings are ignored."""
    return node.tag.removeprefix("tag:yaml.org,2002:") if isinstance(node, yaml.ScalarNode) else ""


def _cut(words: str, *, at_most: int) -> str:
    return words if len(words) <= at_most else words[:at_most] + "…"


def _upwards(where: str) -> Iterator[str]:
    """A place, and all places that contain it."""
    yield where
    while where:
        where = where.rpartition(".")[0]
        yield where


def _line(found: yaml.Node | yaml.Event) -> int:
    return 1 if found.start_mark is None else found.start_mark.line + 1


class _NotAPipeline(Exception):
    """The file is refused as a whole."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def _compose(content: bytes) -> yaml.MappingNode:
    written = _decode(content)
    try:
        _check_bounds(written)
        node: yaml.Node | None = yaml.compose(written, Loader=_LOADER)
    except yaml.reader.ReaderError as error:
        line = written.count("\n", 0, error.position) + 1
        raise _NotAPipeline(line, f"expected printable text, found {error.reason}; remove it") from None
    except yaml.MarkedYAMLError as error:
        raise _broken(written, error) from None
    if node is None:
        raise _NotAPipeline(
            1,
            "the file is empty; start with a key, such as `pipeline: <name>`",
        )
    if not isinstance(node, yaml.MappingNode):
        expected = "keys with values, such as `pipeline: events`"
        raise _NotAPipeline(_line(node), f"expected {expected}, found {shown(node)}")
    return node


def _decode(content: bytes) -> str:
    if len(content) > FILE_BYTES_MAX:
        raise _NotAPipeline(1, f"the file is larger than {FILE_BYTES_MAX} bytes; a pipeline file is about a page")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"the byte 0x{content[error.start]:02x}"
        raise _NotAPipeline(line, f"expected UTF-8, found {found}; save the file as UTF-8") from None


def _check_bounds(written: str) -> None:
    """Count the events before the graph is built, because parsing events does not recurse."""
    nodes = depth = 0
    for event in yaml.parse(written, Loader=_LOADER):
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH_MAX or nodes > _NODES_MAX:
            expected = f"at most {_NODES_MAX} values in {_DEPTH_MAX} levels"
            raise _NotAPipeline(_line(event), f"expected {expected}, found more")


def _broken(written: str, error: yaml.MarkedYAMLError) -> _NotAPipeline:
    """Find the line where a file stops being YAML, and the most likely fix."""
    lines = written.splitlines()
    mark = error.problem_mark
    # An unclosed quote or bracket is noticed at the end of the file, but must be fixed where it began.
    if error.context_mark is not None and (mark is None or mark.line >= len(lines) - 1):
        mark = error.context_mark
    number = 0 if mark is None else mark.line
    problem = error.problem or ""
    line = lines[number] if number < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "tab character" in problem or r"'\t'" in problem:
        fix = "indent with spaces, not with tabs"
    elif "another document" in problem:
        fix = "a file contains one pipeline; remove the line --- and everything after it"
    else:
        fix = (
            "text that starts with any of * & ! { [ ] } , | > % @ ` or contains a colon needs quotes, and quotes must "
            "be closed"
        )
    return _NotAPipeline(number + 1, f"invalid YAML: {f'{error.context}: ' if error.context else ''}{problem}; {fix}")
