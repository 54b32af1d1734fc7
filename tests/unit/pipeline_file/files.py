"""Pipeline files for the tests: a plain one, and changes to it."""

from pathlib import Path

import pytest

from onceload.pipeline_file import PipelineFileRefused, read_pipeline
from onceload_core.errors import OnceloadError
from onceload_jobs.pipeline.declared import Declared

ROOT = Path(__file__).parents[3]
SAMPLES = tuple(sorted((ROOT / "pipelines").glob("*.yaml")))

#: Sixteen lines, so that added text is on line 17.
PLAIN = """\
pipeline: events
source:
  path: in/*.csv
  format: csv
  options:
    header: true
columns:
  id: bigint not null
  device: text
  seq: bigint
  gone: boolean
  amount: numeric(12,2)
target:
  table: public.events
  write: append
publish: staged
"""

#: Says something for every key.
WHOLE = r"""
pipeline: events
source:
  path: s3://landing/{{ ds }}/{{region}}/*.csv.gz
  format: csv
  options: {header: no, delimiter: "\t", quote: "'", escape: \, null: NA, multiline: true, missing_columns: ignore}
  identity: content
  sealed: 10m
  chunk_bytes: 32MB
  record_bytes_max: 1 MiB
columns: {id: text not null, device: text, seq: int8, gone: boolean}
unknown_fields: fail
on_new_column: add
producer: {name: device, sequence: seq, order: ordered}
message_id: {columns: [id, device], keep: 30d}
transform: SELECT * FROM records
target: {table: '"my schema"."a ""t"" b"', write: merge, key: [id], deleted: gone, lineage: false}
publish: staged
delivery: {mode: session, sessions: 3, ack_deadline: 10m, deliveries_max: 7, open_max: 9}
on_rewrite: new_generation
quality: {quarantined_max: 0.1%}
guarantee: at_least_once
snapshot: {every_commits: 10, every: 30s, kept: 3}
schedule: "*/5 * * * *"
limits: {producers_max: 5, islands_max: 6, forget_idle_after: 1d}
"""


def plain(*changes: tuple[str, str], added: str = "") -> str:
    """The plain file with parts of it exchanged, and lines added at its end."""
    content = PLAIN
    for old, new in changes:
        assert content.count(old) == 1, old
        content = content.replace(old, new)
    return content + added


def read(folder: Path, content: str | bytes, **values: str) -> Declared:
    path = folder / "p.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_pipeline(path, values=values)


def problems_of(folder: Path, content: str | bytes, **values: str) -> list[str]:
    """The problems of a file, each as `line: place: words`."""
    with pytest.raises(OnceloadError) as refused:
        read(folder, content, **values)
    assert isinstance(refused.value, PipelineFileRefused)
    start = f"{folder / 'p.yaml'}:"
    assert all(problem.startswith(start) for problem in refused.value.problems)
    return [problem.removeprefix(start) for problem in refused.value.problems]
