"""How a command or a task ended; and a file of it, for the process that started the command.

An Airflow task may submit a load to Spark, which reports the exit code only inside a sentence, and our error only
somewhere in its output. So the load writes both to a file. A killed load writes nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onceload_core.errors import ExitCode

if TYPE_CHECKING:
    # Arrow takes a while to import.
    from onceload_jobs.load.report import Report

#: The environment variable with the file to write. A driver on another machine does not inherit it, and writes none.
OUTCOME_FILE = "ONCELOAD_OUTCOME_FILE"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit_code: ExitCode
    #: The class of the error; empty if there was none, even if notes on files decided the exit code.
    error: str = ""
    #: The error message, or the files that need a person, each with its reason.
    message: str = ""
    #: The files that other runs hold, each with its reason.
    held: str = ""
    #: The fields without a column, and the number of records that have each.
    ignored_fields: Mapping[str, int] = field(default_factory=dict)
    #: The pages of Spark that show the jobs of a load.
    spark_ui: str = ""

    @classmethod
    def of(cls, report: "Report") -> "Outcome":
        """The outcome of a load. For a batch that it has only staged, `publish` reports the notes on files."""
        is_staged = report.staged is not None
        return cls(
            exit_code=ExitCode.DONE if is_staged else report.exit_code,
            message="" if is_staged else report.problems,
            held=report.held,
            ignored_fields=report.ignored_fields,
            spark_ui=report.spark_ui or "",
        )


def write_outcome(outcome: Outcome, environment: Mapping[str, str]) -> None:
    """Write the file completely or not at all, if the environment asks for it."""
    if name := environment.get(OUTCOME_FILE):
        part = Path(f"{name}.part")
        part.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        part.replace(name)


def find_outcome(file: Path) -> Outcome | None:
    """The outcome that the process wrote; None if it ended before that."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Outcome(**values | {"exit_code": ExitCode(values["exit_code"])})
