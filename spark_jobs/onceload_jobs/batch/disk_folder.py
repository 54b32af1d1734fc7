"""A folder for one try on a disk: of this machine, or one that machines share."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from secrets import token_hex
from shutil import rmtree

from onceload_jobs.files.reading import read_at

#: The names of the folders of tries begin with it.
PREFIX = "onceload-rows-"
#: A file with the token.
MARK = "mark"
#: A shared folder that no load has renewed for so long, by the clock of its disk, belongs to a load that was killed.
DEAD_AFTER_S = 3600.0


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

    def create(self, file: str) -> FileIO:
        # Unbuffered: the chunks are large enough, and nothing is left to be flushed when there is no room.
        return (Path(self.path) / file).open("xb", buffering=0)

    def read(self, file: str, *, offset: int, size: int) -> bytes:
        return read_at(str(Path(self.path) / file), offset=offset, size=size)

    def remove(self, file: str) -> None:
        (Path(self.path) / file).unlink(missing_ok=True)

    def renew(self) -> None:
        with suppress(OSError):
            os.utime(self.path)


#: Where nothing is written.
NO_FOLDER = DiskFolder(path="", token="")


@contextmanager
def own_folder(home: Path) -> Iterator[DiskFolder]:
    """A new folder of this machine. Those of loads that were killed are removed."""
    _sweep(home)
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
        _sweep_shared(home, now=folder.stat().st_mtime)
        yield marked
    finally:
        rmtree(folder, ignore_errors=True)


def _marked(folder: Path, *, is_shared: bool) -> DiskFolder:
    token = token_hex(16)
    (folder / MARK).write_text(token)
    return DiskFolder(path=str(folder), token=token, is_shared=is_shared)


def _sweep(home: Path) -> None:
    for folder in home.glob(f"{PREFIX}*/"):
        # Those of other users cannot be opened.
        with suppress(OSError), _lock_of(folder).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)


def _sweep_shared(home: Path, *, now: float) -> None:
    """Both times are of the disk's own clock, so that it does not matter what time it is here."""
    for folder in home.glob(f"{PREFIX}*/"):
        with suppress(OSError):
            if now - folder.stat().st_mtime > DEAD_AFTER_S:
                rmtree(folder, ignore_errors=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path) -> None:
    rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)
