"""Which files a pattern means, and which of them should not be read."""

import errno
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import pytest

from onceload_core.errors import NotFound, SettingRefused
from onceload_jobs.files import listing
from onceload_jobs.files.fingerprints import Fingerprint, Resemblance, compare, fingerprint_of
from onceload_jobs.files.listing import Listed, list_files, root_of


def names(pattern: str | Path) -> list[str]:
    return [file.name for file in list_files(str(pattern)).files]


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"one\n")


@pytest.fixture
def memory():
    """A store of fsspec that is not the local one, empty before and after."""
    backend = fsspec.filesystem("memory")
    backend.store.clear()
    yield backend
    backend.store.clear()


@pytest.mark.parametrize(
    ("pattern", "root"),
    [
        ("landing/events/**/*.jsonl", "landing/events"),
        ("landing/2026-??/a.csv", "landing"),
        ("landing/a[0-9].csv", "landing"),
        ("landing/a.csv", "landing"),
        ("/*.csv", "/"),
        ("*.csv", "."),
        ("a.csv", "."),
        ("landing/old/../new/*.csv", "landing/new"),
        ("../landing/*.csv", "../landing"),
        ("file:///landing/*.csv", "/landing"),
        ("s3://bucket/a/../b/*.gz", "s3://bucket/b"),
        ("s3://bucket/*.gz", "s3://bucket"),
        ("simplecache::s3://bucket/in/*.gz", "simplecache::s3://bucket/in"),
    ],
)
def test_the_root_is_the_folder_before_the_first_wildcard(pattern, root):
    assert root_of(pattern) == root


@pytest.mark.parametrize(
    ("root", "pattern", "expected"),
    [
        ("landing", "landing/d1/*.csv", ["d1/a.csv"]),
        ("landing", "landing/d1/a.csv", ["d1/a.csv"]),
        ("landing", "landing/d1/**/*.csv", ["d1/a.csv", "d1/below/b.csv"]),
        ("landing", "landing/*/a.csv", ["d1/a.csv", "d2/a.csv"]),
        ("landing", "landing/d3/*.csv", []),
        ("landing/d1", "landing/d1/below/*.csv", ["below/b.csv"]),
    ],
)
def test_names_start_below_the_root_that_is_given(tmp_path, memory, root, pattern, expected):
    files = ("landing/d1/a.csv", "landing/d1/below/b.csv", "landing/d2/a.csv")
    write(tmp_path, *files)
    for file in files:
        memory.pipe_file(f"/{file}", b"one\n")

    for store in (f"{tmp_path}/", "memory://"):
        listed = list_files(store + pattern, root=store + root).files
        assert [file.name for file in listed] == expected
        assert [file.url for file in listed] == [f"{store}{root}/{name}" for name in expected]


@pytest.mark.parametrize(
    ("root", "pattern", "name"),
    [(".", "d1/*.csv", "d1/a.csv"), ("../in", "../in/d1/a.csv", "d1/a.csv"), ("/", "{}/in/d1/*.csv", "{}/in/d1/a.csv")],
)
def test_any_root_may_be_given_that_leads_to_the_files(tmp_path, monkeypatch, root, pattern, name):
    write(tmp_path, "in/d1/a.csv")
    monkeypatch.chdir(tmp_path / "in")

    (listed,) = list_files(pattern.format(tmp_path), root=root).files

    assert (listed.name, listed.url) == (name.format(tmp_path).removeprefix("/"), f"{tmp_path}/in/d1/a.csv")


@pytest.mark.parametrize("root", ["other", "s3://landing", "landing/below"])
def test_a_pattern_that_leads_out_of_its_root_is_refused(root):
    with pytest.raises(SettingRefused, match=r"source\.path: .*Expected a pattern of files below"):
        list_files("landing/*.csv", root=root)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl"]),
        ("*", ["a.jsonl", "b.csv"]),
        ("**", ["2026/10/c.jsonl", "2026/d.jsonl", "a.jsonl", "b.csv"]),
        ("**/*.jsonl", ["2026/10/c.jsonl", "2026/d.jsonl", "a.jsonl"]),
        ("2026/**/c.jsonl", ["10/c.jsonl"]),
        ("20??/*.jsonl", ["2026/d.jsonl"]),
        ("**/10/**", ["2026/10/c.jsonl"]),
        ("[!a]*", ["b.csv"]),
        ("b.csv", ["b.csv"]),
        ("c.csv", []),
        (".*", [".a.jsonl.tmp"]),
        ("**/.hidden/*", ["2026/.hidden/e.jsonl"]),
    ],
)
def test_a_pattern_means_the_same_files_here_and_in_a_store(tmp_path, memory, pattern, expected):
    files = ("a.jsonl", "b.csv", ".a.jsonl.tmp", "2026/d.jsonl", "2026/10/c.jsonl", "2026/.hidden/e.jsonl")
    write(tmp_path, *files)
    for file in files:
        memory.pipe_file(f"/landing/{file}", b"one\n")

    assert names(tmp_path / pattern) == expected
    assert names(f"memory://landing/{pattern}") == expected


def test_a_file_is_listed_with_all_that_its_folder_says_of_it(tmp_path):
    write(tmp_path, "in/a.csv")
    os.utime(tmp_path / "in" / "a.csv", (1_700_000_000, 1_700_000_000))

    listing = list_files(f"{tmp_path}/*/a.csv")

    assert listing.files == (Listed("in/a.csv", f"{tmp_path}/in/a.csv", 4, 1_700_000_000),)


def test_a_relative_pattern_gives_urls_that_hold_in_every_process(tmp_path, monkeypatch):
    write(tmp_path, "in/a.csv")
    monkeypatch.chdir(tmp_path)

    assert [file.url for file in list_files("in/*.csv").files] == [f"{tmp_path}/in/a.csv"]


def test_a_file_in_a_store_is_read_by_the_url_it_is_listed_with(memory):
    memory.pipe_file("/landing/a.csv", b"one\n")

    (file,) = list_files("memory://landing/*.csv").files

    assert (file.url, file.size) == ("memory://landing/a.csv", 4)


class _WebServer(BaseHTTPRequestHandler):
    """Lists two files without their sizes, and reports the size of one of them when it is asked for."""

    def do_GET(self):
        self._answer(b'<a href="a.csv">a.csv</a> <a href="b.csv">b.csv</a>', length=None)

    def do_HEAD(self):
        self._answer(b"", length=4 if self.path.endswith("/a.csv") else None)

    def _answer(self, body, *, length):
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


def test_a_web_server_is_asked_for_the_sizes_that_it_does_not_list():
    with ThreadingHTTPServer(("127.0.0.1", 0), _WebServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/in"
        listing = list_files(f"{url}/*.csv")
        server.shutdown()

    assert [(file.name, file.url, file.size) for file in listing.files] == [("a.csv", f"{url}/a.csv", 4)]
    assert listing.unreadable == (("b.csv", "its server does not report its size"),)


def test_a_link_to_a_folder_of_a_server_is_not_followed(memory, monkeypatch):
    """It would lead to the same files under another name; an SFTP server reports links, and follows them."""
    memory.pipe_file("/landing/day/a.csv", b"one\n")
    really = memory.ls

    def ls(path, **asked):
        if path.rstrip("/") == "/landing/latest":
            return [{"name": "/landing/latest/a.csv", "type": "file", "size": 4}]
        links = [{"name": "/landing/latest", "type": "link", "size": 0}] if path == "/landing" else []
        return [*really(path, **asked), *links]

    monkeypatch.setattr(memory, "ls", ls)

    for pattern in ("**/*.csv", "*/*.csv"):
        assert names(f"memory://landing/{pattern}") == ["day/a.csv"]


def test_an_empty_folder_is_an_empty_listing(tmp_path):
    assert list_files(f"{tmp_path}/*.csv").files == ()


@pytest.mark.parametrize("pattern", ["{}/nowhere/*.csv", "memory://nowhere/*.csv"])
def test_a_root_that_is_not_there_is_named(tmp_path, memory, pattern):
    with pytest.raises(NotFound, match="nowhere"):
        list_files(pattern.format(tmp_path))


@pytest.mark.parametrize(
    "pattern", ["{}/a.csv/*", "{}/folder", "{}/folder/", "{}/x**/a", "nosuch://a/*", "", "s3://.."]
)
def test_a_pattern_that_cannot_be_meant_is_refused(tmp_path, pattern):
    write(tmp_path, "a.csv", "folder/b.csv")

    with pytest.raises(SettingRefused, match=r"source\.path"):
        list_files(pattern.format(tmp_path))


def test_a_password_in_a_url_is_in_no_message():
    with pytest.raises(SettingRefused) as caught:
        list_files("nosuch://somebody:secret@host/*.csv")

    assert "secret" not in str(caught.value)


def test_names_that_no_ledger_could_hold_are_refused_one_by_one(tmp_path):
    write(tmp_path, "good.csv")
    for name in (b"caf\xe9.csv", b"two\nlines.csv"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")

    listing = list_files(f"{tmp_path}/*.csv")

    assert [file.name for file in listing.files] == ["good.csv"]
    assert listing.misnamed == (
        ("caf\udce9.csv", "its name is not valid UTF-8"),
        ("two\nlines.csv", "its name contains a NUL or a newline"),
    )


def test_a_name_that_is_longer_than_the_ledger_keeps_is_refused_alone(tmp_path):
    deep = tmp_path.joinpath(*["d" * 250] * 7)
    write(tmp_path, "good.csv")
    deep.mkdir(parents=True)
    (deep / f"{'l' * 247}.csv").write_bytes(b"")

    listing = list_files(f"{tmp_path}/**/*.csv")

    assert [file.name for file in listing.files] == ["good.csv"]
    assert [why for _, why in listing.misnamed] == ["its name has 2008 bytes; at most 2000 are allowed"]


def test_symbolic_links_stay_below_the_root(tmp_path):
    write(tmp_path, "outside/a.csv", "root/b.csv", "root/folder/c.csv")
    root = tmp_path / "root"
    (root / "near.csv").symlink_to("b.csv")
    (root / "away.csv").symlink_to(tmp_path / "outside" / "a.csv")
    (root / "awry").symlink_to(tmp_path / "outside")
    (root / "round").symlink_to(root)
    (root / "dangling.csv").symlink_to("nothing")

    listing = list_files(f"{root}/**/*.csv")

    assert [file.name for file in listing.files] == ["b.csv", "folder/c.csv", "near.csv"]
    assert [name for name, _ in listing.refused] == ["away.csv", "awry", "round"]


def test_the_names_of_one_file_are_reported_and_first_those_that_are_not_symbolic_links(tmp_path):
    write(tmp_path, "disk/b.csv", "disk/f/c.csv", "disk/alone.csv", "disk/elsewhere")
    (tmp_path / "landing").symlink_to("disk")
    root = tmp_path / "landing"
    (root / "a.csv").symlink_to("b.csv")
    os.link(root / "f" / "c.csv", root / "d.csv")
    (root / "0.csv").symlink_to("f/c.csv")
    os.link(root / "elsewhere", root / "only.csv")
    (root / "y.csv").symlink_to("elsewhere")

    groups = list_files(f"{root}/**/*.csv").names_of_one

    assert [[each.name for each in group] for group in groups] == [
        ["b.csv", "a.csv"],
        ["d.csv", "f/c.csv", "0.csv"],
        ["only.csv", "y.csv"],
    ]
    assert list_files(f"{root}/f/*.csv", root=str(root)).names_of_one == ()


def test_folders_that_a_pattern_of_files_means_are_reported(tmp_path):
    write(tmp_path, "a.csv/b.csv", "c/d.csv")

    assert list_files(f"{tmp_path}/*.csv").folders == ("a.csv",)
    assert list_files(f"{tmp_path}/**/*.csv").folders == ("a.csv",)


def test_the_root_itself_may_be_a_symbolic_link(tmp_path):
    write(tmp_path, "disk/a.csv")
    (tmp_path / "landing").symlink_to("disk")

    assert names(tmp_path / "landing" / "*.csv") == ["a.csv"]


def test_a_file_that_its_disk_does_not_show_may_be_readable_later(tmp_path, monkeypatch):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).touch()
    fault_of = listing._fault_of

    def failing(name: str) -> str | None:
        if name == "a.csv":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return fault_of(name)

    monkeypatch.setattr(listing, "_fault_of", failing)
    found = list_files(f"{tmp_path}/*.csv")

    assert [name for name, _ in found.unreadable] == ["a.csv"]
    assert [each.name for each in found.files] == ["b.csv"]


def test_a_file_that_would_block_its_reader_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")

    assert list_files(f"{tmp_path}/*.csv").refused == (("pipe.csv", "it is not a regular file, so it is not loaded"),)


def test_a_link_in_a_circle_hides_no_other_file(tmp_path):
    write(tmp_path, "a.csv")
    (tmp_path / "circle.csv").symlink_to("circle.csv")

    listing = list_files(f"{tmp_path}/*.csv")

    assert [file.name for file in listing.files] == ["a.csv"]
    assert [name for name, _ in listing.refused] == ["circle.csv"]


def test_a_file_that_vanishes_while_its_folder_is_read_was_never_there(tmp_path, monkeypatch):
    write(tmp_path, "a.csv", "b.csv")
    regular = os.scandir

    class Late:
        """A folder as it was when it was opened, though one of its files is gone by now."""

        def __init__(self, folder):
            with regular(folder) as entries:
                self.entries = list(entries)
            (tmp_path / "a.csv").unlink()

        def __enter__(self):
            return self.entries

        def __exit__(self, *ended):
            return None

    monkeypatch.setattr(os, "scandir", Late)

    assert names(tmp_path / "*.csv") == ["b.csv"]


def test_ten_thousand_known_files_are_listed_and_compared(tmp_path):
    for number in range(10_000):
        (tmp_path / f"{number:05}.jsonl").write_bytes(b'{"event": %d}\n' % number * 400)
    known = {
        file.name: Fingerprint.from_bytes(fingerprint_of(file.url, end=file.size).to_bytes())
        for file in list_files(f"{tmp_path}/*.jsonl").files
    }

    begun = time.perf_counter()
    files = list_files(f"{tmp_path}/*.jsonl").files
    listed_s = time.perf_counter() - begun
    found = {compare(file, known[file.name], consumed_end=file.size) for file in files}
    print(f"10 000 files: listed in {listed_s:.3f} s, with compare {time.perf_counter() - begun:.3f} s")

    assert found == {Resemblance.SAME}
