"""List the files of a source.

Local folders are listed directly, because fsspec takes seconds for ten thousand files.
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

from onceload_core.checks import NAME_BYTES_MAX
from onceload_core.errors import NotFound, SettingRefused
from onceload_core.pipeline import refuse_other_encodings
from onceload_jobs.files.addresses import (
    Unreadable,
    backend_of,
    errors_naming,
    etag_of,
    in_words,
    is_object_store,
    local_path,
    path_below,
    path_refused,
    shown,
)
from onceload_jobs.files.patterns import Pattern
from onceload_jobs.files.reading import NOT_REGULAR


@dataclass(frozen=True, slots=True)
class Listed:
    """A file at the time its folder was listed."""

    #: Its path below the source's root.
    name: str
    url: str
    size: int
    #: Seconds since 1970, if the store reports it; never used to decide whether a file is the same.
    modified_at: float | None
    #: Its ETag.
    etag: str | None = None


@dataclass(frozen=True, order=True, slots=True)
class Name:
    """One of several names of a file; names that are not symbolic links sort first."""

    is_link: bool
    name: str


@dataclass(frozen=True)
class Listing:
    files: tuple[Listed, ...]
    #: Matches that must not be read: the name, which may be unprintable, and why.
    refused: tuple[tuple[str, str], ...] = ()
    #: Files with names that the ledger or an address cannot hold, in the same form.
    misnamed: tuple[tuple[str, str], ...] = ()
    #: Files that may be readable later or with other rights, in the same form.
    unreadable: tuple[tuple[str, str], ...] = ()
    #: Folders that also match the pattern: they may have been files.
    folders: tuple[str, ...] = ()
    #: The names of each local file that is listed under several names.
    names_of_one: tuple[tuple[Name, ...], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.refused or self.misnamed or self.unreadable)


def root_of(pattern: str, *, root: str | None = None) -> str:
    """The folder that file names start below: the one before the first wildcard, or a given root."""
    return Pattern.parse(pattern, root=root).root


def url_of(pattern: str, name: str, *, root: str | None = None) -> str:
    """The address of the file with this name below the root of a pattern."""
    folder = root_of(pattern, root=root)
    local = local_path(folder)
    if local is not None:
        return str(Path(local).expanduser().absolute() / name)
    return folder + name if folder.endswith("/") else f"{folder}/{name}"


def list_files(pattern: str, *, root: str | None = None) -> Listing:
    """List the files of a pattern with their names below its root; files that vanish meanwhile are ignored."""
    refuse_other_encodings()
    parsed = Pattern.parse(pattern, root=root)
    return _list_local(parsed) if local_path(parsed.folder) else _list_remote(parsed)


def _fault_of(name: str) -> str | None:
    """Why the ledger or a message cannot hold a name."""
    if "\0" in name or "\n" in name:
        return "its name contains a NUL or a newline"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    return f"its name has {size} bytes; at most {NAME_BYTES_MAX} are allowed" if size > NAME_BYTES_MAX else None


def _list_local(pattern: Pattern) -> Listing:
    folder = posixpath.normpath(Path(local_path(pattern.folder) or ".").expanduser().absolute())
    walk = _Walk(pattern, root=folder, real_root=os.path.realpath(folder))
    try:
        walk.into(folder, below="", places=pattern.start)
    except FileNotFoundError as error:
        if pattern.prefix and Path(local_path(pattern.root) or ".").expanduser().is_dir():
            # The folder of today is created with its first file.
            return Listing(())
        raise NotFound("source folder", folder) from error
    except OSError as error:
        raise _folder_refused(folder, error) from error
    while walk.folders:
        walk.deeper()
    return walk.found.listing()


@dataclass
class _Found:
    """What a walk found so far, unsorted."""

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
        """The target of a link need not be listed itself."""
        listed = {file.name for file in self.files} if self.linked else set[str]()
        for names in self.linked.values():
            there = tuple(sorted(each for each in names if each.name in listed))
            if len(there) > 1:
                yield there


@dataclass
class _Walk:
    """Walks only the folders that a pattern can match."""

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
        if not self._is_meant(reached, is_folder=is_folder):
            return
        if misnamed:
            self.found.misnamed.append((full_name, misnamed))
        elif fault := self._find_fault_of_link(entry):
            self.found.refused.append((full_name, fault))
        elif is_folder:
            self.folders.append((name + "/", reached))
        else:
            self._meet_file(entry, name)

    def _is_meant(self, reached: frozenset[int], *, is_folder: bool) -> bool:
        """Whether a file has a name of the pattern, or a folder may hold files that have."""
        return reached != {self.pattern.end} if is_folder else self.pattern.end in reached

    def _meet_file(self, entry: os.DirEntry[str], name: str) -> None:
        found, full_name = entry.stat(), self.pattern.prefix + name
        if not stat.S_ISREG(found.st_mode):
            self.found.refused.append((full_name, NOT_REGULAR))
            return
        self.found.files.append(Listed(full_name, path_below(self.root, name), found.st_size, found.st_mtime))
        # Some file systems have no inode numbers.
        if found.st_ino and (found.st_nlink > 1 or entry.is_symlink()):
            names = self.found.linked.setdefault((found.st_dev, found.st_ino), set())
            names.add(Name(entry.is_symlink(), full_name))
            if entry.is_symlink():
                target = os.path.relpath(os.path.realpath(entry.path), self.real_root)
                names.add(Name(is_link=False, name=self.pattern.prefix + target))

    def _find_fault_of_link(self, entry: os.DirEntry[str]) -> str | None:
        if not entry.is_symlink():
            return None
        target = os.path.realpath(entry.path)
        if target != self.real_root and not target.startswith(path_below(self.real_root, "")):
            return "it is a symbolic link that leaves the source's root, so it is not loaded"
        # Following it would load the same files under two names, or never end.
        return "symbolic links to folders are not followed. Name the folder itself" if entry.is_dir() else None

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """Record a file that cannot be read, and go on; ignore one that vanished."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            # A link to itself is permanent; everything else may be readable later.
            faults = self.found.refused if error.errno == errno.ELOOP else self.found.unreadable
            faults.append((self.pattern.prefix + name, in_words(error)))


def _list_remote(pattern: Pattern) -> Listing:
    listing = _Found()
    with errors_naming(pattern.folder):
        backend, base = backend_of(pattern.folder)
        # A backend caches listings for the life of the process.
        backend.invalidate_cache()
        try:
            if pattern.is_deep and is_object_store(backend):
                # List pages of a thousand names across all folders.
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
        # With a million files this cache is a gigabyte, and it is not used again.
        backend.invalidate_cache()
    meant = {name: facts for name, facts in found.items() if _is_file(facts) and pattern.matches(name)}
    for name, facts in meant.items():
        if fault := _fault_of(pattern.prefix + name) or _fault_of_address(name):
            listing.misnamed.append((pattern.prefix + name, fault))
        elif fault := _find_size(backend, facts):
            listing.unreadable.append((pattern.prefix + name, fault))
        else:
            listing.files.append(_listed(pattern, name, facts, etag=etag_of(backend, facts)))
    return listing.listing()


def _walk_remote(
    backend: Any,  # noqa: ANN401 - fsspec ships no types.
    base: str,
    pattern: Pattern,
    unreadable: list[tuple[str, str]],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk the folders that a pattern can match.

    The walk of fsspec silently skips folders that cannot be listed.
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
                unreadable.append((pattern.prefix + below, in_words(error)))
            continue
        for name, facts in _by_name(base, entries).items():
            inside = name.removeprefix(below).strip("/")
            reached = reduce(pattern.after, inside.split("/"), places) if inside else frozenset()
            # A link to a folder would give the same files another name, or never end.
            if facts["type"] == "directory" and reached - {pattern.end}:
                folders.append((name.rstrip("/") + "/", reached))
            elif _is_file(facts) and pattern.end in reached:
                yield name, facts


def _by_name(base: str, entries: Iterable[dict[str, Any]]) -> Mapping[str, dict[str, Any]]:
    return {facts["name"].removeprefix(base).removeprefix("/"): facts for facts in entries}


def _fault_of_address(name: str) -> str | None:
    """Refuse names that would change the meaning of an address."""
    found = next((each for each in ("::", "://") if each in name), None)
    return None if found is None else f"its name contains {found!r}, which would change the address"


def _folder_refused(folder: str, error: OSError) -> SettingRefused:
    return path_refused(folder, f"a readable folder (error: {in_words(error)})")


def _is_file(facts: dict[str, Any]) -> bool:
    return facts["type"] == "file" and not facts["name"].endswith("/")


def _find_size(backend: Any, facts: dict[str, Any]) -> str | None:  # noqa: ANN401 - fsspec ships no types.
    """Ask for a size that the listing did not include, as with web servers; return why it is unknown."""
    if facts.get("size") is None:
        try:
            with errors_naming(facts["name"]):
                facts["size"] = backend.info(facts["name"]).get("size")
        except Unreadable as error:
            return error.reason
    return "its server does not report its size" if facts["size"] is None else None


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
