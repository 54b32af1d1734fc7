"""Match paths with patterns."""

import posixpath
import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

from onceload_jobs.files.addresses import path_refused, shown, split_address

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A pattern as an automaton over the parts of a path; its places are the positions reached so far."""

    root: str
    #: The folder where listing starts, and the path from the root to it.
    folder: str
    prefix: str
    #: One entry for each part of the path; None stands for `**`: any number of folders.
    steps: tuple[re.Pattern[str] | None, ...]
    is_one_name: bool

    @classmethod
    def parse(cls, pattern: str, *, root: str | None = None) -> "Pattern":
        scheme, path = split_address(pattern)
        parts = posixpath.normpath(path).split("/")
        if "\0" in path or parts[-1] in {"", ".", ".."} or (scheme and parts[0] == ".."):
            raise path_refused(pattern, "a pattern of files, such as folder/*.jsonl")
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
    def is_deep(self) -> bool:
        """Whether files may be any number of folders below."""
        return None in self.steps

    def after(self, places: frozenset[int], part: str) -> frozenset[int]:
        """The places after one more part of a path; none if nothing below can match."""
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

    def matches(self, name: str) -> bool:
        places = self.start
        for part in name.split("/"):
            places = self.after(places, part)
        return self.end in places

    def _closed(self, places: set[int]) -> frozenset[int]:
        """Add the places after `**`, which may also match no folder."""
        for place in range(self.end):
            if place in places and self.steps[place] is None:
                places.add(place + 1)
        return frozenset(places)


def _prefix(pattern: str, *, root: str, folder: str) -> str:
    (scheme, above), (folder_scheme, below) = split_address(root), split_address(folder)
    prefix = posixpath.relpath(below or ".", above or ".")
    if scheme != folder_scheme or prefix.split("/")[0] == "..":
        raise path_refused(pattern, f"a pattern of files below {shown(root)}")
    return "" if prefix == "." else prefix + "/"


def _step(pattern: str, part: str) -> re.Pattern[str] | None:
    if part == "**":
        return None
    if "**" in part:
        raise path_refused(pattern, "`**` only as a whole part of the path, as in a/**/b")
    # Writers hide unfinished files with a leading dot: they match only if the pattern spells the dot.
    return re.compile(("" if part.startswith(".") else r"(?!\.)") + translate(part))
