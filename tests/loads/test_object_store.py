"""Files in a store of objects, over HTTP: loaded as those of a disk are, and not read again to know that they are."""

import gzip
import io
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from onceload_core.errors import NotFound
from onceload_core.replay import Proof
from onceload_jobs.files import reading as opening
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.listing import Listing, list_files
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format
from onceload_jobs.plan import copies
from onceload_jobs.plan.copies import holds_what_was_loaded
from onceload_jobs.read import checked_parts as reading
from onceload_jobs.read.digests import digests_in
from onceload_jobs.read.parts import parts_of
from tests.loads.conftest import line
from tests.object_store import SECRET, object_store

pytestmark = pytest.mark.usually_staged

BUCKET = "landing"
#: No store takes smaller ones.
PART_BYTES = 5 * 2**20
#: What of a ledger has nothing to do with where its files are.
LEDGER = """
SELECT ledger.position, ledger.kind, ledger.loaded, ledger.duplicate, ledger.quarantined, ledger.bytes,
       span.producer, span.generation, CAST(span.spans AS text), span.rows, span.records, span.digest, span.size,
       span.condition
  FROM onceload.ledger JOIN onceload.ledger_span AS span USING (pipeline_id, position)
 WHERE pipeline_id = (SELECT pipeline_id FROM onceload.pipeline WHERE name = '{}') ORDER BY 1, 7"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with object_store(tmp_path_factory.mktemp("store") / "log") as store:
        yield store


@pytest.fixture
def store(server, monkeypatch):
    """An empty bucket that readers in this process find by the environment."""
    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    files = server.files()
    files.mkdir(BUCKET)
    yield files
    files.rm(BUCKET, recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def remote(loads, store):
    """The pipeline, with its files there."""
    source = replace(loads.declared.source, path=f"s3://{BUCKET}/in/**/*.jsonl*")
    return replace(loads, declared=replace(loads.declared, source=source))


def lines(*numbers):
    return "".join(map(line, numbers)).encode()


def put(store, name, content):
    store.pipe(f"{BUCKET}/in/{name}", content)


def named(loads, name, **of_source):
    """The same pipeline under another name, into another table."""
    declared = loads.declared
    return replace(
        loads,
        declared=replace(
            declared,
            pipeline=replace(declared.pipeline, name=name),
            source=replace(declared.source, **of_source),
            target=replace(declared.target, table=name),
        ),
    )


@contextmanager
def nothing_is_read(monkeypatch):
    """A process that asks for a byte of a file fails."""

    def refused(url, **_):
        raise AssertionError(f"{url} was read")

    with monkeypatch.context() as patched:
        for name in ("_read_remote", "_open_remote"):
            patched.setattr(opening, name, refused)
        yield


def test_the_same_files_give_the_same_ledger_and_rows_from_a_disk_and_from_a_store(loads, remote, store):
    """Cut into chunks, packed, with a bad record, grown: whatever they are, byte by byte."""
    first = {"2026/a.jsonl": lines(*range(300)), "b.jsonl.gz": gzip.compress(lines(1000, 1001)), "c.jsonl": b"{}\n"}
    then = {"2026/a.jsonl": lines(*range(400)), "d.jsonl": lines(2000)}
    ways = named(loads, "here", chunk_bytes=4096), named(remote, "there", chunk_bytes=4096)

    for files in (first, then, {}):
        for name, content in files.items():
            loads.write(name, content)
            put(store, name, content)
        here, there = (way.load(batch=f"batch {len(files)}") for way in ways)
        assert (here.loaded, here.quarantined, here.bytes) == (there.loaded, there.quarantined, there.bytes)

    here, there = (loads.ask(LEDGER.format(way.declared.name)) for way in ways)
    assert sum(entry[9] for entry in here) == 403
    assert here == there
    columns = "id, amount, note, _sequence"
    for one, other in (("here", "there"), ("there", "here")):
        assert loads.ask(f"SELECT {columns} FROM {one} EXCEPT ALL SELECT {columns} FROM {other}") == []


def test_a_loaded_object_is_known_by_the_stores_own_name_for_it_without_reading_a_byte(remote, store, monkeypatch):
    put(store, "a.jsonl", lines(1, 2))
    put(store, "b.jsonl.gz", gzip.compress(lines(3)))
    remote.load()

    with nothing_is_read(monkeypatch):
        again = remote.load()

    assert (again.loaded, again.notes) == (0, ())
    assert remote.rows() == [1, 2, 3]


def test_a_parquet_object_that_is_in_is_not_read_again(remote, store, monkeypatch):
    written = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2, 3]}), written)
    store.pipe(f"{BUCKET}/p/a.parquet", written.getvalue())
    source = replace(remote.declared.source, path=f"s3://{BUCKET}/p/*.parquet", format=Format.PARQUET)
    changes = {"source": source, "columns": (parse_column("id", "bigint"),)}
    remote.load(**changes)

    with nothing_is_read(monkeypatch):
        again = remote.load(**changes)

    assert (again.loaded, again.notes, remote.rows()) == (0, (), [1, 2, 3])


def test_an_object_that_grows_goes_on_at_the_exact_byte(remote, store):
    put(store, "a.jsonl", lines(1, 2)[:-3])
    first = remote.load()
    put(store, "a.jsonl", lines(1, 2, 3))

    second = remote.load()

    assert (first.loaded, second.loaded, second.bytes) == (1, 2, len(lines(2, 3)))
    assert remote.rows() == [1, 2, 3]


def test_an_object_rewritten_with_the_same_size_waits_for_a_person(remote, store):
    put(store, "a.jsonl", lines(1, 2))
    remote.load()
    put(store, "a.jsonl", lines(1, 3))

    report = remote.load()

    assert [note.needs_a_person for note in report.notes] == [True]
    assert remote.rows() == [1, 2]


def test_an_object_rewritten_with_the_same_content_is_the_same(remote, store):
    put(store, "a.jsonl", lines(1, 2))
    remote.load()
    put(store, "a.jsonl", lines(1, 2))

    assert (remote.load().notes, remote.rows()) == ((), [1, 2])


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_an_object_that_was_changed_between_its_ends_waits_for_a_person(remote, store, packing):
    """A disk could not show it without reading; a store reports that there is a change."""
    edge = lines(*range(200))
    pack = gzip.compress if packing else bytes
    name = f"a.jsonl{packing}"
    put(store, name, pack(edge + lines(1000) + edge))
    remote.load()
    put(store, name, pack(edge + lines(2000) + edge))

    report = remote.load()

    assert [note.needs_a_person for note in report.notes] == [True]
    assert 2000 not in remote.rows()


def test_a_parquet_object_that_was_changed_between_its_ends_waits_for_a_person(remote, store):
    source = replace(remote.declared.source, path=f"s3://{BUCKET}/p/*.parquet", format=Format.PARQUET)
    changes = {"source": source, "columns": (parse_column("id", "bigint"),)}
    for number in (2_500, 2_501):
        written = io.BytesIO()
        ids = [*range(2_500), number, *range(3_000, 6_000)]
        pq.write_table(pa.table({"id": ids}), written, compression="none", use_dictionary=False)
        store.pipe(f"{BUCKET}/p/a.parquet", written.getvalue())
        report = remote.load(**changes)

    assert [note.needs_a_person for note in report.notes] == [True]
    assert 2_501 not in remote.rows()


def test_an_object_whose_name_alone_is_another_is_the_same_and_is_read_once_to_know(remote, store, monkeypatch):
    """Uploaded in parts, it is called otherwise than in one piece."""
    content = lines(*range(10_000)) + b" " * 2 * PART_BYTES + b"\n"
    put(store, "a.jsonl", content)
    remote.load()
    (before,) = store.ls(f"{BUCKET}/in", detail=True)
    store.pipe(f"{BUCKET}/in/a.jsonl", content, chunksize=PART_BYTES)
    (after,) = store.ls(f"{BUCKET}/in", detail=True)

    report = remote.load()

    assert before["ETag"] != after["ETag"]
    assert (report.loaded, report.notes, len(remote.rows())) == (0, (), 10_000)
    with nothing_is_read(monkeypatch):
        again = remote.load()
    assert (again.loaded, again.notes, again.position) == (0, (), report.position)


def test_a_file_that_has_moved_into_a_store_is_read_once_to_know(loads, remote, store, monkeypatch):
    loads.write("a.jsonl", lines(1, 2))
    loads.load()
    put(store, "a.jsonl", lines(1, 2))
    source = replace(remote.declared.source, moved_from=str(loads.folder))

    moved = remote.load(source=source)
    with nothing_is_read(monkeypatch):
        again = remote.load(source=source)

    assert (moved.loaded, moved.notes, again.loaded, again.notes) == (0, (), 0, ())
    assert remote.rows() == [1, 2]


def test_an_object_that_grows_is_corrected_in_its_middle_and_waits_for_a_person(remote, store):
    """By its ends, its beginning is what was loaded; an object cannot be appended to without being rewritten."""
    edge = lines(*range(200))
    put(store, "a.jsonl", edge + lines(1000) + edge)
    remote.load()
    put(store, "a.jsonl", edge + lines(2000) + edge + lines(3000))

    report = remote.load()

    assert [note.needs_a_person for note in report.notes] == [True]
    assert {2000, 3000}.isdisjoint(remote.rows())


def test_a_parquet_object_of_which_a_part_is_in_is_the_same_under_another_name(remote, store):
    """A load that ended early has left fewer receipts than there are row groups."""
    written = io.BytesIO()
    pq.write_table(pa.table({"id": range(100)}), written, row_group_size=50)
    store.pipe(f"{BUCKET}/p/a.parquet", written.getvalue())
    source = replace(remote.declared.source, path=f"s3://{BUCKET}/p/*.parquet", format=Format.PARQUET)
    remote.load(source=source, columns=(parse_column("id", "bigint"),))
    ledger = remote.ledger
    ((producer_id, _),) = ledger.find(remote.declared.name, ["a.parquet"]).values()
    whole = ledger.proof_of(remote.declared.name, producer_id)
    assert len(digests_in(whole.digests)) == 2
    (listed,) = list_files(source.path).files
    declared = replace(remote.declared, source=source)

    for some in (slice(0, 32), slice(32, None)):
        part: Any = Proven(replace(whole, digests=whole.digests[some]))
        assert holds_what_was_loaded(declared, part, listed, producer_id)
    other: Any = Proven(replace(whole, digests=whole.digests[:-1] + b"!"))
    assert not holds_what_was_loaded(declared, other, listed, producer_id)


@dataclass
class Proven:
    """A ledger with such receipts."""

    proof: Proof

    def proof_of(self, pipeline, producer_id, *, end=None):
        return self.proof


def test_an_object_that_is_exchanged_while_it_is_read_is_not_taken_for_the_one_that_was_planned(
    remote, store, monkeypatch
):
    """Its first and last bytes are the same, so that its store alone can show it."""
    edge = lines(*range(200))
    put(store, "a.jsonl", edge + lines(1000) + edge)
    cut = parts_of

    def exchanged_behind(*arguments, **more):
        for part in cut(*arguments, **more):
            put(store, "a.jsonl", edge + lines(2000) + edge)
            yield part

    with monkeypatch.context() as patched:
        patched.setattr(reading, "parts_of", exchanged_behind)
        report = remote.load()

    assert (report.loaded, [note.is_unreadable for note in report.notes]) == (0, [True])
    assert remote.load().loaded == 401
    assert {1000, 2000}.intersection(remote.rows()) == {2000}


@contextmanager
def not_listed(monkeypatch, prefix, refusal):
    """A request to list the store gets an answer only elsewhere."""
    really = s3fs.S3FileSystem._iterdir

    def refused(self, bucket, **asked):
        if asked["prefix"] == prefix:
            raise refusal
        return really(self, bucket, **asked)

    with monkeypatch.context() as patched:
        patched.setattr(s3fs.S3FileSystem, "_iterdir", refused)
        yield


@pytest.mark.parametrize(("pattern", "prefix"), [("**/*.jsonl", "in/"), ("*/*.jsonl", "in/day2/")])
def test_a_store_that_stops_answering_during_its_listing_is_reported(remote, store, monkeypatch, pattern, prefix):
    """Half a listing would be a day of which the rest is never loaded."""
    put(store, "day1/a.jsonl", lines(1))
    put(store, "day2/b.jsonl", lines(2))
    source = replace(remote.declared.source, path=f"s3://{BUCKET}/in/{pattern}")

    with not_listed(monkeypatch, prefix, OSError("SlowDown")), pytest.raises(Unreadable, match="SlowDown"):
        remote.load(source=source)

    assert remote.load(source=source).loaded == 2


def test_a_folder_that_cannot_be_listed_is_reported_and_hides_no_other(remote, store, monkeypatch):
    put(store, "day1/a.jsonl", lines(1))
    put(store, "day2/b.jsonl", lines(2))
    source = replace(remote.declared.source, path=f"s3://{BUCKET}/in/*/*.jsonl")

    with not_listed(monkeypatch, "in/day2/", PermissionError("AccessDenied")):
        report = remote.load(source=source)

    assert [(note.is_unreadable, note.name) for note in report.notes] == [(True, "'day2/'")]
    assert remote.rows() == [1]
    assert remote.load(source=source).loaded == 1


@pytest.mark.parametrize("pattern", ["in/**/*.jsonl", "in/*/*.jsonl", "in/*.jsonl", "in/a.jsonl", "*.jsonl"])
def test_a_folder_that_nothing_has_come_to_yet_is_an_empty_listing(store, pattern):
    assert list_files(f"s3://{BUCKET}/{pattern}") == Listing(files=())


def test_an_object_that_is_called_otherwise_and_ends_within_a_line_is_compared_once(remote, store, monkeypatch):
    put(store, "a.jsonl", lines(1, 2))
    remote.load()
    put(store, "a.jsonl", lines(1, 2, 3)[:-3])

    noted = remote.load()
    copies._is_what_was_loaded.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(copies, "_ends_after", None)
        again = remote.load()

    assert (noted.loaded, again.loaded) == (0, 0)
    assert ["no newline" in note.reason for note in again.notes] == [True]


def test_frequent_looks_at_files_that_wait_for_a_person_do_not_read_them_each_time(remote, store, monkeypatch):
    put(store, "a.jsonl", lines(*range(200), 1000, *range(200)))
    remote.load()
    put(store, "a.jsonl", lines(*range(200), 2000, *range(200)))
    first = remote.load()

    with monkeypatch.context() as patched:
        patched.setattr(copies, "_ends_after", None)
        second = remote.load()

    assert [note.needs_a_person for note in (*first.notes, *second.notes)] == [True, True]


@pytest.mark.long
def test_more_objects_than_a_page_of_the_listing_holds(store):
    names = [f"day/{number:05}.jsonl" for number in range(1_100)]
    for name in names:
        put(store, name, b"")

    for pattern in ("**/*.jsonl", "*/*.jsonl"):
        assert [file.name for file in list_files(f"s3://{BUCKET}/in/{pattern}").files] == names


def test_an_object_whose_name_would_lead_to_another_one_is_refused(remote, store):
    """In an address `::` separates stores."""
    put(store, "a.jsonl", lines(1))
    for name in ("a.jsonl::b.jsonl", "2001:db8::1.jsonl", "s3://key@host.jsonl"):
        put(store, name, lines(2))

    report = remote.load()

    assert remote.rows() == [1]
    assert [("would change the address" in note.reason) for note in report.notes] == [True] * 3


def test_a_bucket_that_is_not_there_is_named(remote, store):
    source = replace(remote.declared.source, path="s3://no-such-bucket/in/*.jsonl")

    with pytest.raises(NotFound, match="no-such-bucket/in"):
        remote.load(source=source)


def test_a_store_that_does_not_answer_is_reported_and_loses_nothing(remote, store, server, monkeypatch):
    put(store, "a.jsonl", lines(1))
    with monkeypatch.context() as patched:
        s3fs.S3FileSystem.clear_instance_cache()
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        patched.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(Unreadable, match="Retry") as told:
            remote.load()
    s3fs.S3FileSystem.clear_instance_cache()

    assert SECRET not in str(told.value)
    assert remote.load().loaded == 1


def test_neither_ledger_nor_plan_nor_message_holds_the_key_of_a_store(remote, store, caplog):
    put(store, "a.jsonl", lines(1) + b"bad\n")

    remote.load()

    held = remote.ask("SELECT work FROM onceload.delivery") + remote.ask("SELECT * FROM onceload.ledger_span")
    assert SECRET not in repr(held) + caplog.text
