"""A snapshot as a file, so that it outlives the database.

Gzipped lines of JSON: a header, a line per producer, and the SHA-256 of all lines before.
The file is written completely or not at all, and it is refused if one byte of its content was changed.
"""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from onceload_core.errors import SettingRefused, SnapshotDamaged
from onceload_core.names import Position, ProducerId
from onceload_core.replay import Condition, ProducerState, Snapshot
from onceload_core.spans import NotASpan, SpanSet

FORMAT = "onceload-snapshot"
VERSION = 1


def write_snapshot(
    snapshot: Snapshot, path: Path, *, watched: Callable[[Iterator[bytes]], Iterator[bytes]] = iter
) -> None:
    """Write a temporary file, sync it, then rename it; each line passes through `watched`."""
    unfinished: Path | None = None
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=".onceload-", delete=False) as raw:
            unfinished = Path(raw.name)
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as file:
                digest = hashlib.sha256()
                for line in watched(_lines(snapshot)):
                    digest.update(line)
                    file.write(line)
                file.write(_line({"sha256": digest.hexdigest()}))
            raw.flush()
            os.fsync(raw.fileno())
        unfinished.replace(path)
        _make_durable(path.parent)
    except OSError as error:
        found = f"{path} ({error.strerror})"
        raise SettingRefused("the snapshot file", found, "a writable folder with free space") from error
    finally:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot, and refuse it unless it is complete and unchanged."""
    try:
        with gzip.open(path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise SnapshotDamaged(str(path), "a gzipped snapshot", "another or a damaged file") from error
        raise SettingRefused("the snapshot file", f"{path} ({error.strerror})", "a readable file") from error
    except (EOFError, zlib.error) as error:
        raise SnapshotDamaged(str(path), "a complete file", f"a truncated or damaged one ({error})") from error
    return _snapshot_in(str(path), lines)


def _lines(snapshot: Snapshot) -> Iterator[bytes]:
    yield _line(
        {
            "format": FORMAT,
            "version": VERSION,
            "pipeline": snapshot.pipeline,
            "position": snapshot.position,
            "taken_at": snapshot.taken_at.isoformat(),
            "producers": len(snapshot.states),
        }
    )
    for producer_id, state in sorted(snapshot.states.items()):
        yield _line(
            {
                "id": producer_id,
                "name": state.name,
                "generation": state.generation,
                "consumed": str(state.consumed),
                "fingerprint": state.fingerprint.hex() if state.fingerprint is not None else None,
                "size": state.size,
                "condition": state.condition,
            }
        )


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _snapshot_in(path: str, lines: list[bytes]) -> Snapshot:
    try:
        header, last = json.loads(lines[0]), json.loads(lines[-1])
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            found = f"{header['format']} version {header['version']}"
            raise SnapshotDamaged(path, f"{FORMAT} version {VERSION}", found)
        if last != {"sha256": hashlib.sha256(b"".join(lines[:-1])).hexdigest()}:
            raise SnapshotDamaged(path, "content that matches its digest", "a truncated or edited file")
        return Snapshot(
            pipeline=header["pipeline"],
            position=Position(header["position"]),
            taken_at=datetime.fromisoformat(header["taken_at"]),
            states=dict(_state_in(json.loads(line)) for line in lines[1:-1]),
        )
    except (ValueError, KeyError, IndexError, TypeError, NotASpan) as error:
        raise SnapshotDamaged(path, f"lines of {FORMAT} version {VERSION}", f"other lines ({error!r})") from error


def _state_in(values: dict[str, Any]) -> tuple[ProducerId, ProducerState]:
    fingerprint = values["fingerprint"]
    return ProducerId(values["id"]), ProducerState(
        name=values["name"],
        generation=values["generation"],
        consumed=SpanSet.parse(values["consumed"]),
        fingerprint=None if fingerprint is None else bytes.fromhex(fingerprint),
        size=values["size"],
        condition=Condition(values["condition"]),
    )


def _make_durable(folder: Path) -> None:
    """Sync the folder: only then does the rename survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
