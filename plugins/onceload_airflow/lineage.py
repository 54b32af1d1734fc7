"""What a run has read and written, in the words of OpenLineage: imported where Airflow's provider of it asks."""

from pathlib import Path
from typing import Any

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    RunFacet,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)
from psycopg2.extensions import parse_dsn

from spark_jobs.declared import Declared
from spark_jobs.load import Report
from spark_jobs.sources.addresses import shown, split_address
from spark_jobs.sources.listing import root_of


@attr.define
class LedgerRunFacet(RunFacet):
    """Where the ledger stood after the run, and what became of what it had read."""

    batch: str
    position: int
    loaded: int
    duplicates: int
    quarantined: int
    filtered: int


def lineage_of(declared: Declared, report: Report, *, dsn: str) -> OperatorLineage[Any, Any]:
    counts = LedgerRunFacet(
        batch=report.batch,
        position=report.position,
        loaded=report.loaded,
        duplicates=report.duplicates,
        quarantined=report.quarantined,
        filtered=report.filtered,
    )
    return OperatorLineage(
        inputs=[_files(declared, report)], outputs=[_table(declared, report, dsn)], run_facets={"onceload": counts}
    )


def _files(declared: Declared, report: Report) -> InputDataset:
    """The folder below which they are: it is the same for every day of a path with a date."""
    scheme, path = split_address(shown(root_of(declared.source.path, root=declared.source.root)))
    bucket, _, below = path.partition("/")
    namespace, name = (scheme + bucket, below or "/") if scheme else ("file", str(Path(path).expanduser().absolute()))
    statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
        rowCount=report.records, size=report.bytes
    )
    return InputDataset(namespace=namespace, name=name, inputFacets={"inputStatistics": statistics})


def _table(declared: Declared, report: Report, dsn: str) -> OutputDataset:
    where = parse_dsn(dsn)
    host = where.get("host", "localhost")
    # A socket is a folder of this machine.
    host = "localhost" if host.startswith("/") else host
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=column.name, type=str(column.type)) for column in declared.columns
    ]
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=report.loaded)
    return OutputDataset(
        namespace=f"postgres://{host}:{where.get('port', 5432)}",
        name=f"{where.get('dbname', 'postgres')}.{declared.target.schema}.{declared.target.table}",
        facets={} if declared.transform else {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)},
        outputFacets={"outputStatistics": statistics},
    )
