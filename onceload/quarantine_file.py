"""Quarantined records as a file to edit: one JSON document per line.

The file is written completely or not at all, and only its owner can read it, because rows may be secret. Each line
identifies its record by id, file, sequence id and the digest of its stored bytes, so that an export from one database
changes nothing in another.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import NamedTemporaryFile
from typing import Any

from onceload_core.errors import SettingRefused
from onceload_core.postgres.quarantine import Fix, KeptRecord, QuarantineId

_EXPECTED = "lines as `onceload quarantine export` writes them, with only `raw` changed"


@dataclass(frozen=True, kw_only=True)
class FixedRecord(Fix):
    """One line of the file."""

    file: str
    sequence_id: int


def write_records(records: Iterable[KeptRecord], path: Path) -> int:
    """Write a temporary file, sync it, then rename it; return the number of records."""
    unfinished: Path | None = None
    written = 0
    try:
        # Only its owner can read or write such a file.
        with NamedTemporaryFile(dir=path.parent, prefix=".onceload-", delete=False) as file:
            unfinished = Path(file.name)
            for record in records:
                file.write(line_of(record))
                written += 1
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _make_durable(path.parent)
    except OSError as error:
        found = f"{path} ({error.strerror})"
        raise SettingRefused("the exported file", found, "a writable folder with free space") from error
    finally:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)
    return written


def read_fixed_records(path: Path, *, pipeline: str) -> dict[QuarantineId, FixedRecord]:
    """Read an exported file, fixed or not; each record may appear once."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SettingRefused("--from", f"{path} ({error.strerror})", "a file that can be read") from error
    fixed: dict[QuarantineId, FixedRecord] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            quarantine_id, found = _record_of(line, where=f"{path}, line {number}", pipeline=pipeline)
            if quarantine_id in fixed:
                raise SettingRefused(f"{path}, line {number}", f"record {quarantine_id} twice", "each record once")
            fixed[quarantine_id] = found
    if not fixed:
        raise SettingRefused("--from", f"{path}, which contains no record", _EXPECTED)
    return fixed


def check_fixed_records(fixed: Mapping[QuarantineId, FixedRecord], records: Sequence[KeptRecord]) -> None:
    """Refuse a file of another database, where the same ids belong to other records. The retry compares the digests."""
    for record in records:
        line = fixed[record.quarantine_id]
        if (line.file, line.sequence_id) != (record.file, record.sequence_id):
            found = f"record {record.quarantine_id} as sequence id {line.sequence_id} of {line.file}"
            raise SettingRefused(
                "--from", found, f"sequence id {record.sequence_id} of {record.file}, as in this database"
            )


def raw_fields(raw: bytes) -> dict[str, str]:
    """The bytes for JSON: as text if they are UTF-8, else as base64."""
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": b64encode(raw).decode()}


def line_of(record: KeptRecord) -> bytes:
    """A record as a line of the file."""
    fields = {
        "id": record.quarantine_id,
        "file": record.file,
        "sequence_id": record.sequence_id,
        "digest": record.digest,
        "column": record.column,
        "reason": record.reason,
        **raw_fields(record.raw),
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _record_of(line: bytes, *, where: str, pipeline: str) -> tuple[QuarantineId, FixedRecord]:
    try:
        values: dict[str, Any] = json.loads(line)
        quarantine_id, file, sequence_id = values["id"], values["file"], values["sequence_id"]
        given = [name for name in ("raw", "raw_base64") if name in values]
        if (type(quarantine_id), type(file), type(sequence_id), len(given)) != (int, str, int, 1):
            raise SettingRefused(where, "a line without id, file, sequence_id and one raw", _EXPECTED)
        digest = values.get("digest")
        if type(digest) is not str:
            again = f"`onceload quarantine export again.jsonl --pipeline {quote(pipeline)}`"
            found = "a line without digest, as an earlier release exported it"
            raise SettingRefused(where, found, f"a new export (run {again}, and copy each fixed `raw` into it)")
        text = values[given[0]]
        raw = text.encode() if given == ["raw"] else b64decode(text, validate=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingRefused(where, f"an invalid line ({type(error).__name__}: {error})", _EXPECTED) from error
    return QuarantineId(quarantine_id), FixedRecord(file=file, sequence_id=sequence_id, digest=digest, raw=raw)


def _make_durable(folder: Path) -> None:
    """Sync the folder: only then does the rename survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
