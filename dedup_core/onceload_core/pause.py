"""A pause of a pipeline: until a user resumes it, no load commits anything.

Repairs stay allowed, because people pause a pipeline for them: retries and discards of quarantined records, recoveries
and rewinds.
"""

from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from onceload_core.errors import CallAgain


@dataclass(frozen=True, kw_only=True)
class Pause:
    """The user who paused a pipeline, the time and the reason."""

    at: datetime
    by: str
    why: str

    @property
    def since(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}Z"

    def __str__(self) -> str:
        return f"paused by {self.by} at {self.since}, with the reason {self.why!r}"


@dataclass(eq=False)
class PipelinePaused(CallAgain):
    pipeline: str
    by: str
    since: str
    why: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline} was paused by {self.by} at {self.since}, with the reason {self.why!r}. Nothing "
            f"more was loaded, and nothing is lost. Run `onceload resume {quote(self.pipeline)}`, then retry."
        )


def refuse_paused(pipeline: str, pause: Pause | None) -> None:
    """Raise if there is a pause."""
    if pause is not None:
        raise PipelinePaused(pipeline, by=pause.by, since=pause.since, why=pause.why)
