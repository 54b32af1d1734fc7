"""Tasks for one pipeline of the folder, and the upkeep of all pipelines."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from onceload.pipeline import Pipeline
from onceload.pipeline_file import PipelineFileRefused, find_pipelines, read_pipeline
from onceload.upkeep import delete_unused
from onceload_airflow.asked import given_values
from onceload_airflow.connections import CONNECTION
from onceload_airflow.failures import in_airflows_words
from onceload_airflow.hook import OnceloadHook
from onceload_airflow.versions import AirflowFailException
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import NotFound
from onceload_core.postgres import PostgresSnapshots

if TYPE_CHECKING:
    from airflow.sdk import Context
    from sqlalchemy import Engine

    from onceload_jobs.pipeline.declared import Declared


class OfOnePipeline(BaseOperator):
    """A task for the pipeline that the run's parameter `pipeline` names."""

    def __init__(self, *, pipelines: str, onceload_conn_id: str = CONNECTION, **others: Any) -> None:  # noqa: ANN401
        super().__init__(**others)
        self.pipelines = pipelines
        self.onceload_conn_id = onceload_conn_id
        self._file = PIPELINE_FILE

    def found(self, context: "Context") -> "tuple[Path, Declared]":
        """The pipeline's file, and its declaration."""
        name = str(context["params"]["pipeline"])
        with in_airflows_words():
            for path in find_pipelines(Path(self.pipelines)):
                with suppress(PipelineFileRefused):
                    declared = read_pipeline(path, offered=given_values(context))
                    if declared.name == name:
                        self._file = str(path)
                        return path, declared
            raise NotFound("pipeline of this folder", name)

    def pipeline_of(self, declared: "Declared") -> Pipeline:
        return OnceloadHook(self.onceload_conn_id).pipeline(declared)

    @contextmanager
    def opened(self) -> "Iterator[Engine]":
        with in_airflows_words(self._file), OnceloadHook(self.onceload_conn_id).opened() as engine:
            yield engine


class Verify(OfOnePipeline):
    """Compare files and rows with the ledger; differences fail the run."""

    def execute(self, context: "Context") -> dict[str, object]:
        _, declared = self.found(context)
        with in_airflows_words(self._file):
            found = self.pipeline_of(declared).verify(deep=bool(context["params"]["deep"]))
        for each in found.differences:
            self.log.info("%s", each)
        summary = {"pipeline": found.pipeline, "position": found.position, "files": found.files, "rows": found.rows}
        if found.differing:
            raise AirflowFailException(f"{found.differing:,} differences from the ledger, listed above: {summary}")
        return summary


class TakeSnapshot(OfOnePipeline):
    """Store the states of all producers as they are now."""

    def execute(self, context: "Context") -> dict[str, object]:
        _, declared = self.found(context)
        with self.opened() as engine:
            position = PostgresSnapshots(engine).take(declared.name)
        return {"pipeline": declared.name, "position": position}


class Maintain(BaseOperator):
    """Delete what no load needs, for every pipeline."""

    def __init__(self, *, onceload_conn_id: str = CONNECTION, **others: Any) -> None:  # noqa: ANN401
        super().__init__(**others)
        self.onceload_conn_id = onceload_conn_id

    def execute(self, context: "Context") -> dict[str, int]:
        del context
        hook = OnceloadHook(self.onceload_conn_id)
        with in_airflows_words(), hook.opened() as engine:
            return delete_unused(engine, home=hook.settings.home)
