"""Draft a suite from existing rows: `onceload audit FILE --suggest`."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from onceload.commands.arguments import Arguments, read_declared
from onceload.terminal import on_terminal, show_json, show_text, words
from onceload.yaml_text import on_one_line, quoted
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings, connect

if TYPE_CHECKING:
    # Arrow takes a while to import.
    from onceload_jobs.quality.suggest import Draft, Suggestion


def suggest(arguments: Arguments, dsn: str) -> ExitCode:
    """Draft a suite from the rows in the target, or from those of a staged batch."""
    from onceload_jobs.quality.suggest import suggest as suggest_now

    declared = read_declared(arguments)
    on_terminal(f"pipeline {declared.name}: reading rows")
    engine = connect(LedgerSettings(dsn=dsn))
    try:
        batch = Batch(arguments.batch) if arguments.batch else None
        draft = suggest_now(engine, declared, batch=batch, now=datetime.now(UTC))
    finally:
        engine.dispose()
    suite = write_suite(draft)
    if arguments.output is not None:
        _write(arguments.output, suite)
    if arguments.json:
        show_json({**asdict(draft), "suite": suite})
    elif arguments.output is None:
        show_text(suite)
    where = f" in {arguments.output}" if arguments.output else ""
    words(
        f"pipeline {declared.name}: {len(draft.suggestions)} expectations{where}, drafted from {draft.rows:,} rows of"
        f" {draft.source}. Review them, then set quality.suite in {arguments.file} to their file"
        + (", with publish: staged" if declared.is_direct else "")
    )
    return ExitCode.DONE


def suggest_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--suggest",
        action="store_true",
        help="draft a suite from the rows of the target, or of the staged batch, instead of auditing",
    )
    command.add_argument(
        "--output", type=Path, metavar="FILE", help="write the draft to this new file (default: stdout)"
    )


def _write(path: Path, suite: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(suite)
    except FileExistsError as error:
        raise SettingRefused("--output", f"{path}, which already exists", "a new file") from error


def write_suite(draft: "Draft") -> str:
    """A drafted suite as YAML; values of the data are quoted, so that they stay plain values."""
    head = (
        f"# Drafted from {on_one_line(draft.source)}. Review it: each expectation is a guess from these rows.",
        "# A failed `warning` is only reported. A failed `severity: critical` stops the batch from being published.",
        "expectations:",
    )
    return "\n".join([*head, *(line for each in draft.suggestions for line in _lines(each))]) + "\n"


def _lines(suggestion: "Suggestion") -> Iterator[str]:
    expectation = suggestion.expectation
    kwargs = ", ".join(f"{key}: {quoted(value)}" for key, value in expectation.kwargs.items())
    yield f"  # seen: {on_one_line(suggestion.seen)}"
    yield f"  - type: {expectation.type}"
    yield f"    kwargs: {{{kwargs}}}"
    yield f"    severity: {expectation.severity}"
