"""Which files there are.

Local folders go a short way past fsspec, which alone would take seconds to look at ten thousand files.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

from dedup_core.errors import NotFound, SettingRefused
from dedup_core.ports import NAME_BYTES_MAX
from spark_jobs.files.addresses import (
    Unreadable,
    backend_of,
    etag_of,
    in_words,
    is_object_store,
    local_path,
    path_below,
    path_refused,
    shown,
    told,
)
from spark_jobs.files.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as it was when its folder was read."""

    #: Its path below the source's root.
    name: str
    url: str
    size: int
    #: Seconds since 1970, where the store tells; it never decides whether a file is the same.
    modified_at: float | None
    #: What the store calls its content.
    etag: str | None = None


@dataclass(frozen=True, order=True, slots=True)
class Name:
    """One of several names of a file; those that are no symbolic links sort first."""

    is_link: bool
    name: str


@dataclass(frozen=True)
class Listing:
    files: tuple[Listed, ...]
    #: What the pattern means and nobody should read: the name as `repr` writes it, and why.
    refused: tuple[tuple[str, str], ...] = ()
    #: Files that neither the ledger nor an address can name, told in the same way.
    misnamed: tuple[tuple[str, str], ...] = ()
    #: What might be read with other rights, told in the same way.
    unreadable: tuple[tuple[str, str], ...] = ()
    #: Folders whose names the pattern means too: they may have been files.
    folders: tuple[str, ...] = ()
    #: For each file of this machine that is listed under several names, all of them.
    names_of_one: tuple[tuple[Name, ...], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.refused or self.misnamed or self.unreadable)


def root_of(pattern: str, *, root: str | None = None) -> str:
    """The folder that the names of a pattern's files start below: the one before the first wildcard, or a given one."""
    return Pattern.parse(pattern, root=root).root


def list_files(pattern: str, *, root: str | None = None) -> Listing:
    """Find a pattern's files, by their names below its root; what vanishes meanwhile was never there."""
    parsed = Pattern.parse(pattern, root=root)
    return _list_local(parsed) if local_path(parsed.folder) else _list_remote(parsed)


def _fault_of(name: str) -> str | None:
    """Names go into the ledger and into messages, and some would fit into neither."""
    if "\0" in name or "\n" in name:
        return "its name holds a NUL or a newline"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    return f"its name has {size} bytes, and at most {NAME_BYTES_MAX} are kept" if size > NAME_BYTES_MAX else None


def _list_local(pattern: Pattern) -> Listing:
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
        raise _folder_refused(folder, error) from error
    while walk.folders:
        walk.deeper()
    return walk.found.listing()


@dataclass
class _Found:
    """What a walk has met so far, in any order."""

    files: list[Listed] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    misnamed: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    #: By device and inode.
    linked: dict[tuple[int, int], set[Name]] = field(default_factory=dict)

    def listing(self) -> Listing:
        return Listing(
            files=tuple(sorted(self.files, key=lambda file: file.name)),
            refused=tuple(sorted(self.refused)),
            misnamed=tuple(sorted(self.misnamed)),
            unreadable=tuple(sorted(self.unreadable)),
            folders=tuple(sorted(self.folders)),
            names_of_one=tuple(sorted(self._names_of_one())),
        )

    def _names_of_one(self) -> Iterator[tuple[Name, ...]]:
        """What a link leads to need not be listed."""
        listed = {file.name for file in self.files} if self.linked else set[str]()
        for names in self.linked.values():
            there = tuple(sorted(each for each in names if each.name in listed))
            if len(there) > 1:
                yield there


@dataclass
class _Walk:
    """Goes through the folders that a pattern can lead to, and through no other."""

    pattern: Pattern
    root: str
    real_root: str
    found: _Found = field(default_factory=_Found)
    folders: list[tuple[str, frozenset[int]]] = field(default_factory=list)

    def deeper(self) -> None:
        below, places = self.folders.pop()
        with self._refusing(below):
            self.into(path_below(self.root, below), below=below, places=places)

    def into(self, folder: str, *, below: str, places: frozenset[int]) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                reached = self.pattern.after(places, entry.name)
                if reached:
                    with self._refusing(below + entry.name):
                        self._meet(entry, name=below + entry.name, reached=reached)

    def _meet(self, entry: os.DirEntry[str], *, name: str, reached: frozenset[int]) -> None:
        is_folder, full_name = entry.is_dir(), self.pattern.prefix + name
        misnamed = _fault_of(full_name)
        if is_folder and self.pattern.is_one_name:
            raise path_refused(entry.path, "a pattern of files, such as folder/*.jsonl")
        if is_folder and self.pattern.end in reached and not misnamed:
            self.found.folders.append(full_name)
        if reached == {self.pattern.end} if is_folder else self.pattern.end not in reached:
            return
        if misnamed:
            self.found.misnamed.append((repr(full_name), misnamed))
        elif fault := self._fault_of_link(entry) if entry.is_symlink() else None:
            self.found.refused.append((repr(full_name), fault))
        elif is_folder:
            self.folders.append((name + "/", reached))
        else:
            self._meet_file(entry, name)

    def _meet_file(self, entry: os.DirEntry[str], name: str) -> None:
        found, full_name = entry.stat(), self.pattern.prefix + name
        if not stat.S_ISREG(found.st_mode):
            self.found.refused.append((repr(full_name), "it is no regular file"))
            return
        self.found.files.append(Listed(full_name, path_below(self.root, name), found.st_size, found.st_mtime))
        # Some disks number no files.
        if found.st_ino and (found.st_nlink > 1 or entry.is_symlink()):
            names = self.found.linked.setdefault((found.st_dev, found.st_ino), set())
            names.add(Name(entry.is_symlink(), full_name))
            if entry.is_symlink():
                target = os.path.relpath(os.path.realpath(entry.path), self.real_root)
                names.add(Name(is_link=False, name=self.pattern.prefix + target))

    def _fault_of_link(self, entry: os.DirEntry[str]) -> str | None:
        target = os.path.realpath(entry.path)
        if target != self.real_root and not target.startswith(path_below(self.real_root, "")):
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
        except OSError as error:
            # A link that leads to itself stays one; all else may be readable when somebody calls again.
            told = self.found.refused if error.errno == errno.ELOOP else self.found.unreadable
            told.append((repr(self.pattern.prefix + name), in_words(error)))


def _list_remote(pattern: Pattern) -> Listing:
    listing = _Found()
    with told(pattern.folder):
        backend, base = backend_of(pattern.folder)
        # A backend remembers listings for as long as the process lives.
        backend.invalidate_cache()
        try:
            if pattern.is_deep and is_object_store(backend):
                # Pages of a thousand names, whatever their folders.
                found = _by_name(base, backend.find(base, detail=True).values())
                missing = not found and not _exists(backend, base)
            else:
                found, missing = dict(_walk_remote(backend, base, pattern, listing.unreadable)), False
        except PermissionError as error:
            raise _folder_refused(pattern.folder, error) from error
        except FileNotFoundError:
            found, missing = {}, not (is_object_store(backend) and _exists(backend, base))
        if missing and not (pattern.prefix and _exists(*backend_of(pattern.root))):
            raise NotFound("source folder", shown(pattern.folder))
        # Of a million files that is a gigabyte, and nobody asks for it again.
        backend.invalidate_cache()
    meant = {name: facts for name, facts in found.items() if _is_file(facts) and pattern.means(name)}
    for name, facts in meant.items():
        if fault := _fault_of(pattern.prefix + name) or _fault_of_address(name):
            listing.misnamed.append((repr(pattern.prefix + name), fault))
        elif fault := _find_size(backend, facts):
            listing.unreadable.append((repr(pattern.prefix + name), fault))
        else:
            listing.files.append(_listed(pattern, name, facts, etag=etag_of(backend, facts)))
    return listing.listing()


def _walk_remote(
    backend: Any,  # noqa: ANN401 - fsspec ships no types.
    base: str,
    pattern: Pattern,
    unreadable: list[tuple[str, str]],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Go through the folders that a pattern can lead to.

    fsspec's own walk leaves out a folder that cannot be listed, and says nothing.
    """
    folders = [("", pattern.start)]
    while folders:
        below, places = folders.pop()
        try:
            entries = backend.ls(path_below(base, below) if below else base, detail=True)
        except (FileNotFoundError, PermissionError) as error:
            if not below:
                raise
            if isinstance(error, PermissionError):
                unreadable.append((repr(pattern.prefix + below), in_words(error)))
            continue
        for name, facts in _by_name(base, entries).items():
            inside = name.removeprefix(below).strip("/")
            reached = reduce(pattern.after, inside.split("/"), places) if inside else frozenset()
            # A link to a folder would lead to the same files under another name, or in a circle.
            if facts["type"] == "directory" and reached - {pattern.end}:
                folders.append((name.rstrip("/") + "/", reached))
            elif _is_file(facts) and pattern.end in reached:
                yield name, facts


def _by_name(base: str, entries: Iterable[dict[str, Any]]) -> Mapping[str, dict[str, Any]]:
    return {facts["name"].removeprefix(base).removeprefix("/"): facts for facts in entries}


def _fault_of_address(name: str) -> str | None:
    """Names become part of an address, in which these would lead elsewhere."""
    found = next((each for each in ("::", "://") if each in name), None)
    return None if found is None else f"its name holds {found!r}, which leads elsewhere in an address"


def _folder_refused(folder: str, error: OSError) -> SettingRefused:
    return path_refused(folder, f"a folder that can be read, not one that says: {in_words(error)}")


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
    return bool(backend.exists(base.split("/", maxsplit=1)[0] if is_object_store(backend) else base))


def _listed(pattern: Pattern, name: str, facts: dict[str, Any], *, etag: str | None) -> Listed:
    stamps = (facts.get(key) for key in ("mtime", "LastModified", "last_modified", "updated", "modified"))
    modified: Any = next((stamp for stamp in stamps if stamp is not None), None)
    match modified:
        case datetime():
            modified_at = modified.timestamp()
        case str():
            modified_at = datetime.fromisoformat(modified).timestamp()
        case _:
            modified_at = modified
    return Listed(pattern.prefix + name, path_below(pattern.folder, name), int(facts["size"]), modified_at, etag)
