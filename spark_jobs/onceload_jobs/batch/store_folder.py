"""A folder for one try in an object store that speaks S3: the names that begin with its address."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_hex
from typing import Any, BinaryIO, ClassVar, cast

from onceload_jobs.batch.disk_folder import DEAD_AFTER_S, MARK, PREFIX
from onceload_jobs.files.addresses import backend_of, known_access, path_below, using
from onceload_jobs.files.reading import read_at

#: A worker holds one part of its file at a time.
_PART_BYTES = 8 * 2**20


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
        with using(self.access):
            return read_at(path_below(self.path, file), offset=offset, size=size)

    def remove(self, file: str) -> None:
        backend, place = self._at(file)
        backend.rm_file(place)

    def renew(self) -> None:
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
