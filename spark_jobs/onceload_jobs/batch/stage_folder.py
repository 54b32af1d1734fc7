"""The folder of one try to load a batch: no other try shares it, and it goes with its try.

It is below `TMPDIR`, or at the address that machines share (`ONCELOAD_STAGE`). Each piece has a file of its own with
its blocks of rows, and only files that the load was named are read. A worker that does not see the folder, or finds no
room in it, hands its rows to the load instead. Rows are copied only if they have the checksum that they were written
with.
"""

import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, TypeAlias

from onceload_core.errors import CallAgain, SettingRefused
from onceload_jobs.batch.folders import DiskFolder, StoreFolder, own_folder, shared_folder, store_folder
from onceload_jobs.batch.piece import Block, BlockLost, Piece
from onceload_jobs.files.addresses import Unreadable, in_words, is_of_s3
from onceload_jobs.pipeline.columns import Column

#: The variable with the address that machines share.
STAGE = "ONCELOAD_STAGE"
#: How much is read at a time.
_READ_BYTES = 4 * 2**20
#: What a worker that finds no room in the folder may hold.
_HELD_BYTES_MAX = 256 * 2**20
#: It is pickled and sent to workers.
StageFolder: TypeAlias = DiskFolder | StoreFolder
#: How often the load shows that a shared folder is in use.
RENEWED_EVERY_S = 60.0


@dataclass(eq=False)
class NoRoom(CallAgain):
    """The folder for the rows of a batch cannot be written, and they are too many to be held in memory."""

    folder: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return (
            f"the rows of a batch cannot be written to {self.folder}: {self.reason}. Nothing of the batch was loaded. "
            f"{self.fix}, and load again."
        )

    @classmethod
    def after(cls, error: Exception, folder: str, *, is_shared: bool) -> "NoRoom":
        shared = f"Correct this, or set {STAGE} to another place (`onceload doctor` checks it)"
        fix = shared if is_shared else "Make room there, or set TMPDIR to a folder with more room"
        return cls(folder, in_words(error).rstrip("."), fix)

    @classmethod
    def not_visible(cls) -> "NoRoom":
        reason = "a worker does not see it, and the rows of a piece are too many to be handed over in memory"
        fix = f"Set {STAGE} to a folder or an S3 address that the load and its workers share"
        return cls("the folder of the load", reason, fix)


@dataclass(eq=False)
class RowsLost(CallAgain):
    """The rows of a batch were lost or changed again and again while they waited to be copied."""

    folder: str

    def __str__(self) -> str:
        return (
            f"rows that waited in {self.folder} to be copied were lost or changed several times. Nothing of the batch "
            "was loaded. Look for a full or broken disk, and for a program that removes files there. Or set "
            "ONCELOAD_STAGE to another place. Then load again."
        )


@contextmanager
def open_folder(address: str | None = None) -> Iterator[StageFolder]:
    """A new folder at an address, or where Python keeps temporary files (TMPDIR)."""
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(_new_folder(address))
        except SettingRefused as refused:
            raise SettingRefused(STAGE, refused.found, refused.expected) from refused
        except Exception as error:
            home = address or tempfile.tempdir or "a folder for temporary files"
            raise NoRoom.after(error, home, is_shared=address is not None) from error
        yield folder


def _new_folder(address: str | None) -> AbstractContextManager[StageFolder]:
    if address is None:
        return own_folder(Path(tempfile.gettempdir()))
    return store_folder(address) if is_of_s3(address) else shared_folder(Path(address))


@dataclass(kw_only=True)
class PieceFile:
    """The file of one piece, which is created with its first bytes."""

    folder: StageFolder
    name: str
    _output: BinaryIO | None = None

    def write(self, chunk: bytes) -> None:
        with self._naming_the_folder():
            if self._output is None:
                self._output = self.folder.create(self.name)
            _write_all(self._output, chunk)

    @contextmanager
    def completing(self) -> Iterator[None]:
        """Complete the file behind the block, or remove it if there was an error."""
        try:
            yield
            if self._output is not None:
                with self._naming_the_folder():
                    self._output.close()
        except BaseException:
            for end in (self._output.close, partial(self.folder.remove, self.name)) if self._output else ():
                # Otherwise it goes with the folder.
                with suppress(Exception):
                    end()
            raise

    @contextmanager
    def _naming_the_folder(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise NoRoom.after(error, self.folder.path, is_shared=self.folder.is_shared) from error


@dataclass(kw_only=True)
class BlockWriter:
    """The blocks of one piece, in its file, or in memory."""

    target: PieceFile | None = None
    #: Why there is no file, unless this process does not see the folder; raised if the rows are too many for memory.
    no_room: NoRoom | None = None
    blocks: list[Block] = field(default_factory=list)
    _bytes: int = 0

    @property
    def file(self) -> str | None:
        return None if self.target is None else self.target.name

    def write(self, encoded: Iterable[bytes], *, rows: int, added: tuple[Column, ...] = (), bucket: int = 0) -> None:
        checksum, size = 0, 0
        held: list[bytes] = []
        for chunk in encoded:
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
            if self.target is not None:
                self.target.write(chunk)
            elif self._bytes + size <= _HELD_BYTES_MAX:
                held.append(chunk)
            else:
                raise self.no_room or NoRoom.not_visible()
        self.blocks.append(
            Block(
                rows=rows,
                first_byte=self._bytes,
                size=size,
                checksum=checksum,
                added=added,
                bucket=bucket,
                content=b"".join(held) if self.target is None else None,
            )
        )
        self._bytes += size


def written_once(folder: StageFolder, write: Callable[[BlockWriter], Piece]) -> Piece:
    """Let a piece be written into the folder, or into memory if this process does not see it."""
    if not folder.is_here():
        return write(BlockWriter())
    # Each try of a task has a file of its own.
    file = PieceFile(folder=folder, name=token_hex(8))
    with file.completing():
        return write(BlockWriter(target=file))


def written(folder: StageFolder, write: Callable[[BlockWriter], Piece]) -> Piece:
    """The same; without room in the folder, the piece is written again, into memory."""
    try:
        return written_once(folder, write)
    except NoRoom as no_room:
        return write(BlockWriter(no_room=no_room))


def _write_all(output: BinaryIO, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[output.write(view) :]


def content_of(folder: StageFolder, piece: Piece, block: Block) -> Iterator[bytes]:
    """The bytes of a block. The last is followed by BlockLost if they are not those that were written."""
    checksum, size = 0, 0
    for chunk in _chunks(folder, piece, block):
        checksum = zlib.crc32(chunk, checksum)
        size += len(chunk)
        yield chunk
    if size != block.size or checksum != block.checksum:
        raise BlockLost(folder.path)


def _chunks(folder: StageFolder, piece: Piece, block: Block) -> Iterator[bytes]:
    if block.content is not None:
        yield block.content
        return
    if piece.file is None:
        raise BlockLost(folder.path)
    end = block.first_byte + block.size
    try:
        for offset in range(block.first_byte, end, _READ_BYTES):
            yield folder.read(piece.file, offset=offset, size=min(_READ_BYTES, end - offset))
    except Unreadable as error:
        raise BlockLost(folder.path) from error
