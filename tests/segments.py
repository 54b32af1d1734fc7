"""The shared memory of killed servers. Their next start would remove it, but a server of a test never starts again."""

import ctypes
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_FOLDER = Path("/dev/shm")
_LINE_OF_MEMORY = 6
#: The beginning of Postgres's PGShmemHeader, with the name of the segment that lists all others.
_MEMORY = struct.Struct("=24xI")
#: The list: a dsm_control_header with the number of its items, and each dsm_control_item with its name and users.
_HEADER, _ITEM = struct.Struct("=4xI8x"), struct.Struct("=II32x")

_LIBRARY = ctypes.CDLL(None)
_LIBRARY.shmat.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value
_READ_ONLY, _REMOVE = 0o10000, 0


def remove_segments(home: Path) -> None:
    """Remove what the killed servers below a folder have left."""
    for file in home.rglob("postmaster.pid"):
        # A server that was killed early has not written all lines.
        with suppress(FileNotFoundError, IndexError, ValueError):
            lines = file.read_text().splitlines()
            memory_id = int(lines[_LINE_OF_MEMORY].split()[1])
            if not _is_served(file.parent, pid=int(lines[0])):
                for segment in segments_of(memory_id):
                    segment.unlink(missing_ok=True)
                _LIBRARY.shmctl(memory_id, _REMOVE, None)


def segments_of(memory_id: int) -> list[Path]:
    """The files that belong to the block of shared memory with this id, if it is there."""
    address = _LIBRARY.shmat(memory_id, None, _READ_ONLY)
    if address == _FAILED:
        return []
    try:
        (name,) = _MEMORY.unpack(ctypes.string_at(address, _MEMORY.size))
    finally:
        _LIBRARY.shmdt(ctypes.c_void_p(address))
    control = _segment(name)
    return [*_listed_in(control), control]


def _listed_in(control: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        content = control.read_bytes()
        (count,) = _HEADER.unpack_from(content)
        for name, users in _ITEM.iter_unpack(content[_HEADER.size :][: count * _ITEM.size]):
            if users:
                yield _segment(name)


def _segment(name: int) -> Path:
    return _FOLDER / f"PostgreSQL.{name}"


def _is_served(data: Path, *, pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return str(data) in psutil.Process(pid).cmdline()
    return False
