"""What a run has read and written, for Airflow's OpenLineage provider."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from onceload import Report
from onceload_jobs.files.addresses import shown, split_address
from onceload_jobs.files.listing import root_of
from onceload_jobs.pipeline.declared import Declared

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

#: One name per store.
_STORES = {"s3a://": "s3://", "s3n://": "s3://", "gcs://": "gs://"}


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Names and numbers only, because Airflow can be configured to send all attributes of a task."""

    #: A namespace, and a name in it.
    files: tuple[str, str]
    table: tuple[str, str]
    #: Names and types; empty with a transform.
    columns: tuple[tuple[str, str], ...]
    #: The number of records read; unknown with a transform.
    records: int | None
    bytes: int
    counts: Mapping[str, str | int]

    @classmethod
    def of(cls, declared: Declared, report: Report, engine: Engine) -> "Lineage":
        is_as_read = declared.transform is None
        return cls(
            files=_files(declared),
            table=_table(declared, engine),
            columns=tuple((column.name, str(column.type)) for column in declared.columns) if is_as_read else (),
            records=report.records if is_as_read else None,
            bytes=report.bytes,
            counts={
                "batch": report.batch,
                "position": report.position,
                "loaded": report.loaded,
                "duplicates": report.duplicates,
                "quarantined": report.quarantined,
                "filtered": report.filtered,
            },
        )

    def in_openlineage(self) -> "OperatorLineage[Any, Any]":
        # Installed wherever the provider calls this.
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import (
            RunFacet,
            input_statistics_input_dataset,
            output_statistics_output_dataset,
            schema_dataset,
        )

        read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=self.records, size=self.bytes)
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=int(self.counts["loaded"])
        )
        fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=of_type) for name, of_type in self.columns]
        namespace, name = self.files
        files = InputDataset(namespace=namespace, name=name, inputFacets={"inputStatistics": read})
        namespace, name = self.table
        table = OutputDataset(
            namespace=namespace,
            name=name,
            facets={"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {},
            outputFacets={"outputStatistics": written},
        )
        facets = {"onceload_ledger": RunFacet().with_additional_properties(**self.counts)}
        return OperatorLineage(inputs=[files], outputs=[table], run_facets=facets)


def _files(declared: Declared) -> tuple[str, str]:
    """The root of the files, which is the same for every day of a path with a date."""
    scheme, path = split_address(shown(root_of(declared.source.path, root=declared.source.root)))
    if not scheme:
        return "file", str(Path(path).expanduser().absolute())
    # A cached file still belongs to its origin.
    scheme = scheme.rpartition("::")[2]
    bucket, _, below = path.partition("/")
    return _STORES.get(scheme, scheme) + bucket, f"/{below}" if scheme == "hdfs://" else below or "/"


def _table(declared: Declared, engine: Engine) -> tuple[str, str]:
    """Name the table by the server that answered, not by the configured address."""
    with engine.connect() as connection:
        info: Any = connection.connection.driver_connection.info  # type: ignore[union-attr] # It is open.
    # A host that is a path is a socket on this machine.
    host = socket.gethostname() if info.host.startswith("/") else info.host
    host = f"[{host}]" if ":" in host else host
    return f"postgres://{host}:{info.port}", f"{info.dbname}.{declared.target.schema}.{declared.target.table}"
