"""Read the bytes of files, local or remote, packed or not."""

import errno
import os
import stat
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from onceload_jobs.files.addresses import backend_of, errors_naming, etag_of, local_path
from onceload_jobs.files.compression import unpacked

#: The reason for a folder, a device, a socket, or a FIFO, which would block its reader.
NOT_REGULAR = "it is not a regular file, so it is not loaded"
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
            _refuse_others(found)
            return StoredFile(size=found.st_size, version=(found.st_ino, found.st_ctime_ns))
        backend, place = backend_of(url)
        # It may have changed since it was listed.
        backend.invalidate_cache(place)
        facts = backend.info(place)
        etag = etag_of(backend, facts)
        return StoredFile(size=int(facts["size"]), etag=etag, version=etag)


def _open_local(path: str) -> BinaryIO:
    return os.fdopen(_descriptor_of(path), "rb")


def _read_local(path: str, *, offset: int, size: int) -> bytes:
    descriptor = _descriptor_of(path)
    try:
        block = os.pread(descriptor, size, offset)
        while len(block) < size and (more := os.pread(descriptor, size - len(block), offset + len(block))):
            block += more
    finally:
        os.close(descriptor)
    return block


def _descriptor_of(path: str) -> int:
    """Open a regular file. The descriptor is checked, because the name may lead to something else a moment later."""
    try:
        # Without O_NONBLOCK, a FIFO would wait for a writer here.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            # A socket, or a device that is not there.
            raise OSError(errno.ENXIO, NOT_REGULAR) from error
        raise
    try:
        _refuse_others(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ENXIO, NOT_REGULAR)


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
