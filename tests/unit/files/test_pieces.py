"""Chunks fall apart into whole records, whatever the sizes, and nothing is lost between them."""

import itertools
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.compression import Incomplete
from onceload_jobs.files.fingerprints import StreamMarks, fingerprint_of
from onceload_jobs.formats.chunks import Chunk, Part
from onceload_jobs.pipeline.declared import Format, Source
from onceload_jobs.read import parts as under_test
from onceload_jobs.read.parts import complete_end, cuts, parts_of
from tests.unit.files.packing import ON_DISK, PACKED, PACKS, packed

PRODUCER = ProducerId(7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pieces")


def contents() -> st.SearchStrategy[bytes]:
    """Short, long and blank lines, with and without a newline at the end."""
    lines = st.lists(st.integers(0, 60) | st.just(0), max_size=25).map(
        lambda lengths: [b"x" * each for each in lengths]
    )
    return st.builds(lambda parts, end: b"\n".join([*parts, end]), lines, st.sampled_from([b"", b"no newline"]))


def source(chunk_bytes: int, *, record_bytes_max: int = 10_000) -> Source:
    return Source(path="*", format=Format.JSONL, chunk_bytes=chunk_bytes, record_bytes_max=record_bytes_max)


def chunk(path: Path, *, first: int = 0, end: int | None = None, sealed: bool = False) -> Chunk:
    return Chunk(producer_id=PRODUCER, name=path.name, url=str(path), first=first, end=end, sealed=sealed)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(packed(content, path.suffix, members=2))
    return path


def whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def line_starts(content: bytes) -> list[int]:
    """Where records may start, the end of the last whole one included."""
    return [0, *(at + 1 for at, byte in enumerate(content) if byte == ord("\n"))]


def touch(parts: list[Part], *, first: int) -> bool:
    return all(left.end == right.first for left, right in pairwise(parts)) and (not parts or parts[0].first == first)


def parts_before_failure(parts: Iterator[Part]) -> tuple[list[Part], OnceloadError | None]:
    seen: list[Part] = []
    try:
        for part in parts:
            seen += [part]
    except OnceloadError as failure:
        return seen, failure
    return seen, None


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(content=contents(), chunk_bytes=st.integers(1, 200), sealed=st.booleans(), data=st.data())
def test_parts_of_any_size_are_the_whole_lines_in_order(*, folder, suffix, content, chunk_bytes, sealed, data):
    path = written(folder / f"whole{suffix}", content)
    first = data.draw(st.sampled_from(line_starts(content)))

    parts = list(parts_of(chunk(path, first=first, sealed=sealed), source(chunk_bytes)))

    assert b"".join(part.raw for part in parts) == (content if sealed else whole_lines(content))[first:]
    assert touch(parts, first=first)
    assert all(len(part.raw) == part.end - part.first for part in parts)
    assert all(part.raw.endswith(b"\n") for part in parts[:-1])
    assert not any(part.too_long for part in parts)


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(content=contents(), chunk_bytes=st.integers(1, 200), data=st.data())
def test_a_chunk_ends_where_it_should(folder, suffix, content, chunk_bytes, data):
    path = written(folder / f"bounded{suffix}", content)
    first, end = sorted(data.draw(st.tuples(*[st.sampled_from(line_starts(content))] * 2)))

    parts = list(parts_of(chunk(path, first=first, end=end), source(chunk_bytes)))

    assert b"".join(part.raw for part in parts) == content[first:end]


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(
    content=contents(),
    chunk_bytes=st.integers(1, 50),
    record_bytes_max=st.integers(1, 50),
    has_end=st.booleans(),
    sealed=st.booleans(),
)
@example(content=b"x" * 52 + b"\n", chunk_bytes=50, record_bytes_max=1, has_end=True, sealed=False)
def test_exactly_the_records_that_are_too_long_stand_alone(
    *, folder, suffix, content, chunk_bytes, record_bytes_max, has_end, sealed
):
    path = written(folder / f"long{suffix}", content)
    fits = max(chunk_bytes, record_bytes_max)
    found = source(chunk_bytes, record_bytes_max=record_bytes_max)

    content = whole_lines(content) if has_end else content
    end = len(content) if has_end else None

    parts = list(parts_of(chunk(path, end=end, sealed=sealed), found))

    records = [line + b"\n" for line in content.split(b"\n")[:-1]]
    last = content[len(b"".join(records)) :]
    expected = [record for record in records if len(record) > fits]
    expected += [last] if sealed and len(last) >= fits else []
    assert [part.raw for part in parts if part.too_long] == expected
    assert b"".join(part.raw for part in parts) == (content if sealed else whole_lines(content))
    assert touch(parts, first=0)


def test_the_end_of_a_chunk_is_read_with_the_rest(folder):
    content = b"x" * 99 + b"\n" + b"x" * 19 + b"\n"
    path = folder / "ends-late.jsonl"
    path.write_bytes(content)

    (part,) = parts_of(chunk(path, end=120), source(100))

    assert part.raw == content


@pytest.mark.parametrize("suffix", PACKED)
@ON_DISK
@given(content=contents(), chunk_bytes=st.integers(1, 200), record_bytes_max=st.integers(1, 50), data=st.data())
def test_marks_are_at_the_end_of_every_part(*, folder, suffix, content, chunk_bytes, record_bytes_max, data):
    plain = written(folder / "marks", content)
    path = written(folder / f"marks{suffix}", content)
    first = data.draw(st.sampled_from(line_starts(content)))
    marks = StreamMarks()

    for part in parts_of(chunk(path, first=first), source(chunk_bytes, record_bytes_max=record_bytes_max), marks=marks):
        assert marks.marks == fingerprint_of(str(plain), end=part.end).stream


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize("content", [b"", b"\n", b"x", b"x\n", b"\n\n\n", b"\r\n"])
def test_the_smallest_files_are_read_whole(folder, suffix, content):
    path = written(folder / f"small{suffix}", content)

    assert b"".join(part.raw for part in parts_of(chunk(path), source(100))) == whole_lines(content)
    assert b"".join(part.raw for part in parts_of(chunk(path, sealed=True), source(100))) == content


@pytest.mark.parametrize("suffix", PACKED)
def test_a_stream_that_breaks_off_gives_its_whole_records_first(folder, suffix):
    content = b"".join(b"%d\n" % number for number in range(100_000))
    path = folder / f"broken{suffix}"
    path.write_bytes(packed(content, suffix, members=2)[:-100])

    parts, failure = parts_before_failure(parts_of(chunk(path, sealed=True), source(1000)))

    read = b"".join(part.raw for part in parts)
    assert content.startswith(read)
    assert read.endswith(b"\n")
    assert isinstance(failure, Incomplete)
    assert failure.end - len(read) < 10


def test_a_last_line_without_newline_waits_for_the_trailer_of_its_stream(folder):
    path, content = folder / "trailer.gz", packed(b"one\ntwo", ".gz")

    path.write_bytes(content[:-8])
    parts, failure = parts_before_failure(parts_of(chunk(path, sealed=True), source(1000)))
    assert ([part.raw for part in parts], type(failure)) == ([b"one\n"], Incomplete)
    path.write_bytes(content)
    parts = list(parts_of(chunk(path, sealed=True), source(1000)))
    assert [(part.raw, part.is_tail) for part in parts] == [(b"one\n", False), (b"two", True)]


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize(("first", "end"), [(0, 12), (8, 12), (12, 16), (12, None)])
def test_a_file_that_became_shorter_than_its_chunk_gives_no_half_record(folder, suffix, first, end):
    path = written(folder / f"shrunk{suffix}", b"one\ntwo\nthr")

    parts, failure = parts_before_failure(parts_of(chunk(path, first=first, end=end, sealed=True), source(4)))

    assert isinstance(failure, Unreadable)
    assert "ends before byte" in str(failure)
    assert b"".join(part.raw for part in parts) in b"one\ntwo\n"


def test_a_record_beyond_all_limits_is_passed_over_in_flat_memory(folder):
    path = folder / "giant"
    with path.open("wb") as file:
        file.write(b"before\n")
        for _ in range(256):
            file.write(b"x" * 2**20)
        file.write(b"\nafter\n")

    tracemalloc.start()
    parts = list(parts_of(chunk(path), source(2**20, record_bytes_max=4 * 2**20)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [(part.first, part.end, part.too_long) for part in parts] == [
        (0, 7, False),
        (7, 2**28 + 8, True),
        (2**28 + 8, 2**28 + 14, False),
    ]
    assert len(parts[1].raw) == 2**20
    assert peak < 24 * 2**20


@pytest.mark.parametrize("base", [2**31, 2**32, 2**43])
def test_offsets_stay_right_in_files_of_any_size(folder, base):
    path = folder / "sparse"
    with path.open("wb") as file:
        file.truncate(base - 1)
        file.seek(base - 1)
        file.write(b"\none\ntwo\nthr")
    size = base + 11

    end = complete_end(str(path), first=base, size=size)
    parts = list(parts_of(chunk(path, first=base, end=end), source(4)))

    assert end == base + 8
    assert [(part.first, part.end, part.raw) for part in parts] == [
        (base, base + 4, b"one\n"),
        (base + 4, base + 8, b"two\n"),
    ]
    assert list(cuts(str(path), first=base, end=end, chunk_bytes=4, record_bytes_max=10)) == [
        (base, base + 4),
        (base + 4, base + 8),
    ]
    path.unlink()


def test_offsets_beyond_what_a_float_can_hold_stay_right(folder, monkeypatch):
    base = 2**53 + 1

    class Far:
        """A file that no disk could hold, of which only the end is ever read."""

        def __init__(self):
            self.at = 0

        def __enter__(self):
            return self

        def __exit__(self, *ended):
            return None

        def seek(self, offset, whence=0):
            self.at = base + 8 if whence else offset
            return self.at

        def read(self, size):
            block = b"one\ntwo\n"[self.at - base :][:size]
            self.at += len(block)
            return block

    monkeypatch.setattr(under_test, "open_stream", lambda url: Far())

    parts = list(parts_of(chunk(folder / "far", first=base, end=base + 8), source(4)))

    assert [(part.first, part.end) for part in parts] == [(base, base + 4), (base + 4, base + 8)]


class EvenNewlines:
    """Records of two lines each: a scanner that, like that for quotes, has to remember."""

    open_quote = None

    def __init__(self) -> None:
        self.newlines = 0

    def last_end(self, block: bytes) -> int | None:
        found = None
        for at, byte in enumerate(block):
            self.newlines += byte == ord("\n")
            if byte == ord("\n") and self.newlines % 2 == 0:
                found = at + 1
        return found

    def first_end(self, block: bytes) -> int | None:
        lines = block.splitlines(keepends=True)
        found = itertools.accumulate(map(len, lines))
        return next((at for line, at in zip(lines, found, strict=True) if self.last_end(line)), None)


@ON_DISK
@given(content=contents(), chunk_bytes=st.integers(1, 100), record_bytes_max=st.integers(1, 60))
def test_records_of_several_lines_stay_whole(folder, content, chunk_bytes, record_bytes_max):
    path = written(folder / "several", content)
    starts = line_starts(content)[::2]
    found = source(chunk_bytes, record_bytes_max=record_bytes_max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(under_test, "_ends_of", lambda source, first: EvenNewlines())
        parts = list(parts_of(chunk(path), found))

    fits = max(chunk_bytes, record_bytes_max)
    assert b"".join(part.raw for part in parts) == content[: starts[-1]]
    assert {part.first for part in parts} <= set(starts)
    assert [(part.first, part.end) for part in parts if part.too_long] == [
        (first, end) for first, end in pairwise(starts) if end - first > fits
    ]


@ON_DISK
@given(
    content=contents(),
    chunk_bytes=st.integers(1, 200),
    record_bytes_max=st.integers(1, 200),
    data=st.data(),
)
def test_cuts_follow_newlines_and_lose_nothing(folder, content, chunk_bytes, record_bytes_max, data):
    path = written(folder / "cuts", content)
    starts = line_starts(content)
    first, end = sorted((data.draw(st.sampled_from(starts)), starts[-1]))

    found = list(cuts(str(path), first=first, end=end, chunk_bytes=chunk_bytes, record_bytes_max=record_bytes_max))

    longest = max((right - left for left, right in pairwise(starts)), default=0)
    assert [edge for span in found for edge in span][1:-1:2] == [left for left, _ in found[1:]]
    assert not found if first == end else (found[0][0], found[-1][1]) == (first, end)
    assert all(left < right and left in starts for left, right in found)
    if longest <= record_bytes_max:
        assert all(right - left < chunk_bytes + longest for left, right in found)


@ON_DISK
@given(content=contents(), data=st.data())
def test_the_complete_end_is_behind_the_last_newline(folder, content, data):
    path = written(folder / "complete", content)
    size = data.draw(st.integers(0, len(content)))
    first = data.draw(st.sampled_from([start for start in line_starts(content) if start <= size]))

    assert complete_end(str(path), first=first, size=size) == max(first, content.rfind(b"\n", 0, size) + 1)


def test_the_complete_end_is_found_across_a_line_of_any_length(folder):
    path = folder / "tail"
    path.write_bytes(b"one\n" + b"x" * 5_000_000)

    assert complete_end(str(path), first=0, size=5_000_004) == 4
    assert complete_end(str(path), first=4, size=5_000_004) == 4
