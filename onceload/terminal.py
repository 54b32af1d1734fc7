"""Output: tables that fit a terminal and are whole elsewhere, JSON and CSV for programs, progress on terminals."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import TypeVar

from onceload_core.commands import PIPELINE_FILE

Item = TypeVar("Item")
_NAMED = ContextVar("pipeline_file", default=PIPELINE_FILE)
_WIDTH_MIN = 80
_COLUMN_MIN = 6
_PROGRESS_EVERY_S = 0.2
#: In a log, each progress update is a new line.
_LINE_EVERY_S = 10.0


@contextmanager
def naming(pipeline_file: str) -> Iterator[None]:
    """Put this name into the commands that messages print while the block runs."""
    before = _NAMED.set(pipeline_file)
    try:
        yield
    finally:
        _NAMED.reset(before)


def with_file_named(text: str) -> str:
    """A message with the name of the pipeline file, if the command has it."""
    return text.replace(PIPELINE_FILE, _NAMED.get())


def words(text: str) -> None:
    """Print a message to stderr, so that stdout has only results."""
    print(_harmless(with_file_named(text)), file=sys.stderr)


def lines_of_words(text: str) -> None:
    """Print a message of several lines to stderr."""
    for line in text.split("\n"):
        words(line)


def counted(number: int, word: str) -> str:
    """A count with its noun, in the plural unless it is 1."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def show_json(document: object) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(document, default=_plain).replace(PIPELINE_FILE, json.dumps(_NAMED.get())[1:-1]))


def show_text(text: str) -> None:
    """Print the content of a file to stdout."""
    print(text, end="")


def show_table(rows: Sequence[dict[str, object]], *, nothing: str) -> None:
    """Print a table to stdout: cut to the width of a terminal, whole in a pipe or a file."""
    if not rows:
        words(nothing)
        return
    for line in table_lines(rows, width=_width()):
        print(line)


def show_values(columns: Sequence[str], rows: Iterable[Sequence[object]], *, are_numbers: Sequence[bool]) -> None:
    """Print rows of the database as a table: names and values are as in the database, and null differs from text."""
    names = [_harmless(name) for name in columns]
    cells = [["NULL" if value is None else _harmless(str(value)) for value in row] for row in rows]
    for line in _aligned([names, *cells], right=are_numbers, width=_width()):
        print(line)


def show_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as CSV: null is empty, and the empty text is quoted, as COPY writes it."""
    # The module csv of Python 3.11 cannot tell null from the empty text.
    made_safe = _harmless if sys.stdout.isatty() else str
    for row in (columns, *rows):
        print(",".join("" if value is None else _in_csv(made_safe(str(value))) for value in row))


def _in_csv(text: str) -> str:
    return text if text and not set(text) & set(',"\n\r') else '"' + text.replace('"', '""') + '"'


def _width() -> int | None:
    """The width of the terminal; None in a pipe or a file."""
    return max(_WIDTH_MIN, shutil.get_terminal_size((_WIDTH_MIN, 24)).columns) if sys.stdout.isatty() else None


def table_lines(rows: Sequence[dict[str, object]], *, width: int | None) -> list[str]:
    """A heading and a line per row; the widest columns shrink until all fit the width, if there is one."""
    heading = [name.replace("_", " ") for name in rows[0]]
    cells = [heading, *([_cell(value) for value in row.values()] for row in rows)]
    right = [all(isinstance(row[name], int | None) for row in rows) for name in rows[0]]
    return _aligned(cells, right=right, width=width)


def _aligned(cells: Sequence[Sequence[str]], *, right: Sequence[bool], width: int | None) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > _COLUMN_MIN:
        widths[widths.index(max(widths))] -= 1
    return [
        "  ".join(
            _fit(cell, size, right=is_number) for cell, size, is_number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]


def _fit(cell: str, size: int, *, right: bool) -> str:
    shown = cell if len(cell) <= size else cell[: size - 1] + "…"
    return shown.rjust(size) if right else shown.ljust(size)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}Z"
        case bool():
            return "yes" if value else "no"
        case _:
            return _harmless(with_file_named(str(value)))


def _harmless(text: str) -> str:
    """Replace unprintable characters, which could move the cursor or break the line."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def progress(items: Iterable[Item], *, total: int, doing: str) -> Iterator[Item]:
    """Pass items on, and show progress on a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        yield from items
        return
    shown_at = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - shown_at >= _PROGRESS_EVERY_S or number == total:
            shown_at = time.monotonic()
            print(f"\r{doing}: {number:,} of {total:,}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


@contextmanager
def renewed_line() -> Iterator[Callable[[str], None]]:
    """A line on stderr that is updated in place; without a terminal, a new line from time to time."""
    in_place = sys.stderr.isatty()
    shown_at = time.monotonic()
    is_line_open = False

    def show(text: str) -> None:
        nonlocal shown_at, is_line_open
        if in_place:
            is_line_open, width = True, shutil.get_terminal_size((_WIDTH_MIN, 24)).columns - 1
            print(f"\r{_harmless(text)[:width].ljust(width)}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - shown_at >= _LINE_EVERY_S:
            shown_at = time.monotonic()
            words(text)

    try:
        yield show
    finally:
        if is_line_open:
            print(file=sys.stderr)


def size_in_words(size: int) -> str:
    """Format a size: 1234567 bytes are 1.2 MB."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.1f} {unit}" if unit != "B" else f"{size} B"


def time_in_words(seconds: float) -> str:
    """Format an estimated time, rounded."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def on_terminal(doing: str) -> None:
    """Announce a long step, on terminals only."""
    if is_watched():
        words(f"{doing} …")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
