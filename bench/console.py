"""How long each page of the console takes, with 1,000 pipelines, a million files and ten million commits."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep

from fastapi.testclient import TestClient
from sqlalchemy import Engine, text

from bench.measured import Measured
from onceload import schema
from onceload.console.standalone import TokenAccess, make_standalone_app
from onceload.settings import Settings
from onceload_core.postgres import LedgerSettings, connect

_PIPELINES = 1_000
#: Half of everything belongs to one pipeline, the first.
_FILES_OF_FIRST, _FILES_OF_OTHERS = 500_000, 500
_COMMITS_OF_FIRST, _COMMITS_OF_OTHERS = 5_000_000, 5_000
_QUARANTINED = 100_000
_DAYS = 30
_GROW = (
    """
    INSERT INTO onceload.pipeline (name, position, producers, producers_max, islands_max, message_keep_days,
                                   snapshot_every_commits, snapshot_every_s, snapshots_kept)
    SELECT 'p' || number, CASE number WHEN 0 THEN :commits_of_first ELSE :commits_of_others END,
           CASE number WHEN 0 THEN :files_of_first ELSE :files_of_others END, 10000000, 1000, 7, 1000, 3600, 5
      FROM generate_series(0, :pipelines - 1) AS number
    """,
    """
    INSERT INTO onceload.producer (pipeline_id, name, consumed, size)
    SELECT pipeline_id, 'landing/2026-11-' || lpad(CAST(number % 30 AS text), 2, '0') || '/part-' || number || '.jsonl',
           int8multirange(int8range(0, 1000)), 1000
      FROM onceload.pipeline
     CROSS JOIN LATERAL generate_series(0, pipeline.producers - 1) AS number
    """,
    """
    INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, session, loaded, quarantined, bytes, committed_at)
    SELECT pipeline_id, number, 'load', 'scheduled__' || number / 10, 'session-' || number % 4, 100, number % 7, 1000,
           clock_timestamp() - interval '1 day' * :days * (pipeline.position - number) / pipeline.position
      FROM onceload.pipeline CROSS JOIN LATERAL generate_series(1, pipeline.position) AS number
    """,
    """
    INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows, digest,
                                      condition, records)
    SELECT ledger.pipeline_id, ledger.position, producer.producer_id, producer.name, 1,
           int8multirange(int8range(ledger.position / first.files * 100, ledger.position / first.files * 100 + 100)),
           100, '\\x00', 'open', 100
      FROM onceload.ledger
      JOIN (SELECT pipeline_id, min(producer_id) AS producer_id, count(*) AS files FROM onceload.producer
             GROUP BY pipeline_id) AS first USING (pipeline_id)
      JOIN onceload.producer ON producer.producer_id = first.producer_id + ledger.position % first.files
    """,
    """
    INSERT INTO onceload.quarantine (pipeline_id, position, producer_id, sequence_id, raw, column_name, reason)
    SELECT producer.pipeline_id, 1, producer.producer_id, 5, convert_to('{"amount": "x' || number || '"}', 'UTF8'),
           'amount', format('''x%s'' is not a valid numeric(10,2)', number)
      FROM generate_series(1, :quarantined) AS number
      JOIN (SELECT min(producer_id) AS producer_id FROM onceload.producer
             WHERE pipeline_id = (SELECT min(pipeline_id) FROM onceload.pipeline)) AS first ON true
      JOIN onceload.producer ON producer.producer_id = first.producer_id + number
    """,
)
_FILE = "landing/2026-11-10/part-10.jsonl"
#: Of the first pipeline: the question before a rewind needs it.
_PIPELINE = """\
pipeline: p0
source: {{path: "{folder}/landing/*.jsonl", format: jsonl}}
columns: {{amount: 'numeric(10,2)'}}
target: {{table: public.p0}}
"""
_FOUND_WITHIN_S = 120.0


def measure(dsn: str, *, repetitions: int) -> Iterator[tuple[str, Measured]]:
    engine = connect(LedgerSettings(dsn=dsn))
    schema.upgrade(engine)
    grow(engine)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "landing").mkdir()
        (Path(folder) / "p0.yaml").write_text(_PIPELINE.format(folder=folder))
        access = TokenAccess(engine, Settings(dsn=dsn), folder=Path(folder), token="bench", writes=True)
        client = TestClient(make_standalone_app(access, hosts=["testserver"]))
        client.get("/?token=bench").raise_for_status()
        _wait_for_file(client)
        yield from _measure_pages(engine, client, repetitions=repetitions)
    engine.dispose()


def _wait_for_file(client: TestClient) -> None:
    until = perf_counter() + _FOUND_WITHIN_S
    while not client.get("/load?pipeline=p0").is_success:
        if perf_counter() > until:
            raise TimeoutError("the console has not found the pipeline file")
        sleep(0.1)


def _measure_pages(engine: Engine, client: TestClient, *, repetitions: int) -> Iterator[tuple[str, Measured]]:
    with engine.begin() as connection:
        of_file = text("SELECT producer_id FROM onceload.producer WHERE name = :name ORDER BY producer_id LIMIT 1")
        producer_id = connection.execute(of_file, {"name": _FILE}).scalar_one()
    for path in _paths(producer_id):
        yield path, Measured(tuple(_milliseconds(client, path) for _ in range(repetitions)))


def grow(engine: Engine) -> None:
    binds = {
        "pipelines": _PIPELINES,
        "files_of_first": _FILES_OF_FIRST,
        "files_of_others": _FILES_OF_OTHERS,
        "commits_of_first": _COMMITS_OF_FIRST,
        "commits_of_others": _COMMITS_OF_OTHERS,
        "quarantined": _QUARANTINED,
        "days": _DAYS,
    }
    for statement in _GROW:
        with engine.begin() as connection:
            connection.execute(text(statement), binds)
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE"))


def _paths(producer_id: int) -> list[str]:
    return [
        "/",
        "/?page=20",
        "/?search=p99",
        "/pipeline?pipeline=p0",
        "/pipeline?pipeline=p0&before=2000000",
        "/files?pipeline=p0",
        "/files?pipeline=p0&after=landing/2026-11-20",
        "/files?pipeline=p0&search=part-499999",
        f"/file?pipeline=p0&name={_FILE}",
        f"/row?pipeline=p0&producer_id={producer_id}&sequence=100",
        "/run?pipeline=p0&batch=scheduled__400000",
        "/quarantine?pipeline=p0",
        "/quarantine?pipeline=p0&kind=%E2%80%A6%20is%20not%20a%20valid%20numeric(10,2)",
        "/attention?pipeline=p0",
        "/quality?pipeline=p0",
        "/snapshots?pipeline=p0",
        "/declaration?pipeline=p0",
        # The last thousand commits, the last hundred thousand, and all; these are counted only if the user asks for it.
        f"/rewind?pipeline=p0&position={_COMMITS_OF_FIRST - 1_000}",
        f"/rewind?pipeline=p0&position={_COMMITS_OF_FIRST - 100_000}",
        "/rewind?pipeline=p0&position=0",
        "/rewind?pipeline=p0&position=0&count=yes",
    ]


def _milliseconds(client: TestClient, path: str) -> float:
    started = perf_counter()
    client.get(path).raise_for_status()
    return (perf_counter() - started) * 1000
