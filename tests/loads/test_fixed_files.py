"""Fixed-width files grow, are packed, rewritten and cut off as other files of lines are."""

import gzip
from dataclasses import replace

import pytest

from onceload_jobs.pipeline.declared import FixedOptions, Format, Identity, OnRewrite, Place
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads

pytestmark = pytest.mark.usually_staged

PLACES = tuple(
    Place(column=column, first=first, end=end)
    for column, first, end in (("id", 0, 8), ("amount", 8, 16), ("note", 16, 20))
)


@pytest.fixture
def loads(loads: Loads) -> Loads:
    source = replace(
        loads.declared.source,
        path=str(loads.folder / "*.txt*"),
        format=Format.FIXED,
        fixed=FixedOptions(places=PLACES),
    )
    loads.declared = replace(loads.declared, source=source)
    return loads


def line(number: int, amount: str = "1.50", note: str = "x") -> str:
    return f"{number:08}{amount:>8}{note:<4}\n"


def lines(first: int, end: int) -> bytes:
    return "".join(line(number) for number in range(first, end)).encode()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_that_grows_is_loaded_from_where_it_ended(loads, suffix):
    pack = gzip.compress if suffix else bytes
    path = loads.write(f"a.txt{suffix}", pack(b"\xef\xbb\xbf" + lines(0, 100) + b"000"))

    first = loads.load()
    path.write_bytes(pack(b"\xef\xbb\xbf" + lines(0, 250)))
    second, third = loads.load(), loads.load()

    assert [each.loaded for each in (first, second, third)] == [100, 150, 0]
    assert loads.rows() == [*range(250)]
    assert loads.rows("_sequence")[:3] == [0, 24, 45]


def test_many_chunks_of_a_file_are_loaded_once_and_verified(loads):
    loads.write("a.txt", lines(0, 5_000))

    report = loads.load(source=replace(loads.declared.source, chunk_bytes=10_000))
    found = verify(loads.declared, loads.engine, deep=True)

    assert (report.loaded, loads.load().loaded) == (5_000, 0)
    assert (found.differences, found.rows_compared) == ((), 5_000)


def test_a_line_that_was_cut_off_is_bad_even_if_the_file_is_complete(loads):
    loads.write("a.txt", lines(0, 12) + line(12, amount="1250.00").encode()[:12])

    report = loads.load(source=replace(loads.declared.source, sealed_after_s=0))

    assert (report.loaded, report.quarantined) == (12, 1)
    ((reason, raw),) = loads.ask("SELECT reason, raw FROM onceload.quarantine")
    assert (reason, bytes(raw)) == (
        "the line has 12 characters, but its last column ends at character 20",
        b"00000012 125",
    )


@pytest.mark.parametrize(("rewrite", "ids"), [(OnRewrite.STOP, [0, 1]), (OnRewrite.NEW_GENERATION, [0, 1, 5, 6])])
def test_a_file_that_is_rewritten_is_not_taken_for_one_that_grew(loads, rewrite, ids):
    loads.declared = replace(loads.declared, on_rewrite=rewrite)
    path = loads.write("a.txt", lines(0, 2))
    loads.load()
    path.write_bytes(lines(5, 7))

    loads.load()

    assert loads.rows() == ids


def test_a_copy_of_a_file_is_recognised(loads):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    loads.write("a.txt", lines(0, 300))
    loads.load()
    loads.write("b.txt.gz", gzip.compress(lines(0, 300)))

    assert loads.load().loaded == 0
    assert loads.rows() == [*range(300)]
