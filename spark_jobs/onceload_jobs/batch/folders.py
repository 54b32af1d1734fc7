"""A folder for one try: on a disk of this machine, on one that machines share, or in an object store that speaks S3.

In a store, it is the names that begin with its address.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from typing import Any, BinaryIO, ClassVar, cast

from onceload_jobs.files.addresses import backend_of, known_access, path_below, using
from onceload_jobs.files.reading import read_at

#: The names of the folders of tries begin with it.
PREFIX = "onceload-rows-"
#: A file with the token.
MARK = "mark"
#: A shared folder that no load has renewed for so long, by the clock of its disk or store, belongs to a load that was
#: killed.
DEAD_AFTER_S = 3600.0
#: A worker holds one part of its file in a store at a time.
_PART_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class DiskFolder:
    """Where workers put rows, if they see it."""

    path: str
    #: What the folder holds if it is this one, and not one of the same name on another machine.
    token: str
    is_shared: bool = False

    def is_here(self) -> bool:
        with suppress(OSError):
            return (Path(self.path) / MARK).read_text() == self.token
        return False

    def create(self, file: str) -> BinaryIO:
        # Unbuffered: the chunks are large enough, and nothing is left to be flushed when there is no room.
        return (Path(self.path) / file).open("xb", buffering=0)

    def read(self, file: str, *, offset: int, size: int) -> bytes:
        """A range of a file, or Unreadable."""
        return read_at(str(Path(self.path) / file), offset=offset, size=size)

    def remove(self, file: str) -> None:
        (Path(self.path) / file).unlink(missing_ok=True)

    def renew(self) -> None:
        """Show that it is in use."""
        with suppress(OSError):
            os.utime(self.path)


#: Where nothing is written.
NO_FOLDER = DiskFolder(path="", token="")


@contextmanager
def own_folder(home: Path) -> Iterator[DiskFolder]:
    """A new folder of this machine. Those of loads that were killed are removed."""
    for folder in home.glob(f"{PREFIX}*/"):
        # Those of other users cannot be opened.
        with suppress(OSError), _lock_of(folder).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    folder = home / f"{PREFIX}{token_hex(8)}"
    # The lock ends with the process, and comes before the folder, so that no other load takes it for abandoned.
    with _lock_of(folder).open("xb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            # Rows are readable by their user alone where all users have their temporary files.
            folder.mkdir(mode=0o700)
            yield _marked(folder, is_shared=False)
        finally:
            _remove(folder)


@contextmanager
def shared_folder(home: Path) -> Iterator[DiskFolder]:
    """A new folder below one that machines share, where no lock of a process shows that it is in use."""
    folder = home / f"{PREFIX}{token_hex(8)}"
    folder.mkdir()
    try:
        marked = _marked(folder, is_shared=True)
        # Both times are of the disk's own clock, so that it does not matter what time it is here.
        now = folder.stat().st_mtime
        for other in home.glob(f"{PREFIX}*/"):
            with suppress(OSError):
                if now - other.stat().st_mtime > DEAD_AFTER_S:
                    rmtree(other, ignore_errors=True)
        yield marked
    finally:
        rmtree(folder, ignore_errors=True)


def _marked(folder: Path, *, is_shared: bool) -> DiskFolder:
    token = token_hex(16)
    (folder / MARK).write_text(token)
    return DiskFolder(path=str(folder), token=token, is_shared=is_shared)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path) -> None:
    rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class StoreFolder:
    """Where workers put rows, if they can read its token there."""

    path: str
    token: str
    #: Credentials for the store, for workers that have none of their own.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_shared: ClassVar[bool] = True

    def is_here(self) -> bool:
        with suppress(Exception):
            backend, place = self._at(MARK)
            return bool(backend.cat_file(place) == self.token.encode())
        return False

    def create(self, file: str) -> BinaryIO:
        backend, place = self._at(file)
        return cast("BinaryIO", backend.open(place, "wb", block_size=_PART_BYTES))

    def read(self, file: str, *, offset: int, size: int) -> bytes:
        """A range of a file, or Unreadable."""
        with using(self.access):
            return read_at(path_below(self.path, file), offset=offset, size=size)

    def remove(self, file: str) -> None:
        backend, place = self._at(file)
        backend.rm_file(place)

    def renew(self) -> None:
        """Show that it is in use."""
        # The next mark makes up for a missed one.
        with suppress(Exception):
            self.mark()

    def mark(self) -> None:
        """Write the token; the store keeps the time."""
        backend, place = self._at(MARK)
        backend.pipe_file(place, self.token.encode())

    def sweep(self) -> None:
        """Remove the folders beside it that killed loads have left."""
        backend, mine = self._at()
        now = _last_change(backend, mine)
        for folder in backend.ls(mine.rpartition("/")[0], detail=False):
            if folder.rpartition("/")[2].startswith(PREFIX):
                # Another load may remove it too.
                with suppress(OSError):
                    if (now - _last_change(backend, folder)).total_seconds() > DEAD_AFTER_S:
                        backend.rm(folder, recursive=True)

    def remove_all(self) -> None:
        backend, place = self._at()
        backend.rm(place, recursive=True)

    def _at(self, file: str | None = None) -> tuple[Any, str]:
        """The store, and the place of a file there, or of all of them; nothing is remembered of the store."""
        with using(self.access):
            backend, place = backend_of(self.path if file is None else path_below(self.path, file))
        backend.invalidate_cache()
        return backend, place


@contextmanager
def store_folder(address: str) -> Iterator[StoreFolder]:
    """A new folder below an address."""
    path = path_below(address, f"{PREFIX}{token_hex(8)}")
    folder = StoreFolder(path=path, token=token_hex(16), access=known_access())
    folder.mark()
    try:
        folder.sweep()
        yield folder
    finally:
        # A later load sweeps what cannot be removed now.
        with suppress(Exception):
            folder.remove_all()


def _last_change(backend: Any, folder: str) -> datetime:  # noqa: ANN401 - fsspec ships no types.
    """When the last file of a folder was written, by the clock of the store."""
    found = backend.find(folder, detail=True).values()
    if not found:
        raise FileNotFoundError(folder)
    times: list[datetime] = [each["LastModified"] for each in found]
    return max(times)
