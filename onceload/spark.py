"""The records of a pipeline's files as a data source of Spark: to look at, and to join with other tables.

    from onceload.spark import OnceloadSource

    spark.dataSource.register(OnceloadSource)
    records = spark.read.format("onceload").option("pipeline", "pipelines/orders.yaml").load()

Spark plans where its driver runs. Over Spark Connect, that is the server: it opens the pipeline file, lists the files
and asks the database. Tasks only open the files, and get no address of a database.
"""

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from onceload.databases import open_database
from onceload.pipeline import Pipeline
from onceload.pipeline_file import read_pipeline
from onceload.settings import Settings, given_settings
from onceload_core.errors import SettingRefused
from onceload_core.events import show_events
from onceload_core.names import ProducerId
from onceload_core.postgres import PostgresLedger
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.choice import Choice
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.plan.plan import Plan, find_known, plan_everything
from onceload_jobs.plan.to_read import FileToRead
from onceload_jobs.work.spark.source import SourceReader, log_left_out, source_schema

_OPTIONS = ("pipeline", "set", "files", "new", "dsn")
_FLAGS = {"true": True, "false": False}


class OnceloadSource(DataSource):
    """All complete records that the files of a pipeline have now, or with `new` those that a load would read now."""

    @classmethod
    def name(cls) -> str:
        return "onceload"

    def schema(self) -> StructType:
        return source_schema(_Asked.of(self.options).declared().columns)

    def reader(self, schema: StructType) -> SourceReader:
        del schema
        show_events(os.environ)
        asked = _Asked.of(self.options)
        declared = asked.declared()
        plan = asked.plan(declared)
        for note in plan.notes:
            log_left_out(declared, note)
        return SourceReader.of(declared, plan.to_read, asked.known(declared, plan.to_read))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options of one query, and the settings of the process that plans it."""

    file: Path
    values: Mapping[str, str]
    files: tuple[str, ...]
    is_new: bool
    settings: Settings

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "_Asked":
        """Check the options; each that does not exist would be ignored."""
        for option in options:
            if option not in _OPTIONS:
                raise SettingRefused(f"option {option}", "no such option", f"one of {', '.join(_OPTIONS)}")
        if not options.get("pipeline"):
            raise SettingRefused("option pipeline", "none", "the path of a pipeline file")
        new = options.get("new", "false")
        if new.lower() not in _FLAGS:
            raise SettingRefused("option new", repr(new), "true or false")
        asked = cls(
            # Spark may run in another folder than the program, so an error shows the whole path.
            file=Path(options["pipeline"]).absolute(),
            values=_values(options.get("set", "")),
            files=(options["files"],) if "files" in options else (),
            is_new=_FLAGS[new.lower()],
            settings=given_settings(os.environ, dsn=options.get("dsn")),
        )
        _refuse_password(options.get("dsn", ""))
        if asked.is_new and asked.settings.dsn is None:
            expected = "the database of the loads: option dsn, or ONCELOAD_DSN where the driver of Spark runs"
            raise SettingRefused("option new", "no database", expected)
        return asked

    def declared(self) -> Declared:
        return read_pipeline(self.file, values=self.values)

    def plan(self, declared: Declared) -> Plan:
        if self.is_new:
            return Pipeline(declared, self.settings).plan(only=self.files)
        return plan_everything(declared, now_s=time.time(), choice=Choice(files=self.files))

    def known(self, declared: Declared, files: Sequence[FileToRead]) -> dict[str, ProducerId]:
        """The ids that the database has given to these files, by their names."""
        if self.settings.dsn is None:
            return {}
        with open_database(self.settings) as engine:
            ledger, pipeline = PostgresLedger(engine), pipeline_with_declaration(declared)
            # Under other terms, the same name would be another producer.
            ledger.find_version(pipeline)
            known = find_known(ledger, pipeline, [file.listed.name for file in files])
        generations = {file.listed.name: file.generation for file in files}
        return {
            name: each.producer_id
            for name, each in known.items()
            # A plan of everything knows no generations: its files continue the latest.
            if not self.is_new or each.knowledge.state.generation == generations[name]
        }


def _values(given: str) -> dict[str, str]:
    """The values of placeholders, as `--set` takes them."""
    values = {}
    for each in shlex.split(given):
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise SettingRefused("option set", repr(each), "NAME=VALUE, and a space between several of them")
        values[name] = value
    return values


def _refuse_password(dsn: str) -> None:
    """Options are a part of the plan, which Spark sends to its tasks and may show on its pages."""
    address = urlsplit(dsn)
    if address.password is not None or any(name.endswith("password") for name in parse_qs(address.query)):
        found = "an address with a password (not shown), which Spark may show on its pages"
        expected = "an address without it, and the password in ONCELOAD_DSN or ~/.pgpass where the driver of Spark runs"
        raise SettingRefused("option dsn", found, expected)
