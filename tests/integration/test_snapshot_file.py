"""A snapshot as a file: whole and unchanged, or refused."""

import gzip
import json
import os
from datetime import UTC, datetime

import pytest

from onceload.snapshot_file import read_snapshot, write_snapshot
from onceload_core.errors import ExitCode, SettingRefused, SnapshotDamaged
from onceload_core.names import Position, ProducerId
from onceload_core.replay import Condition, ProducerState, Snapshot
from onceload_core.spans import SpanSet

SNAPSHOT = Snapshot(
    pipeline="events",
    position=Position(7),
    taken_at=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    states={
        ProducerId(1): ProducerState(
            name='a "\n\\ ä', consumed=SpanSet.of((0, 5), (9, 2**63 - 1)), fingerprint=b"\x00\xff"
        ),
        ProducerId(2): ProducerState(
            name="b", generation=3, consumed=SpanSet.of((1, 2)), size=2**53 + 1, condition=Condition.SEALED
        ),
    },
)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "events.snapshot"
    write_snapshot(SNAPSHOT, path)
    return path


def test_a_snapshot_reads_back_as_it_was_written(written):
    assert read_snapshot(written) == SNAPSHOT


def test_the_same_snapshot_gives_the_same_bytes(written, tmp_path):
    write_snapshot(SNAPSHOT, tmp_path / "again")

    assert (tmp_path / "again").read_bytes() == written.read_bytes()


def test_every_cut_of_the_file_is_refused(written):
    whole = written.read_bytes()
    for size in range(len(whole)):
        written.write_bytes(whole[:size])
        with pytest.raises(SnapshotDamaged) as refused:
            read_snapshot(written)
        assert refused.value.exit_code is ExitCode.NEEDS_A_PERSON


def test_every_changed_byte_of_the_content_is_refused(written):
    content = gzip.decompress(written.read_bytes())
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1
        written.write_bytes(gzip.compress(bytes(changed), 1))
        with pytest.raises(SnapshotDamaged):
            read_snapshot(written)


def test_a_missing_line_is_refused(written):
    lines = gzip.decompress(written.read_bytes()).splitlines(keepends=True)
    written.write_bytes(gzip.compress(b"".join([lines[0], *lines[2:]])))

    with pytest.raises(SnapshotDamaged, match="truncated or edited"):
        read_snapshot(written)


def test_a_file_of_a_later_version_is_refused_by_its_version(written):
    header, *rest = gzip.decompress(written.read_bytes()).splitlines(keepends=True)
    later = json.dumps({**json.loads(header), "version": 2}).encode() + b"\n"
    written.write_bytes(gzip.compress(b"".join([later, *rest])))

    with pytest.raises(SnapshotDamaged, match="found onceload-snapshot version 2"):
        read_snapshot(written)


@pytest.mark.parametrize("content", [b"", b"hello", b"{}\n[]\n", b"\xff\xfe\n\n", b"null\nnull\n"])
def test_something_else_is_refused(tmp_path, content):
    for name, stored in [("plain", content), ("gzipped", gzip.compress(content))]:
        (tmp_path / name).write_bytes(stored)
        with pytest.raises(SnapshotDamaged):
            read_snapshot(tmp_path / name)


def test_a_place_that_cannot_be_written_is_refused_and_left_as_it_was(tmp_path):
    with pytest.raises(SettingRefused, match="Nothing was changed"):
        write_snapshot(SNAPSHOT, tmp_path / "no such folder" / "events.snapshot")
    with pytest.raises(SettingRefused, match="a readable file"):
        read_snapshot(tmp_path / "no such file")

    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_leaves_the_earlier_file_whole(written, tmp_path, monkeypatch):
    before = written.read_bytes()
    monkeypatch.setattr(os, "fsync", fail_with_full_disk)

    with pytest.raises(SettingRefused, match="No space left"):
        write_snapshot(SNAPSHOT, written)

    assert written.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["events.snapshot"]


def fail_with_full_disk(descriptor):
    raise OSError(28, "No space left on device")
