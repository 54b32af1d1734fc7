"""A plan as if nothing was loaded: all complete records that a source has now. It needs no database."""

from collections.abc import Sequence
from typing import Any, cast

from onceload_core.errors import NotFound
from onceload_core.names import Position
from onceload_core.pipeline import Pipeline
from onceload_core.ports import KnownProducer, Ledger, Outlook
from onceload_core.replay import Snapshot
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.choice import EVERYTHING, Choice
from onceload_jobs.plan.plan import Plan, make_plan


def plan_everything(declared: Declared, *, now_s: float, choice: Choice = EVERYTHING) -> Plan:
    """Look at every file of the source, as the first load into an empty database does."""
    return make_plan(declared, cast("Ledger[Any]", _NothingLoaded()), now_s=now_s, choice=choice)


class _NothingLoaded:
    """What a plan asks of a ledger, if no pipeline was ever loaded."""

    def find(self, pipeline: str, names: Sequence[str], *, here: Pipeline | None = None) -> dict[str, KnownProducer]:
        del pipeline, names, here
        return {}

    def outlook(self, pipeline: str) -> Outlook:
        del pipeline
        return Outlook(position=Position(0), claimed=frozenset())

    def states(self, pipeline: str) -> Snapshot:
        raise NotFound("pipeline", pipeline)

    def others_by_content(self, pipeline: Pipeline) -> dict[str, str]:
        del pipeline
        return {}

    def refuse_files_of_others(self, pipeline: Pipeline, names: Sequence[str]) -> None:
        """No other pipeline has loaded any file."""
