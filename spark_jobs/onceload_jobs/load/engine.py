"""What runs the workers of a command, and why."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from onceload_jobs.executor.executor import Executor
from onceload_jobs.executor.local import LocalExecutor

if TYPE_CHECKING:
    from onceload_jobs.work.spark.spark import Spark

#: Set by spark-submit for the program that it runs.
LAUNCHED = "PYSPARK_GATEWAY_PORT"


class Engine(StrEnum):
    #: Spark where one is asked for, or where Spark SQL makes the rows; otherwise processes of this machine.
    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Where the workers of a command are to run."""

    #: The address of a Spark Connect server, or of a master; without both, Spark starts on this machine.
    remote: str | None = None
    #: What names this server, and its pages.
    remote_named_by: str = "--remote"
    remote_ui: str | None = None
    master: str | None = None
    spark_options: Mapping[str, str] = field(default_factory=dict)
    engine: Engine = Engine.AUTO

    def chosen(self, *, needs_spark: bool) -> "Ran":
        """What runs the workers, and why."""
        if self.engine is Engine.LOCAL:
            return Ran(engine=Engine.LOCAL, why="--engine local")
        if self.remote is not None:
            server = self.remote.partition(";")[0].removesuffix("/")
            return Ran(engine=Engine.SPARK, why=f"{self.remote_named_by} {server}", ui=self.remote_ui)
        reasons = {
            f"--master {self.master}": self.master is not None,
            "--conf": bool(self.spark_options),
            "--engine spark": self.engine is Engine.SPARK,
            "the transform is in Spark SQL": needs_spark,
        }
        why = next((why for why, holds in reasons.items() if holds), None)
        return Ran(engine=Engine.LOCAL, why="no Spark is named") if why is None else Ran(engine=Engine.SPARK, why=why)

    @contextmanager
    def executor(self, pipeline: str, *, doing: str) -> Iterator[Executor]:
        """The processes or the Spark for a command that makes no rows by Spark SQL."""
        if self.chosen(needs_spark=False).engine is Engine.LOCAL:
            with closing(LocalExecutor()) as local:
                yield local
            return
        with self.spark(pipeline, batch=doing) as spark:
            yield spark

    @contextmanager
    def spark(self, pipeline: str, *, batch: str, tries: int = 0) -> "Iterator[Spark]":
        """The Spark that is named, or one that is started; the name of the batch is on its pages."""
        if self.remote is not None:
            from onceload_jobs.work.spark.connect import connected

            with connected(pipeline, self.remote, batch=batch) as spark:
                yield spark
            return
        from onceload_jobs.work.spark.classic import ClassicSpark

        with ClassicSpark.started(pipeline, self.master, self.spark_options, batch=batch, tries=tries) as started:
            yield started


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What ran the workers of a load."""

    engine: Engine
    why: str
    #: The pages that show its jobs.
    ui: str | None = None

    def __str__(self) -> str:
        return f"{self.engine} ({self.why})"
