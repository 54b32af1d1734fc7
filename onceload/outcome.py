"""How a command ended, in a file for the process that started it.

Between an Airflow task and a load there is Spark: its exit code reaches us in a sentence of Airflow's provider, and our
own error somewhere in its output. So the load itself writes both down. A load that was killed writes nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dedup_core.errors import ExitCode

#: In the environment: the file to write. A driver on another machine does not inherit it, and writes none.
OUTCOME_FILE = "ONCELOAD_OUTCOME_FILE"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit_code: ExitCode
    #: The class of the error; empty if there was none, also where notes on files decided about the exit code.
    error: str = ""
    message: str = ""


def write_outcome(outcome: Outcome, environment: Mapping[str, str]) -> None:
    """Write the file completely or not at all, where the environment asks for it."""
    if name := environment.get(OUTCOME_FILE):
        part = Path(f"{name}.part")
        part.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        part.replace(name)


def find_outcome(file: Path) -> Outcome | None:
    """What the process wrote; none if it ended before it could."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Outcome(exit_code=ExitCode(said["exit_code"]), error=said["error"], message=said["message"])
