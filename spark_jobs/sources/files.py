"""Where sources are read: which files a pattern means, and the bytes in them, packed or not.

Local files go a short way past fsspec, which alone would take seconds to look at ten thousand files.
"""

import errno
import io
import os
import posixpath
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from dedup_core.errors import CallAgain, NeedsAPerson, NotFound, OnceloadError, SettingRefused

_WILDCARD = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"(?:file|local):(?://)?|(?:[\w+.-]+::)*[\w+.-]+://")
#: Stores without folders of their own: there, an empty folder is one that no file has come to yet.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2"})
_PACKED_BYTES = 64 * 2**10
_UNPACKED_BYTES = 2**20
#: Four bytes of zstd may stand for 128 KiB, so that a larger step could not bound what comes out of it.
_ZSTD_BYTES = 512
_REMOTE_BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as it was when its folder was read."""

    #: Its path below the source's root.
    name: str
    url: str
    size: int
    #: Seconds since 1970, where the store tells; it never decides whether a file is the same.
    modified_at: float | None


@dataclass(frozen=True)
class Listing:
    files: tuple[Listed, ...]
    #: What the pattern means and nobody should read: the name as `repr` writes it, and why.
    refused: tuple[tuple[str, str], ...] = ()
    #: What might be read with other rights, told in the same way.
    unreadable: tuple[tuple[str, str], ...] = ()


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"

    @classmethod
    def of(cls, name: str) -> "Compression":
        """A name's last suffix decides, as it does for gzip and zstd themselves."""
        if name.endswith(".gz"):
            return cls.GZIP
        return cls.ZSTD if name.endswith(".zst") else cls.NONE


@dataclass(eq=False)
class Unreadable(CallAgain):
    url: str
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.url)} should have been readable, but {self.reason}; nothing was loaded of it: call again"


@dataclass(eq=False)
class Incomplete(CallAgain):
    url: str
    #: How many bytes could be unpacked.
    end: int

    def __str__(self) -> str:
        return (
            f"{shown(self.url)} should end where its compression does, but breaks off after {self.end} unpacked bytes; "
            "call again when it is whole"
        )


@dataclass(eq=False)
class Damaged(NeedsAPerson):
    url: str
    #: How many bytes could be unpacked.
    end: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{shown(self.url)} should unpack, but is damaged after {self.end} unpacked bytes ({self.reason}); "
            "only whole records before that are loaded: put a whole copy in its place"
        )


def root_of(pattern: str, *, root: str | None = None) -> str:
    """The folder that the names of a pattern's files start below: the one before the first wildcard, or a given one."""
    return _Pattern.parse(pattern, root=root).root


def list_files(pattern: str, *, root: str | None = None) -> Listing:
    """Find a pattern's files, by their names below its root; what vanishes meanwhile was never there."""
    parsed = _Pattern.parse(pattern, root=root)
    return _list_local(parsed) if local_path(parsed.folder) else _list_remote(parsed)


def open_stream(url: str) -> BinaryIO:
    """Open a file at the start of its unpacked stream; each `read(size)` is whole until the stream ends."""
    with told(url):
        path = local_path(url)
        opened = _open_local(path) if path else _open_remote(url)
    match Compression.of(url):
        case Compression.NONE:
            return opened
        case Compression.GZIP:
            unpacked = _Unpacked(url, opened, _gunzip(opened))
        case Compression.ZSTD:
            unpacked = _Unpacked(url, opened, _unzstd(opened))
    # The typing module counts no class of io's as a BinaryIO but those that open() returns.
    return cast("BinaryIO", unpacked)


def read_at(url: str, *, offset: int, size: int) -> bytes:
    """Read from the middle of a file as it lies there; fewer bytes come back only at its end."""
    if size <= 0:
        return b""
    with told(url):
        path = local_path(url)
        return _read_local(path, offset=offset, size=size) if path else _read_remote(url, offset=offset, size=size)


def size_of(url: str) -> int:
    """Say how large a file is as it lies there."""
    with told(url):
        path = local_path(url)
        if path:
            return Path(path).stat().st_size
        backend, place = _backend(url)
        return int(backend.size(place))


def local_path(url: str) -> str | None:
    """Where a URL lies on this machine, if it does."""
    if url.startswith("/"):
        return url
    scheme, path = _split(url)
    return path if scheme == "" else None


def shown(url: str) -> str:
    """Write a URL for people and logs: without the password that it may hold."""
    return re.sub(r"://[^/@]*@", "://", url)


@contextmanager
def told(url: str) -> Iterator[None]:
    """Every backend raises errors of its own; tell them all in our words."""
    try:
        yield
    except OnceloadError:
        raise
    except FileNotFoundError as error:
        raise Unreadable(url, "it is gone") from error
    except Exception as error:
        raise Unreadable(url, _words(error)) from error


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _split(url: str) -> tuple[str, str]:
    """The scheme with its `://`, and the path; the scheme of a local path is empty."""
    found = _SCHEME.match(url)
    scheme = found.group() if found else ""
    path = url[len(scheme) :]
    return ("", path) if scheme.startswith(("file:", "local:")) else (scheme, path)


@dataclass(frozen=True, kw_only=True)
class _Pattern:
    """A pattern as an automaton over the parts of a path: how far each way into it has come."""

    root: str
    #: Where listing starts, and what leads there from the root.
    folder: str
    prefix: str
    #: One part of the path each; None stands for `**`: any number of folders.
    steps: tuple[re.Pattern[str] | None, ...]
    is_one_name: bool

    @classmethod
    def parse(cls, pattern: str, *, root: str | None = None) -> "_Pattern":
        scheme, path = _split(pattern)
        parts = posixpath.normpath(path).split("/")
        if "\0" in path or parts[-1] in {"", ".", ".."} or (scheme and parts[0] == ".."):
            raise _refused(pattern, "a pattern of files, such as folder/*.jsonl")
        wild = (at for at, part in enumerate(parts) if _WILDCARD.search(part))
        fixed = next(wild, len(parts) - 1)
        folder = "/".join(parts[:fixed]) or ("/" if path.startswith("/") else "")
        folder = scheme + (folder or ("" if scheme else "."))
        return cls(
            root=folder if root is None else root,
            folder=folder,
            prefix="" if root is None else _prefix(pattern, root=root, folder=folder),
            steps=tuple(_step(pattern, part) for part in parts[fixed:]),
            is_one_name=not _WILDCARD.search(path),
        )

    @cached_property
    def start(self) -> frozenset[int]:
        return self._closed({0})

    @property
    def end(self) -> int:
        return len(self.steps)

    @property
    def depth_max(self) -> int | None:
        return None if None in self.steps else len(self.steps)

    def after(self, places: frozenset[int], part: str) -> frozenset[int]:
        """Where one more part of a path leads from these places; nowhere, and no file below it is meant."""
        hidden = part.startswith(".")
        reached = set()
        for place in places:
            if place == self.end:
                continue
            step = self.steps[place]
            if step is None:
                reached |= set() if hidden else {place}
            elif step.match(part):
                reached.add(place + 1)
        return self._closed(reached)

    def means(self, name: str) -> bool:
        places = self.start
        for part in name.split("/"):
            places = self.after(places, part)
        return self.end in places

    def _closed(self, places: set[int]) -> frozenset[int]:
        """`**` may also stand for no folder at all."""
        for place in range(self.end):
            if place in places and self.steps[place] is None:
                places.add(place + 1)
        return frozenset(places)


def _prefix(pattern: str, *, root: str, folder: str) -> str:
    (scheme, above), (folder_scheme, below) = _split(root), _split(folder)
    prefix = posixpath.relpath(below or ".", above or ".")
    if scheme != folder_scheme or prefix.split("/")[0] == "..":
        raise _refused(pattern, f"a pattern of files below {shown(root)}")
    return "" if prefix == "." else prefix + "/"


def _step(pattern: str, part: str) -> re.Pattern[str] | None:
    if part == "**":
        return None
    if "**" in part:
        raise _refused(pattern, "`**` only as a whole part of the path, as in a/**/b")
    # Writers hide what is not finished behind a dot: only a pattern that spells the dot means it.
    return re.compile(("" if part.startswith(".") else r"(?!\.)") + translate(part))


def _refused(pattern: str, expected: str) -> SettingRefused:
    return SettingRefused(setting="source.path", found=shown(pattern), expected=expected)


def _below(root: str, name: str) -> str:
    return root + name if root.endswith("/") else f"{root}/{name}"


def _fault_of(name: str) -> str | None:
    """Names go into the ledger and into messages, and some would fit into neither."""
    if "\0" in name or "\n" in name:
        return "its name holds a NUL or a newline"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    return None


def _list_local(pattern: _Pattern) -> Listing:
    folder = posixpath.normpath(Path(local_path(pattern.folder) or ".").expanduser().absolute())
    walk = _Walk(pattern, root=folder, real_root=os.path.realpath(folder))
    try:
        walk.into(folder, below="", places=pattern.start)
    except FileNotFoundError as error:
        if pattern.prefix and Path(local_path(pattern.root) or ".").expanduser().is_dir():
            # Today's folder comes with its first file.
            return Listing(())
        raise NotFound("source folder", folder) from error
    except OSError as error:
        raise _refused(folder, f"a folder that can be read, not one that says: {_words(error)}") from error
    while walk.folders:
        walk.deeper()
    return _listing(walk.files, refused=walk.refused, unreadable=walk.unreadable)


def _listing(
    files: Sequence[Listed], *, refused: Sequence[tuple[str, str]], unreadable: Sequence[tuple[str, str]]
) -> Listing:
    by_name = sorted(files, key=lambda file: file.name)
    return Listing(tuple(by_name), refused=tuple(sorted(refused)), unreadable=tuple(sorted(unreadable)))


@dataclass
class _Walk:
    """Goes through the folders that a pattern can lead to, and through no other."""

    pattern: _Pattern
    root: str
    real_root: str
    files: list[Listed] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    folders: list[tuple[str, frozenset[int]]] = field(default_factory=list)

    def deeper(self) -> None:
        below, places = self.folders.pop()
        with self._refusing(below):
            self.into(_below(self.root, below), below=below, places=places)

    def into(self, folder: str, *, below: str, places: frozenset[int]) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                reached = self.pattern.after(places, entry.name)
                if reached:
                    with self._refusing(below + entry.name):
                        self._meet(entry, name=below + entry.name, reached=reached)

    def _meet(self, entry: os.DirEntry[str], *, name: str, reached: frozenset[int]) -> None:
        is_folder = entry.is_dir()
        if is_folder and self.pattern.is_one_name:
            raise _refused(entry.path, "a pattern of files, such as folder/*.jsonl")
        if reached == {self.pattern.end} if is_folder else self.pattern.end not in reached:
            return
        if fault := _fault_of(name) or (entry.is_symlink() and self._fault_of_link(entry)) or None:
            self.refused.append((repr(self.pattern.prefix + name), fault))
        elif is_folder:
            self.folders.append((name + "/", reached))
        else:
            found = entry.stat()
            if stat.S_ISREG(found.st_mode):
                url = _below(self.root, name)
                self.files.append(Listed(self.pattern.prefix + name, url, found.st_size, found.st_mtime))
            else:
                self.refused.append((repr(self.pattern.prefix + name), "it is no regular file"))

    def _fault_of_link(self, entry: os.DirEntry[str]) -> str | None:
        target = os.path.realpath(entry.path)
        if target != self.real_root and not target.startswith(_below(self.real_root, "")):
            return "it is a symbolic link that leaves the source's root"
        # Following it would load the same files under two names, or walk in a circle.
        return "it is a symbolic link to a folder; name that folder itself" if entry.is_dir() else None

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """One file that cannot be looked at does not hide the others; one that vanished was never there."""
        try:
            yield
        except FileNotFoundError:
            pass
        except PermissionError as error:
            self.unreadable.append((repr(self.pattern.prefix + name), _words(error)))
        except OSError as error:
            self.refused.append((repr(self.pattern.prefix + name), _words(error)))


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


def _list_remote(pattern: _Pattern) -> Listing:
    with told(pattern.folder):
        backend, base = _backend(pattern.folder)
        # A backend remembers listings for as long as the process lives.
        backend.invalidate_cache()
        try:
            found = backend.find(base, maxdepth=pattern.depth_max, detail=True)
            missing = not found and not _exists(backend, base)
        except PermissionError as error:
            raise _refused(pattern.folder, f"a folder that can be read, not one that says: {_words(error)}") from error
        except FileNotFoundError:
            found, missing = {}, True
        if missing and not (pattern.prefix and _exists(*_backend(pattern.root))):
            raise NotFound("source folder", shown(pattern.folder))
    names = {path.removeprefix(base).removeprefix("/"): facts for path, facts in found.items()}
    meant = {name: facts for name, facts in names.items() if _is_file(facts) and pattern.means(name)}
    files: list[Listed] = []
    refused: list[tuple[str, str]] = []
    unreadable: list[tuple[str, str]] = []
    for name, facts in meant.items():
        if fault := _fault_of(name):
            refused.append((repr(pattern.prefix + name), fault))
        elif fault := _find_size(backend, facts):
            unreadable.append((repr(pattern.prefix + name), fault))
        else:
            files.append(_listed(pattern, name, facts))
    return _listing(files, refused=refused, unreadable=unreadable)


def _is_file(facts: dict[str, Any]) -> bool:
    return facts["type"] == "file" and not facts["name"].endswith("/")


def _find_size(backend: Any, facts: dict[str, Any]) -> str | None:  # noqa: ANN401 - fsspec ships no types.
    """Ask for a size that the listing, as that of a web server, does not tell; say why if nobody knows it."""
    if facts.get("size") is None:
        try:
            with told(facts["name"]):
                facts["size"] = backend.info(facts["name"]).get("size")
        except Unreadable as error:
            return error.reason
    return "its server does not say how large it is" if facts["size"] is None else None


def _exists(backend: Any, base: str) -> bool:  # noqa: ANN401 - fsspec ships no types.
    protocol = (backend.protocol,) if isinstance(backend.protocol, str) else backend.protocol
    return bool(backend.exists(base.split("/", maxsplit=1)[0] if _OBJECT_STORES.intersection(protocol) else base))


def _listed(pattern: _Pattern, name: str, facts: dict[str, Any]) -> Listed:
    stamps = (facts.get(key) for key in ("mtime", "LastModified", "last_modified", "updated", "modified"))
    modified: Any = next((stamp for stamp in stamps if stamp is not None), None)
    match modified:
        case datetime():
            modified_at = modified.timestamp()
        case str():
            modified_at = datetime.fromisoformat(modified).timestamp()
        case _:
            modified_at = modified
    return Listed(pattern.prefix + name, _below(pattern.folder, name), int(facts["size"]), modified_at)


def _backend(url: str) -> tuple[Any, str]:
    # The import takes longer than most runs over local files.
    from fsspec.core import url_to_fs

    try:
        return cast("tuple[Any, str]", url_to_fs(url))
    except (ValueError, ImportError) as error:
        raise _refused(url, f"an address that fsspec can open, not one that says: {error}") from error


def _open_remote(url: str) -> BinaryIO:
    backend, path = _backend(url)
    return cast("BinaryIO", backend.open(path, "rb", block_size=_REMOTE_BLOCK_BYTES))


def _read_remote(url: str, *, offset: int, size: int) -> bytes:
    backend, path = _backend(url)
    block = bytes(backend.cat_file(path, start=offset, end=offset + size))
    if len(block) > size:
        # Some web servers answer with the whole file, whatever part is asked for.
        raise OSError(errno.ENOTSUP, "its server cannot read from the middle of it")
    return block


class _BreaksOff(Exception):
    """The packed bytes end before what they pack does."""


class _Unpacked(io.RawIOBase):
    """What is in a compressed file; a failure is told only after all that came before it was read."""

    def __init__(self, url: str, packed: BinaryIO, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._url, self._packed, self._blocks = url, packed, blocks
        self._block, self._at, self._end = b"", 0, 0
        self._failure: OnceloadError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        taken: list[bytes] = []
        while size and self._has_more():
            taken.append(self._block[self._at : self._at + size])
            self._at += len(taken[-1])
            size -= len(taken[-1])
        if self._failure and size and not taken:
            raise self._failure
        return b"".join(taken)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - the standard library's type for it is its own.
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._packed.close()
        super().close()

    def _has_more(self) -> bool:
        if self._at == len(self._block) and self._failure is None:
            self._block, self._at = self._next_block(), 0
            self._end += len(self._block)
        return self._at < len(self._block)

    def _next_block(self) -> bytes:
        try:
            with told(self._url):
                return self._unpack()
        except OnceloadError as failure:
            self._failure = failure
        return b""

    def _unpack(self) -> bytes:
        try:
            return next(self._blocks, b"")
        except _BreaksOff:
            raise Incomplete(self._url, self._end) from None
        except (zlib.error, zstandard.ZstdError) as error:
            raise Damaged(self._url, self._end, str(error)) from error


def _gunzip(packed: BinaryIO) -> Iterator[bytes]:
    """Unpack member after member; like gzip itself, skip zeros that pad a file behind them."""
    member, rest = None, packed.read(_PACKED_BYTES)
    while rest:
        member = member or zlib.decompressobj(wbits=31)
        if unpacked := member.decompress(rest, _UNPACKED_BYTES):
            yield unpacked
        rest = member.unconsumed_tail or member.unused_data
        if member.eof:
            member, rest = None, rest.lstrip(b"\0")
            while not rest and (rest := packed.read(_PACKED_BYTES)):
                rest = rest.lstrip(b"\0")
        else:
            rest = rest or packed.read(_PACKED_BYTES)
    if member:
        yield from filter(None, [member.flush()])
        if not member.eof:
            raise _BreaksOff


def _unzstd(packed: BinaryIO) -> Iterator[bytes]:
    """Unpack frame after frame."""
    unpacker, frame = zstandard.ZstdDecompressor(), None
    while block := packed.read(_PACKED_BYTES):
        for at in range(0, len(block), _ZSTD_BYTES):
            step = block[at : at + _ZSTD_BYTES]
            while step:
                # A buffer of the default size would be mapped anew for every step.
                frame = frame or unpacker.decompressobj(write_size=_PACKED_BYTES)
                if unpacked := frame.decompress(step):
                    yield unpacked
                step, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise _BreaksOff
