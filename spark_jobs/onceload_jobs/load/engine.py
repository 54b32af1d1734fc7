"""What runs the sessions of a load: Spark where it can help, and processes of this machine otherwise."""

from collections.abc import Iterable
from enum import StrEnum

from onceload_jobs.files.compression import is_compressed
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.to_read import FileToRead

#: Set by spark-submit for the program that it runs.
LAUNCHED = "PYSPARK_GATEWAY_PORT"
#: A larger load starts Spark; local processes read about this much while it starts.
_LOCAL_BYTES_MAX = 512 * 2**20
#: How many times larger the content of a compressed file usually is.
_UNPACKED = 8


class Engine(StrEnum):
    #: Spark for a transform in Spark SQL and for large loads; while it starts, local processes load.
    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


def engine_for(declared: Declared, files: Iterable[FileToRead]) -> Engine:
    """The engine of a load that asks for none."""
    is_for_spark = declared.needs_spark or sum(map(_content_bytes, files)) > _LOCAL_BYTES_MAX
    return Engine.SPARK if is_for_spark else Engine.LOCAL


def _content_bytes(file: FileToRead) -> int:
    """About how many bytes of records are read."""
    return file.bytes * _UNPACKED if is_compressed(file.listed.url) else file.bytes
