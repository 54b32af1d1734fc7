"""What became of a file since it was loaded: the same, grown, shorter or changed."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.spans import SEQUENCE_END
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.fingerprints import (
    EDGE_BYTES,
    Fingerprint,
    Marks,
    Resemblance,
    StreamMarks,
    compare,
    compare_whole,
    fingerprint_of,
    fingerprint_of_whole,
)
from onceload_jobs.pipeline.declared import Format
from tests.typed_files import content_of
from tests.unit.files.packing import ON_DISK, PACKED, PACKS, listed, packed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fingerprints")


def contents() -> st.SearchStrategy[bytes]:
    """Bytes on both sides of the 4 KiB that a fingerprint looks at."""
    return st.builds(lambda block, times: block * times, st.binary(min_size=1, max_size=200), st.integers(0, 60))


def some_bytes() -> st.SearchStrategy[bytes]:
    return st.binary(min_size=1, max_size=100)


def marks_of(content: bytes) -> Marks:
    stream = StreamMarks()
    stream.feed(content)
    return stream.marks


def loaded(path: Path, content: bytes, *, is_read_to_its_end: bool = True) -> Fingerprint:
    """Put the content into the file, and say what the ledger would know after loading it."""
    path.write_bytes(packed(content, path.suffix))
    if not path.suffix:
        return fingerprint_of(str(path), end=len(content))
    size = path.stat().st_size if is_read_to_its_end else None
    return Fingerprint(stream=marks_of(content), packed=fingerprint_of(str(path), end=size).stream if size else None)


def verdict(path: Path, fingerprint: Fingerprint) -> Resemblance:
    return compare(listed(path), fingerprint, consumed_end=fingerprint.stream.end)


def all_marks() -> st.SearchStrategy[Marks]:
    edge = st.binary(min_size=16, max_size=16)
    return st.builds(Marks, st.integers(0, SEQUENCE_END), edge, edge)


@given(
    fingerprint=st.builds(
        Fingerprint,
        stream=all_marks(),
        packed=st.none() | all_marks(),
        content=st.none() | st.binary(min_size=16, max_size=16),
    )
)
def test_a_stored_fingerprint_reads_back(fingerprint):
    assert Fingerprint.from_bytes(fingerprint.to_bytes()) == fingerprint


@given(
    stored=st.binary(max_size=100)
    | st.binary(min_size=40, max_size=40).map(lambda rest: b"\x01" + rest)
    | st.binary(min_size=56, max_size=56).map(lambda rest: b"\x02" + rest)
)
def test_bytes_are_a_fingerprint_or_refused(stored):
    try:
        fingerprint = Fingerprint.from_bytes(stored)
    except ValueError:
        return
    assert fingerprint.to_bytes() == stored


def test_a_fingerprint_of_a_later_version_is_refused():
    stored = Fingerprint(stream=marks_of(b"one")).to_bytes()

    with pytest.raises(ValueError, match="version 1 or 2"):
        Fingerprint.from_bytes(b"\x03" + stored[1:])


@ON_DISK
@given(content=contents(), edges=st.lists(st.integers(0, 12_000)))
def test_a_stream_that_is_read_once_has_the_marks_of_the_file_at_every_edge(folder, content, edges):
    path = folder / "edges"
    path.write_bytes(content)
    stream, at = StreamMarks(), 0

    for edge in sorted(min(edge, len(content)) for edge in edges):
        stream.feed(content[at:edge])
        at = edge
        assert stream.marks == fingerprint_of(str(path), end=edge).stream


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(content=contents())
def test_an_untouched_file_is_the_same(folder, suffix, content):
    path = folder / f"same{suffix}"
    fingerprint = loaded(path, content)
    os.utime(path, (1, 1))

    assert verdict(path, fingerprint) is Resemblance.SAME


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(content=contents(), more=some_bytes())
def test_an_appended_file_has_grown(folder, suffix, content, more):
    path = folder / f"grown{suffix}"
    fingerprint = loaded(path, content)
    with path.open("ab") as file:
        file.write(packed(more, suffix))

    assert verdict(path, fingerprint) is Resemblance.GROWN


@pytest.mark.parametrize("suffix", PACKED)
@ON_DISK
@given(content=contents(), more=some_bytes())
def test_a_file_that_was_recompressed_with_more_in_it_has_grown(folder, suffix, content, more):
    path = folder / f"again{suffix}"
    fingerprint = loaded(path, content)
    path.write_bytes(packed(content + more, suffix, members=2))

    assert verdict(path, fingerprint) is Resemblance.GROWN


@pytest.mark.parametrize("suffix", PACKED)
@ON_DISK
@given(content=contents(), members=st.integers(2, 3))
def test_a_file_that_was_recompressed_with_nothing_new_in_it_is_the_same(folder, suffix, content, members):
    path = folder / f"anew{suffix}"
    fingerprint = loaded(path, content, is_read_to_its_end=False)
    path.write_bytes(packed(content, suffix, members=members))

    assert verdict(path, fingerprint) is Resemblance.SAME


@pytest.mark.parametrize("suffix", PACKED)
@ON_DISK
@given(content=contents(), more=some_bytes())
def test_a_stream_that_was_not_read_to_its_end_still_has_more(folder, suffix, content, more):
    path = folder / f"rest{suffix}"
    path.write_bytes(packed(content + more, suffix))
    fingerprint = Fingerprint(stream=marks_of(content))

    assert verdict(path, fingerprint) is Resemblance.GROWN


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(content=contents().filter(len), data=st.data())
def test_a_truncated_file_is_shorter(folder, suffix, content, data):
    path = folder / f"shorter{suffix}"
    fingerprint = loaded(path, content)
    kept = content[: data.draw(st.integers(0, len(content) - 1))]
    path.write_bytes(packed(kept, suffix))

    assert verdict(path, fingerprint) is Resemblance.SHORTER


@pytest.mark.parametrize("suffix", PACKED)
def test_an_upload_that_has_not_come_as_far_as_what_was_loaded_is_shorter(folder, suffix):
    path = folder / f"upload{suffix}"
    content = os.urandom(10_000)
    fingerprint = loaded(path, content)
    path.write_bytes(packed(content, suffix)[:-5000])

    assert verdict(path, fingerprint) is Resemblance.SHORTER


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(content=contents().filter(len), more=st.binary(max_size=100), data=st.data())
def test_a_file_with_another_beginning_or_ending_is_changed(folder, suffix, content, more, data):
    path = folder / f"changed{suffix}"
    fingerprint = loaded(path, content)
    near = data.draw(st.integers(0, min(len(content), 4096) - 1))
    other = bytearray(content)
    other[near if data.draw(st.booleans()) else -1 - near] ^= 1
    path.write_bytes(packed(bytes(other) + more, suffix))

    assert verdict(path, fingerprint) is Resemblance.CHANGED


@pytest.mark.parametrize("suffix", PACKS)
def test_bytes_that_were_read_but_not_consumed_are_more_to_come(folder, suffix):
    path = folder / f"unfinished{suffix}"
    fingerprint = loaded(path, b"one\ntwo", is_read_to_its_end=False)

    assert compare(listed(path), fingerprint, consumed_end=4) is Resemblance.GROWN


@pytest.mark.parametrize("suffix", PACKS)
def test_a_file_that_ends_before_what_was_consumed_is_shorter_though_its_marks_hold(folder, suffix):
    path = folder / f"between{suffix}"
    fingerprint = loaded(path, b"one\n", is_read_to_its_end=False)
    path.write_bytes(packed(b"one\ntwo\n", suffix))

    assert compare(listed(path), fingerprint, consumed_end=9) is Resemblance.SHORTER
    assert compare(listed(path), fingerprint, consumed_end=8) is Resemblance.SAME


def test_a_file_that_shrinks_after_it_was_listed_is_shorter(folder):
    path = folder / "shrinking"
    fingerprint = loaded(path, b"one\ntwo\n")
    before = listed(path)
    path.write_bytes(b"one\n")

    assert compare(before, fingerprint, consumed_end=8) is Resemblance.SHORTER
    with pytest.raises(Unreadable, match="ends before byte 8"):
        fingerprint_of(str(path), end=8)


@ON_DISK
@given(content=contents(), more=some_bytes())
def test_a_file_that_is_written_once_is_the_same_or_changed(folder, content, more):
    path = folder / "once.parquet"
    path.write_bytes(content)
    fingerprint = fingerprint_of_whole(str(path), size=len(content))
    assert compare_whole(listed(path), fingerprint) is Resemblance.SAME

    for other in (content + more, content[:-1] if content else more):
        path.write_bytes(other)
        assert compare_whole(listed(path), fingerprint) is Resemblance.CHANGED


def test_an_orc_file_is_recognised_by_its_whole_footer(folder):
    """Neither its first nor its last bytes show that the footer of a file with many columns has changed."""
    path = folder / "wide.orc"
    content = content_of(pa.table({f"column_{number:03}": [number] for number in range(500)}), Format.ORC)
    path.write_bytes(content)
    fingerprint = fingerprint_of_whole(str(path), size=len(content))
    at = content.rindex(b"column_010")
    assert EDGE_BYTES < at < len(content) - EDGE_BYTES

    path.write_bytes(content[:at] + b"Column" + content[at + 6 :])

    assert compare_whole(listed(path), fingerprint) is Resemblance.CHANGED
