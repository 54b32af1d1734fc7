"""Others that load the same rows, each in its own usual way; none of them knows what was loaded before."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import psycopg2

from bench.events import COLUMNS, DDL
from bench.measured import check_equal
from onceload.embedded import binaries
from onceload_jobs.pipeline.columns import arrow_schema, parse_column
from onceload_jobs.read.parts import cuts

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
class Environment:
    """A Python of its own, with the packages of one other loader."""

    python: Path
    #: The version of its first package.
    version: str

    @classmethod
    def installed(cls, folder: Path, package: str, *more: str) -> "Environment | str":
        """Install packages below the folder; if that fails, return the reason."""
        python = folder / "bin" / "python"
        name = package.partition("[")[0]
        uv = [sys.executable, "-m", "uv"]
        asked = [str(python), "-c", f"from importlib.metadata import version; print(version({name!r}))"]
        try:
            subprocess.run([*uv, "venv", "--quiet", folder], check=True)
            subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, package, *more], check=True)
            version = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            return f"{name} could not be installed ({error})"
        return cls(python=python, version=version)


def dlt(dsn: str, file: Path, *, environment: Environment) -> float:
    """Dlt with its defaults."""
    variables = {
        **os.environ,
        "DLT_DATA_DIR": str(environment.python.parents[1] / _database(dsn)),
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        # It asks for a password, which the server does not.
        "DESTINATION__POSTGRES__CREDENTIALS": f"postgresql://postgres:none@{_LISTENING}:{_PORT}/{_database(dsn)}",
    }
    done = subprocess.run(
        [environment.python, "-c", _DLT, file.parent.as_uri(), file.name],
        env=variables,
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


def adbc(dsn: str, file: Path, *, environment: Environment) -> float:
    """ADBC from two processes, half of the file for each; answers with the seconds from when both are ready."""
    _run(dsn, f"CREATE TABLE target ({DDL})")
    schema = arrow_schema(tuple(parse_column(*each) for each in COLUMNS.items())).serialize().to_pybytes().hex()
    size = file.stat().st_size
    halves = cuts(str(file), first=0, end=size, chunk_bytes=(size + 1) // 2, record_bytes_max=size)
    with ExitStack() as running:
        processes = [
            running.enter_context(
                subprocess.Popen(
                    [environment.python, "-c", _ADBC, dsn, file, str(first), str(end), schema],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for first, end in halves
        ]
        _expect("ready", processes)
        started = perf_counter()
        for process in processes:
            print("go", file=process.stdin, flush=True)
        _expect("done", processes)
        return perf_counter() - started


def _expect(word: str, processes: Sequence["subprocess.Popen[str]"]) -> None:
    for process in processes:
        check_equal("line from ADBC", found=process.stdout and process.stdout.readline().strip(), expected=word)


#: Arrow's reader parses the next batch while the driver sends the last one.
_ADBC = """
import sys

import pyarrow as pa
import pyarrow.json as pj
from adbc_driver_postgresql import dbapi

address, path, first, end, schema = sys.argv[1:]
parsing = pj.ParseOptions(explicit_schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema))))
reading = pj.ReadOptions(block_size=2**24)
with dbapi.connect(address) as connection, connection.cursor() as cursor, pa.memory_map(path) as file:
    print("ready", flush=True)
    input()
    file.seek(int(first))
    half = pa.BufferReader(file.read_buffer(int(end) - int(first)))
    rows = pj.open_json(half, read_options=reading, parse_options=parsing)
    cursor.adbc_ingest("target", rows, mode="append")
    connection.commit()
    print("done", flush=True)
"""


def _run(dsn: str, statement: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)


def _database(dsn: str) -> str:
    return urlsplit(dsn).path.removeprefix("/")
