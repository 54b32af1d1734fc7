"""Read the bytes of files, local or remote, packed or not."""

import errno
import os
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from onceload_jobs.files.addresses import backend_of, errors_naming, etag_of, local_path
from onceload_jobs.files.compression import unpacked

_REMOTE_BLOCK_BYTES = 8 * 2**20


def open_stream(url: str) -> BinaryIO:
    """Open a file at the start of its unpacked stream; `read(size)` returns fewer bytes only at the end."""
    with errors_naming(url):
        path = local_path(url)
        opened = _open_local(path) if path else _open_remote(url)
    return unpacked(url, opened)


def read_at(url: str, *, offset: int, size: int) -> bytes:
    """Read a range of a stored file, without unpacking; fewer bytes are returned only at its end."""
    if size <= 0:
        return b""
    with errors_naming(url):
        path = local_path(url)
        return _read_local(path, offset=offset, size=size) if path else _read_remote(url, offset=offset, size=size)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The stored state of a file at this moment."""

    size: int
    #: Its ETag.
    etag: str | None = None
    #: Another one if it was written meanwhile. It only decides what to read again, never whether a file is the same.
    version: Hashable = None


def look_at(url: str) -> StoredFile:
    """Return the stored state of a file."""
    with errors_naming(url):
        path = local_path(url)
        if path:
            found = Path(path).stat()
            return StoredFile(size=found.st_size, version=(found.st_ino, found.st_ctime_ns))
        backend, place = backend_of(url)
        # It may have changed since it was listed.
        backend.invalidate_cache(place)
        facts = backend.info(place)
        etag = etag_of(backend, facts)
        return StoredFile(size=int(facts["size"]), etag=etag, version=etag)


def _open_local(path: str) -> BinaryIO:
    return Path(path).open("rb")


def _read_local(path: str, *, offset: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        block = os.pread(descriptor, size, offset)
        while len(block) < size and (more := os.pread(descriptor, size - len(block), offset + len(block))):
            block += more
    finally:
        os.close(descriptor)
    return block


def _open_remote(url: str) -> BinaryIO:
    backend, path = backend_of(url)
    return cast("BinaryIO", backend.open(path, "rb", block_size=_REMOTE_BLOCK_BYTES))


def _read_remote(url: str, *, offset: int, size: int) -> bytes:
    backend, path = backend_of(url)
    block = bytes(backend.cat_file(path, start=offset, end=offset + size))
    if len(block) > size:
        # Some web servers ignore the range and answer with the whole file.
        raise OSError(errno.ENOTSUP, "its server does not support range requests")
    return block
