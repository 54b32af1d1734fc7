"""Rows of a batch in files of this machine, from where the publishing commit copies them.

They are written to the database once, and not to a staging table first. The proof of a piece is staged as usual, and
names its file. The files belong to one load, which removes them at its end. The next load removes those of a killed
one.
"""

import fcntl
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from shutil import rmtree

_PREFIX = "onceload-rows-"
_BLOCK_BYTES = 2**20


@contextmanager
def open_spool() -> Iterator[str]:
    """A folder for the rows of one staging, where Python keeps temporary files (TMPDIR)."""
    home = Path(tempfile.gettempdir())
    _sweep(home)
    folder = home / f"{_PREFIX}{token_hex(8)}"
    # The lock ends with the process, and comes before the folder, so that no other load takes it for abandoned.
    with _lock_of(folder).open("xb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        try:
            yield str(folder)
        finally:
            _remove(folder)


def _sweep(home: Path) -> None:
    for folder in home.glob(f"{_PREFIX}*/"):
        # Those of other users cannot be opened.
        with suppress(OSError), _lock_of(folder).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path) -> None:
    rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)


def write_file(folder: str, encoded: Iterable[bytes]) -> str:
    """Write rows, and return the name of their file."""
    path = Path(folder) / token_hex(8)
    try:
        with path.open("xb") as file:
            file.writelines(encoded)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path.name


def read_file(folder: str, name: str) -> Iterator[bytes]:
    with (Path(folder) / name).open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
