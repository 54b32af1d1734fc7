"""Write a pipeline file: names and values of the data are quoted, and comments stay on their line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from onceload.draft.guess import Guess, GuessedColumn
from onceload.yaml_text import on_one_line, quoted
from onceload_jobs.pipeline.declared import CsvOptions, Format, MissingColumns

_COMMENT_MAX = 300
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_PLAIN_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: YAML takes these for something else than text, in one of its versions.
_TAKEN = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_LEFT_OUT_MAX = 20


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a draft is made of."""

    pattern: str
    topic: str
    format: Format
    csv: CsvOptions
    #: Whether a file that was read ends without a newline.
    has_tail: bool
    guess: Guess
    #: In words, how many records of how many files were read.
    source: str = ""
    #: What a load will leave out.
    notes: tuple[str, ...] = ()


def write_draft(facts: Facts) -> str:
    head = [
        _comment(f"Drafted by onceload draft from {facts.source}."),
        "# Each type is a guess from these records. Review it: a record that does not fit goes to quarantine.",
        *map(_comment, facts.notes),
    ]
    return (
        "\n".join([*head, f"pipeline: {facts.topic}", *_source(facts), *_columns(facts.guess), *_target(facts)]) + "\n"
    )


def _source(facts: Facts) -> Iterator[str]:
    yield "source:"
    yield f"  path: {quoted(facts.pattern)}"
    yield f"  format: {facts.format}"
    if facts.format is Format.CSV:
        yield from _options(facts)
    if facts.has_tail:
        yield "  # At least one file ends without a newline, and this loads its last line too."
        yield "  # Remove it if files still grow while they are loaded."
        yield "  sealed: always"


def _options(facts: Facts) -> Iterator[str]:
    csv, usual = facts.csv, CsvOptions()
    yield "  options:"
    if csv.header:
        yield "    header: true"
    else:
        yield "    # The first line is a record. Give the columns below their names; their order is that of the fields."
        yield "    header: false"
    yield f"    delimiter: {quoted(csv.delimiter)}"
    if csv.quote != usual.quote:
        yield f"    quote: {quoted(csv.quote)}"
    if csv.escape is not None:
        yield f"    escape: {quoted(csv.escape)}"
    if csv.null != usual.null:
        yield "    # This text is null. An empty field is then an empty text."
        yield f"    null: {quoted(csv.null)}"
    if csv.multiline:
        yield "    # Some values in quotes have newlines."
        yield "    multiline: true"
    if facts.guess.has_missing_columns:
        yield f"    missing_columns: {MissingColumns.IGNORE}"


def _columns(guess: Guess) -> Iterator[str]:
    yield "columns:"
    for each in guess.columns:
        yield from (f"  {_comment(comment)}" for comment in each.comments)
        yield f"  {_name(each.column.name)}: {_type(each)}"
        yield from (f"  {line}" for line in _inside(each))
    for name, why in guess.left_out[:_LEFT_OUT_MAX]:
        yield f"  {_comment(f'not loaded: the field {_shown(name)}, because {why}')}"
    if len(guess.left_out) > _LEFT_OUT_MAX:
        yield f"  # not loaded: {len(guess.left_out) - _LEFT_OUT_MAX:,} more fields"


def _inside(each: GuessedColumn) -> Iterator[str]:
    """Columns that are not declared yet: to declare one, its line only has to be uncommented."""
    if each.inside:
        yield "# To load fields of it as columns, with or without the column itself, uncomment their lines:"
    for inner in each.inside:
        column_type = _type(inner)
        written = quoted(column_type) if "," in column_type else column_type
        note = f"  {_comment('; '.join(inner.comments))}" if inner.comments else ""
        yield f"# {_name(inner.column.name)}: {{type: {written}, path: {_path(inner)}}}{note}"
    if each.has_more_inside:
        yield "# It has more fields. Add them in the same way."


def _path(each: GuessedColumn) -> str:
    steps = each.column.path
    return ".".join(steps) if all(map(_PLAIN_STEP.fullmatch, steps)) else quoted(steps)


def _type(each: GuessedColumn) -> str:
    return f"{each.column.type}{' not null' if each.column.not_null else ''}"


def _target(facts: Facts) -> Iterator[str]:
    yield "target:"
    yield f"  table: public.{facts.topic}"
    if facts.guess.key is not None:
        key = quoted([facts.guess.key])
        yield "  # If a later record of the same key replaces an earlier one, add:"
        yield "  # write: merge"
        yield f"  # key: {key}"


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name not in _TAKEN else quoted(name)


def _shown(name: str) -> str:
    """A name that cannot be a column may have anything in it."""
    written = name.encode(errors="backslashreplace").decode()
    return quoted(written if len(written) <= 80 else f"{written[:77]}...")


def _comment(words: str) -> str:
    shown = on_one_line(words)
    return f"# {shown if len(shown) <= _COMMENT_MAX else f'{shown[: _COMMENT_MAX - 3]}...'}"
