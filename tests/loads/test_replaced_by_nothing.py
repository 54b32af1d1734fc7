"""A rewritten file without a good record replaces loaded rows only if a user asks for it."""

import gzip
import io
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from onceload.choices import chosen
from onceload_core.errors import ExitCode
from onceload_core.names import Batch, Position
from onceload_core.postgres import LedgerSettings
from onceload_core.replay import replay
from onceload_jobs.files.notes import code_of
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, Format, OnRewrite, Publish
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess

pytestmark = pytest.mark.parametrize("publish", [Publish.STAGED])


def _parquet(*ids):
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
    return sink.getvalue()


CSV, JSONL, PARQUET = b"id\n1\n2\n", b'{"id": 1}\n{"id": 2}\n', _parquet(1, 2)
ONE_LINE, MULTILINE = CsvOptions(), CsvOptions(multiline=True)


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A file that had the ids 1 and 2, and what it holds now."""

    name: str
    format: Format
    before: bytes
    now: bytes
    csv: CsvOptions = ONE_LINE

    def __str__(self):
        return f"{self.name} of {len(self.now)} bytes{', multiline' if self.csv.multiline else ''}"


#: Some have no record, and some have only bad ones.
REWRITTEN = [
    Rewritten(name="a.csv", format=Format.CSV, before=CSV, now=b"id\n"),
    Rewritten(name="a.csv", format=Format.CSV, before=CSV, now=b""),
    Rewritten(name="a.csv", format=Format.CSV, before=CSV, now=b"id\n", csv=MULTILINE),
    Rewritten(name="a.csv", format=Format.CSV, before=CSV, now=b"", csv=MULTILINE),
    Rewritten(name="a.csv.gz", format=Format.CSV, before=gzip.compress(CSV), now=gzip.compress(b"id\n")),
    Rewritten(name="a.csv.gz", format=Format.CSV, before=gzip.compress(CSV), now=b""),
    Rewritten(name="a.jsonl", format=Format.JSONL, before=JSONL, now=b"\n"),
    Rewritten(name="a.jsonl", format=Format.JSONL, before=JSONL, now=b""),
    Rewritten(name="a.jsonl", format=Format.JSONL, before=JSONL, now=b"<html>502 Bad Gateway</html>\n"),
    Rewritten(name="a.jsonl.gz", format=Format.JSONL, before=gzip.compress(JSONL), now=gzip.compress(b"\n")),
    Rewritten(name="a.jsonl.gz", format=Format.JSONL, before=gzip.compress(JSONL), now=gzip.compress(b"")),
    Rewritten(name="a.parquet", format=Format.PARQUET, before=PARQUET, now=_parquet()),
]
EMPTY = Rewritten(name="a.jsonl", format=Format.JSONL, before=JSONL, now=b"")
PACKED = Rewritten(
    name="a.jsonl.zst",
    format=Format.JSONL,
    before=zstandard.compress(JSONL),
    now=zstandard.compress(b'{"id": 3}\n'),
)


def rewritten(loads, file, on_rewrite):
    """A pipeline whose only file was loaded, and then rewritten."""
    source = replace(loads.declared.source, path=str(loads.folder / "*"), format=file.format, csv=file.csv)
    columns = (parse_column("id", "bigint"),)
    loads.declared = replace(loads.declared, source=source, columns=columns, on_rewrite=on_rewrite)
    loads.write(file.name, file.before)
    loads.load()
    loads.write(file.name, file.now)
    return loads


def load_again(loads, *files, replaces=False, accepted=False, publishes=True, batch=None, executor=None):
    settings = LoadSettings(
        ledger=LedgerSettings(dsn=loads.dsn),
        wait_s=0,
        publishes=publishes,
        choice=chosen(loads.declared, files=files, replaces=replaces),
        differences_accepted=accepted,
    )
    return load(loads.declared, settings, batch=batch or new_batch(), executor=executor or InThisProcess())


def delete_rows(loads, file):
    """As the note about the file says."""
    return load_again(loads, file.name, replaces=True, accepted=True)


def is_sound(loads):
    states = loads.ledger.states("events").states
    return replay({}, loads.ledger.entries("events", after=Position(0))) == states and not (
        verify(loads.declared, loads.engine, deep=True).differing
    )


def differing(loads):
    return {each.kind for each in verify(loads.declared, loads.engine, deep=True).differences}


@pytest.mark.parametrize(
    ("file", "on_rewrite"),
    [*((file, OnRewrite.REPLACE) for file in REWRITTEN), (REWRITTEN[0], OnRewrite.STOP), (EMPTY, OnRewrite.STOP)],
    ids=str,
)
def test_a_file_without_a_good_record_replaces_nothing(loads, file, on_rewrite):
    loads = rewritten(loads, file, on_rewrite)

    for _ in range(2):
        report = load_again(loads, replaces=on_rewrite is OnRewrite.STOP)
        (note,) = report.notes
        assert (note.name, code_of(report.notes, is_idle=True)) == (file.name, ExitCode.NEEDS_A_PERSON)
        assert "Its loaded rows stay and are not replaced" in note.reason
        assert f"--only={file.name} --replace --accept-differences" in note.reason
        assert (report.records, report.position, loads.rows()) == (0, 1, [1, 2])
    of_waiting = differing(loads)
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.STOP)
    assert code_of(loads.load().notes) is ExitCode.NEEDS_A_PERSON
    # The rows are those of the earlier content, as of every rewritten file that waits for a person.
    assert of_waiting == differing(loads)
    loads.write(file.name, file.before)
    assert (loads.load().notes, is_sound(loads)) == ((), True)


class Late(InThisProcess):
    """Workers that read after something has happened to a file."""

    def __init__(self, happen):
        self._happen = happen

    def begins(self):
        self._happen()


@pytest.mark.parametrize("publishes", [True, False], ids=["one call", "two calls"])
@pytest.mark.parametrize("happens", ["it is deleted", "it breaks off before its first record"])
def test_a_file_of_which_workers_read_nothing_replaces_nothing(loads, happens, publishes):
    loads = rewritten(loads, PACKED, OnRewrite.REPLACE)
    loads.write("b.jsonl", b'{"id": 4}\n')
    path = loads.folder / PACKED.name

    def happen():
        path.unlink(missing_ok=True) if happens == "it is deleted" else path.write_bytes(PACKED.now[:1])

    batch = new_batch()
    report = load_again(loads, publishes=publishes, batch=batch, executor=Late(happen))
    if not publishes:
        publish_batch(loads.declared, LoadSettings(ledger=LedgerSettings(dsn=loads.dsn)), batch=batch)

    assert [note.name for note in report.notes] == [PACKED.name]
    assert "Its loaded rows stay and are not replaced" in report.notes[0].reason
    assert loads.rows() == [1, 2, 4]
    path.write_bytes(PACKED.now)
    assert (load_again(loads).notes, loads.rows(), is_sound(loads)) == ((), [3, 4], True)


@pytest.mark.parametrize("file", [*REWRITTEN[1:6], *REWRITTEN[7:9], REWRITTEN[-1]], ids=str)
def test_a_user_may_let_a_file_without_a_good_record_replace_rows(loads, file):
    loads = rewritten(loads, file, OnRewrite.STOP)

    report = delete_rows(loads, file)

    assert (report.loaded, report.notes, loads.rows()) == (0, (), [])
    assert is_sound(loads)
    assert (loads.load().records, loads.load().notes) == (0, ())
    loads.write(file.name, file.before)
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.REPLACE)
    assert (loads.load().loaded, loads.rows(), loads.load().records) == (2, [1, 2], 0)
    assert is_sound(loads)


def test_other_files_are_loaded_beside_one_without_a_good_record(loads):
    loads = rewritten(loads, REWRITTEN[8], OnRewrite.REPLACE)
    loads.write("b.jsonl", b'{"id": 3}\nno json\n')

    staged = load_again(loads, publishes=False, batch=Batch("one"))
    report = publish_batch(loads.declared, LoadSettings(ledger=LedgerSettings(dsn=loads.dsn)), batch=Batch("one"))

    assert (staged.staged, report.loaded, report.quarantined, loads.rows()) == (1, 1, 1, [1, 2, 3])
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("a.jsonl", True)]


def test_a_file_that_had_no_record_may_be_replaced_by_one_without_records(loads):
    file = Rewritten(name="a.csv", format=Format.CSV, before=b"id,more\n", now=b"id\n")
    loads = rewritten(loads, file, OnRewrite.REPLACE)

    assert (loads.load().notes, is_sound(loads)) == ((), True)


@pytest.mark.parametrize("content", [JSONL, b'{"id": 7}\n'], ids=["the same", "another"])
def test_a_file_whose_rows_were_deleted_is_loaded_again_after_a_rewind(loads, content):
    loads = rewritten(loads, EMPTY, OnRewrite.REPLACE)
    delete_rows(loads, EMPTY)
    loads.write("a.jsonl", content)
    loads.load()
    rows = loads.rows()
    rewind(loads.declared, loads.engine, to=Position(2), dry_run=False)

    report = loads.load()

    assert (report.notes, loads.rows()) == ((), rows)
    assert is_sound(loads)
    assert load_again(loads, replaces=True).loaded == len(rows)
    assert loads.rows() == rows
