"""Bytes out of files: packed in whatever way, broken off, or damaged."""

import gzip
import io
import os
import pickle
import struct
import tracemalloc
from itertools import accumulate
from pathlib import Path
from socket import AF_UNIX, socket

import fsspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.errors import ExitCode
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.compression import Compression, Damaged, Incomplete
from onceload_jobs.files.reading import look_at, open_stream, read_at
from tests.unit.files.packing import ON_DISK, PACKED, PACKS, packed

SKIPPABLE_FRAME = struct.pack("<II", 0x184D2A50, 5) + b"hello"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("streams")


def contents() -> st.SearchStrategy[bytes]:
    """Bytes that pack well and badly."""
    return st.builds(lambda block, times: block * times, st.binary(max_size=300), st.integers(0, 40))


def blocks_of(path: Path, *, size: int = 1000) -> tuple[bytes, Exception | None]:
    """Read to the end or to the failure, and tell both."""
    content = b""
    with open_stream(str(path)) as stream:
        try:
            while block := stream.read(size):
                content += block
        except (Incomplete, Damaged) as failure:
            return content, failure
    return content, None


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("a.csv", Compression.NONE),
        ("a.csv.gz", Compression.GZIP),
        ("a.csv.zst", Compression.ZSTD),
        ("a.gz.csv", Compression.NONE),
        ("gz", Compression.NONE),
    ],
)
def test_the_last_suffix_names_the_compression(name, compression):
    assert Compression.of(name) is compression


@pytest.mark.parametrize("suffix", PACKS)
@ON_DISK
@given(content=contents(), members=st.integers(1, 4), size=st.integers(1, 5000))
def test_packed_bytes_come_out_in_blocks_of_any_size(folder, suffix, content, members, size):
    path = folder / f"whole{suffix}"
    path.write_bytes(packed(content, suffix, members=members))

    with open_stream(str(path)) as stream:
        blocks = list(iter(lambda: stream.read(size), b""))

    assert b"".join(blocks) == content
    assert all(len(block) == size for block in blocks[:-1])


@pytest.mark.parametrize("suffix", PACKED)
@ON_DISK
@given(members=st.lists(contents(), min_size=1, max_size=3), data=st.data())
def test_a_stream_that_breaks_off_gives_a_prefix_and_an_error_unless_a_member_ends_there(folder, suffix, members, data):
    wholes = [PACKS[suffix](member) for member in members]
    boundaries = set(accumulate(map(len, wholes), initial=0))
    cut = data.draw(st.integers(0, max(boundaries)) | st.sampled_from(sorted(boundaries)))
    path = folder / f"cut{suffix}"
    path.write_bytes(b"".join(wholes)[:cut])

    read, failure = blocks_of(path)

    assert b"".join(members).startswith(read)
    if cut in boundaries:
        assert failure is None
    else:
        assert isinstance(failure, Incomplete)
        assert failure.end == len(read)


@pytest.mark.parametrize("suffix", PACKED)
def test_all_that_came_before_the_break_is_read_first(folder, suffix):
    content = bytes(range(256)) * 8192
    path = folder / f"two{suffix}"
    path.write_bytes(PACKS[suffix](content) + PACKS[suffix](content)[:-1])

    read, failure = blocks_of(path, size=2**30)

    assert isinstance(failure, Incomplete)
    assert len(read) > 1.9 * len(content)
    assert (content * 2).startswith(read)


@pytest.mark.parametrize("suffix", PACKED)
@ON_DISK
@given(content=contents(), data=st.data())
def test_a_flipped_bit_is_never_read_as_other_content_in_silence(folder, suffix, content, data):
    whole = bytearray(packed(content, suffix))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path = folder / f"flipped{suffix}"
    path.write_bytes(whole)

    read, failure = blocks_of(path)

    assert failure is not None or read == content


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("garbage", [b"plain text\n", bytes(64)])
def test_bytes_that_were_never_packed_are_damaged(folder, suffix, garbage):
    path = folder / f"garbage{suffix}"
    path.write_bytes(garbage)

    read, failure = blocks_of(path)

    assert read == b""
    assert isinstance(failure, Damaged)


@pytest.mark.parametrize("suffix", PACKED)
def test_garbage_behind_a_whole_stream_is_damage_after_all_of_it(folder, suffix):
    path = folder / f"behind{suffix}"
    path.write_bytes(packed(b"one\n" * 100, suffix) + b"plain text\n")

    read, failure = blocks_of(path)

    assert read == b"one\n" * 100
    assert isinstance(failure, Damaged)
    assert failure.end == 400


def with_window(content: bytes, log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(content) + packer.flush()


def test_a_zstd_window_that_takes_too_much_memory_is_not_called_damage(folder):
    path = folder / "window.zst"
    path.write_bytes(with_window(b"one\n", 27))
    assert blocks_of(path) == (b"one\n", None)
    path.write_bytes(with_window(b"one\n", 27) + with_window(b"two\n", 28))

    content, failure = blocks_of(path)

    assert content == b"one\n"
    assert "cannot be unpacked after 4 unpacked bytes: it was written with a zstd window of more than" in str(failure)
    assert "Compress it again with a smaller window" in str(failure)


def test_zeros_that_pad_a_gzip_file_are_not_content(folder):
    path = folder / "padded.gz"
    path.write_bytes(gzip.compress(b"one\n") + bytes(200_000) + gzip.compress(b"two\n") + bytes(200_000))

    assert blocks_of(path) == (b"one\ntwo\n", None)


def test_frames_that_say_to_be_skipped_are_not_content(folder):
    path = folder / "skippable.zst"
    path.write_bytes(SKIPPABLE_FRAME + packed(b"one\n", ".zst") + SKIPPABLE_FRAME + packed(b"two\n", ".zst"))

    assert blocks_of(path) == (b"one\ntwo\n", None)


@pytest.mark.parametrize("suffix", PACKS)
def test_an_empty_file_is_an_empty_stream(folder, suffix):
    path = folder / f"empty{suffix}"
    path.write_bytes(b"")

    assert blocks_of(path) == (b"", None)


@pytest.mark.parametrize("suffix", PACKED)
def test_a_small_file_that_unpacks_to_much_is_read_in_flat_memory(folder, suffix):
    path = folder / f"bomb{suffix}"
    path.write_bytes(packed(bytes(2**27), suffix))

    tracemalloc.start()
    with open_stream(str(path)) as stream:
        total = sum(len(block) for block in iter(lambda: stream.read(2**20), b""))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert total == 2**27
    assert peak < 2**26


@pytest.mark.parametrize("suffix", PACKS)
def test_lines_can_be_read_from_a_buffer_around_the_stream(folder, suffix):
    path = folder / f"lines{suffix}"
    path.write_bytes(packed(b"one\ntwo\n", suffix))

    with io.BufferedReader(open_stream(str(path))) as buffer:  # type: ignore[type-var]
        assert buffer.readlines() == [b"one\n", b"two\n"]


def test_a_whole_read_does_not_hide_that_the_stream_breaks_off(folder):
    path = folder / "all.gz"
    path.write_bytes(gzip.compress(b"one\n" * 1000)[:-1])

    with open_stream(str(path)) as stream, pytest.raises(Incomplete):
        stream.read()


@pytest.mark.parametrize("suffix", PACKS)
def test_a_store_gives_the_same_bytes(suffix):
    fsspec.filesystem("memory").pipe_file(f"/streams/a{suffix}", packed(b"one\ntwo\n", suffix))

    with open_stream(f"memory://streams/a{suffix}") as stream:
        assert stream.read(100) == b"one\ntwo\n"


@ON_DISK
@given(content=st.binary(max_size=50), offset=st.integers(0, 60), size=st.integers(0, 60))
def test_a_read_in_the_middle_is_a_slice(folder, content, offset, size):
    (folder / "slice").write_bytes(content)
    fsspec.filesystem("memory").pipe_file("/streams/slice", content)

    assert read_at(str(folder / "slice"), offset=offset, size=size) == content[offset : offset + size]
    assert read_at("memory://streams/slice", offset=offset, size=size) == content[offset : offset + size]


@pytest.mark.parametrize("url", ["{}/gone", "{}/gone.gz", "memory://gone/gone.zst", "file://{}/gone"])
def test_a_file_that_is_gone_by_now_can_be_asked_for_again(tmp_path, url):
    with pytest.raises(Unreadable, match="it is gone"):
        open_stream(url.format(tmp_path))
    with pytest.raises(Unreadable, match="it is gone"):
        read_at(url.format(tmp_path), offset=0, size=1)


@pytest.fixture(params=["fifo", "socket", "device", "folder"])
def irregular(request, tmp_path):
    path = tmp_path / "a.jsonl"
    match request.param:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket(AF_UNIX) as bound:
                bound.bind(str(path))
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    return str(path)


def test_only_a_regular_file_is_opened(irregular):
    with pytest.raises(Unreadable, match="it is not a regular file"):
        open_stream(irregular)
    with pytest.raises(Unreadable, match="it is not a regular file"):
        read_at(irregular, offset=0, size=1)
    with pytest.raises(Unreadable, match="it is not a regular file"):
        look_at(irregular)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (Unreadable("sftp://somebody:a@secret@host/a.csv", "it is gone"), ExitCode.CALL_AGAIN),
        (Incomplete("sftp://somebody:secret@host/a.gz", 5), ExitCode.CALL_AGAIN),
        (Damaged("sftp://somebody:secret@host/a.gz", 5, "incorrect data check"), ExitCode.NEEDS_A_PERSON),
    ],
)
def test_an_error_survives_pickling_and_prints_no_password(error, exit_code):
    again = pickle.loads(pickle.dumps(error))

    assert str(again) == str(error)
    assert again.exit_code is exit_code
    assert "secret" not in str(error)


def test_a_window_that_needs_too_much_memory_is_reported_as_damage(folder):
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    path = folder / "wide.zst"
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(compressor.compress(b"one\n" * 100) + compressor.flush())

    _, failure = blocks_of(path)

    assert isinstance(failure, Damaged)
    assert "memory" in failure.reason
