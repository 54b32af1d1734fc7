"""The source of a pipeline that declares none: a program gives its rows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Arrow takes a while to import.
    from onceload_jobs.pipeline.declared import Declared, Source


def source_of_rows(pipeline: str) -> "Source":
    """Rows that are numbered and have types, as those of Parquet."""
    from onceload_jobs.pipeline.declared import NO_FILES, Format, Source

    # Two pipelines may load rows into one table. Two with the same path would load the same files into it.
    return Source(path=NO_FILES, pattern=f"(rows of a program, pipeline {pipeline})", format=Format.PARQUET)


def has_source(declared: "Declared") -> bool:
    return not declared.source.is_of_program
