"""Others that load the same rows, each in its own usual way; none of them knows what was loaded before."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import psycopg2

from bench.events import DDL
from onceload.embedded import binaries

#: From Debian's package libpostgresql-jdbc-java; nothing but this comparison needs it.
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
_LISTENING = "127.0.0.1"
_PORT = 5432


def open_port(home: Path) -> None:
    """Start the home's server again, so that it takes TCP connections: neither JDBC nor dlt speaks through a socket."""
    data = home / "postgres-18" / "data"
    owner = data.stat()
    is_root = os.geteuid() == 0
    _, _, options = (data / "postmaster.opts").read_text().strip().partition(" ")
    subprocess.run(
        [
            binaries(18) / "pg_ctl",
            "restart",
            "--wait",
            f"--pgdata={data}",
            f"--options={options} --listen_addresses={_LISTENING}",
        ],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        user=owner.st_uid if is_root else None,
        group=owner.st_gid if is_root else None,
        extra_groups=[] if is_root else None,
        check=True,
    )


def copy_streams(dsn: str, files: Sequence[Path]) -> float:
    """`COPY` of CSV into a plain table, one connection for each file; answers with the seconds it took."""
    _run(dsn, f"CREATE TABLE target ({DDL})")
    started = perf_counter()
    with ThreadPoolExecutor(len(files)) as streams:
        list(streams.map(lambda file: _copy(dsn, file), files))
    return perf_counter() - started


def _copy(dsn: str, file: Path) -> None:
    with closing(psycopg2.connect(dsn)) as connection, file.open("rb") as rows:
        with connection.cursor() as cursor:
            cursor.copy_expert("COPY target FROM STDIN (FORMAT csv)", rows, 2**20)
        connection.commit()


def spark_jdbc(dsn: str, file: Path) -> float:
    """Spark's reader and its JDBC writer, in the session that runs."""
    from pyspark.sql import SparkSession

    _run(dsn, f"CREATE TABLE target ({DDL})")
    spark = SparkSession.builder.getOrCreate()
    properties = {"user": "postgres", "driver": "org.postgresql.Driver", "batchsize": "10000"}
    url = f"jdbc:postgresql://{_LISTENING}:{_PORT}/{_database(dsn)}?reWriteBatchedInserts=true"
    schema = DDL.replace("timestamptz", "timestamp").replace("text", "string").replace("numeric", "decimal")
    started = perf_counter()
    spark.read.schema(schema).json(str(file)).write.jdbc(url, "target", mode="append", properties=properties)
    return perf_counter() - started


@dataclass(frozen=True, kw_only=True)
class Dlt:
    """dlt with its defaults, in an environment of its own."""

    folder: Path
    version: str

    @classmethod
    def installed(cls, folder: Path) -> "Dlt | str":
        """Install it below the folder, or say why it cannot be."""
        python = str(folder / "bin" / "python")
        uv = [sys.executable, "-m", "uv"]
        pip = [*uv, "pip", "install", "--quiet", "--python", python, "dlt[postgres,filesystem]"]
        asked = [python, "-c", "import dlt; print(dlt.__version__)"]
        try:
            subprocess.run([*uv, "venv", "--quiet", str(folder)], check=True)
            subprocess.run(pip, check=True)
            version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            return f"dlt could not be installed ({error})"
        return cls(folder=folder, version=version)

    def load(self, dsn: str, file: Path) -> float:
        environment = {
            **os.environ,
            "DLT_DATA_DIR": str(self.folder / _database(dsn)),
            "RUNTIME__DLTHUB_TELEMETRY": "false",
            # It asks for a password, which the server does not.
            "DESTINATION__POSTGRES__CREDENTIALS": f"postgresql://postgres:none@{_LISTENING}:{_PORT}/{_database(dsn)}",
        }
        done = subprocess.run(
            [self.folder / "bin" / "python", "-c", _DLT, file.parent.as_uri(), file.name],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return float(done.stdout.split()[-1])


#: What dlt's documentation shows for files of JSON lines.
_DLT = """
import sys
from time import perf_counter

import dlt
from dlt.sources.filesystem import filesystem, read_jsonl

folder, name = sys.argv[1:]
pipeline = dlt.pipeline("bench", destination="postgres", dataset_name="public")
started = perf_counter()
files = filesystem(bucket_url=folder, file_glob=name) | read_jsonl()
pipeline.run(files.with_name("target")).raise_on_failed_jobs()
print(perf_counter() - started)
"""


def _run(dsn: str, statement: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)


def _database(dsn: str) -> str:
    return urlsplit(dsn).path.removeprefix("/")
