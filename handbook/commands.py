"""The page of all commands, made from their parsers."""

import argparse
import re
from collections.abc import Iterator

from handbook.markdown import in_cell, page
from onceload.cli import build_parser


def commands_page() -> str:
    parsers = list(all_commands(build_parser()))
    shared = _shared_options([parser for parser in parsers if not _subcommands(parser)])
    of_all = [action for action in parsers[-1]._actions if _key(action) in shared]
    return page(
        "Commands",
        "`onceload COMMAND --help` prints the same. Results go to stdout, everything else to stderr. "
        "The exit code says what to do next: see [errors and exit codes](errors.md).",
        f"## Options of every command\n\n{_table(of_all)}",
        *(_entry(parser, shared) for parser in parsers),
    )


def all_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser of every command, and of every command below it."""
    for below in _subcommands(parser):
        yield below
        yield from all_commands(below)


def _subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [each for action in actions for each in dict.fromkeys(action.choices.values())]


def _key(action: argparse.Action) -> tuple[str, ...]:
    return (*action.option_strings, str(action.help))


def _shared_options(parsers: list[argparse.ArgumentParser]) -> set[tuple[str, ...]]:
    return set.intersection(*({_key(action) for action in parser._actions} for parser in parsers))


def _entry(parser: argparse.ArgumentParser, shared: set[tuple[str, ...]]) -> str:
    own = [action for action in parser._actions if _key(action) not in shared and not _is_subcommand(action)]
    below = [f"- [`{each.prog}`](#{anchor(each)})" for each in _subcommands(parser)]
    example = (parser.epilog or "").removeprefix("example: ")
    parts = [
        f"## {parser.prog}",
        str(parser.description),
        f"```\n{_usage(parser)}\n```" if not below else "\n".join(below),
        _table(own) if own and not below else "",
        f"Example:\n\n```\n{example}\n```" if example and example != _usage(parser) else "",
    ]
    return "\n\n".join(part for part in parts if part)


def anchor(parser: argparse.ArgumentParser) -> str:
    return parser.prog.replace(" ", "-")


def _is_subcommand(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction | argparse._HelpAction)


def _usage(parser: argparse.ArgumentParser) -> str:
    text = parser.format_usage().removeprefix("usage: ")
    return re.sub(r"\s+", " ", text).replace(" [-h] [--json] [--log-format {text,json}]", "").strip()


def _table(actions: list[argparse.Action]) -> str:
    rows = [f"| {_written(action)} | {in_cell(_help(action))} |" for action in actions]
    return "\n".join(["| argument | meaning |", "| --- | --- |", *rows])


def _written(action: argparse.Action) -> str:
    # The brackets and bars that argparse puts around choices would end the cell.
    values = "" if action.nargs == 0 else str(action.metavar or (action.choices and "VALUE") or action.dest.upper())
    names = action.option_strings or [values]
    return ", ".join(f"`{name} {values}`" if action.option_strings and values else f"`{name}`" for name in names)


def _help(action: argparse.Action) -> str:
    text = str(action.help or "") % {"default": action.default, "prog": "onceload"}
    if action.choices is not None:
        choices = ", ".join(f"`{each}`" for each in action.choices)
        text = f"{text.rstrip('.')}. One of: {choices}."
    return text[:1].upper() + text[1:]
