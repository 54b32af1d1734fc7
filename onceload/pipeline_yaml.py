"""A YAML file with line numbers: every value knows its line, and errors are collected, not raised."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml

from onceload.yaml_nodes import FILE_BYTES_MAX, SHOWN_MAX, NotAPipeline, compose, cut, is_nothing, line_of, shown
from onceload.yaml_values import Reading
from onceload_core.errors import SettingRefused

T = TypeVar("T")
D = TypeVar("D")

#: More problems are only counted.
PROBLEMS_MAX = 100


@dataclass
class Document:
    """One file while it is read: the lines of its values, and its problems."""

    path: str
    #: False for values of a program, whose lines say nothing.
    has_lines: bool = True
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
            node = compose(content)
        except NotAPipeline as refused:
            self.refuse_line(refused.line, refused.message)
            return None
        self.note_line("", node)
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

    def note_line(self, where: str, node: yaml.Node) -> None:
        self._lines[where] = line_of(node)

    def refuse(self, where: str, message: str) -> None:
        self._refused.add(where)
        place = cut(where, at_most=200)
        self.refuse_line(self._line_of(where), f"{place}: {message}" if place else message)

    def refuse_line(self, line: int, message: str) -> None:
        # Names come from the file, and unprintable characters could control the terminal.
        shown_as = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in message)
        place = f"{self.path}:{line}" if self.has_lines else self.path
        self._problems.append((line, f"{place}: {shown_as}"))

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
            return self._document.refuse_line(line_of(key), f"expected a key, found {shown(key)}")
        # The key as it was written: `null`, `no` and `on` are names like any other here.
        name: str = key.value
        if name in self._nodes:
            # The first one is read, but the error shows the line of the second.
            self._document.note_line(self.place(name), key)
            return self.refuse(name, "this key appears twice; remove one of them")
        self._nodes[name] = value
        return self._document.note_line(self.place(name), key)

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
        return key in self._nodes and not is_nothing(self._nodes[key])

    def has_keys_below(self, key: str) -> bool:
        """Whether the value of a key is a section; does not count as reading it."""
        return isinstance(self._nodes.get(key), yaml.MappingNode)

    def take(self, key: str, reading: Reading[T], *, default: D) -> T | D:
        """Read an optional key."""
        node = self._ask(key)
        if node is None or (default is None and is_nothing(node)):
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
        if node is not None and not isinstance(node, yaml.MappingNode) and not is_nothing(node):
            self.refuse(key, f"expected keys with values below it, found {shown(node)}")
        return self._document.section(self.place(key), node if isinstance(node, yaml.MappingNode) else None)

    def sections(self, key: str) -> list["Section"]:
        """Go one level down into each element of a list."""
        node = self._ask(key)
        if node is None or is_nothing(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(key, f"expected a list (each element starts with -), found {shown(node)}")
            return []
        found = []
        for number, each in enumerate(node.value, 1):
            name = f"{key}.{number}"
            self._document.note_line(self.place(name), each)
            if isinstance(each, yaml.MappingNode):
                found.append(self._document.section(self.place(name), each))
            else:
                self.refuse(name, f"expected keys with values below it, found {shown(each)}")
        return found

    def refuse_unknown_keys(self) -> None:
        for name in [each for each in self._nodes if each not in self._asked]:
            if self._document.is_full():
                return
            close = difflib.get_close_matches(name[:SHOWN_MAX], self._asked, n=1)
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
            self.refuse(key, f"expected {refused.expected}, found {cut(refused.found, at_most=300)}")
            return otherwise


def _upwards(where: str) -> Iterator[str]:
    """A place, and all places that contain it."""
    yield where
    while where:
        where = where.rpartition(".")[0]
        yield where
