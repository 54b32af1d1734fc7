"""The files that a load was asked for."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from onceload_jobs.files.listing import Listing
from onceload_jobs.files.notes import Note


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The files of a load; all of them by default."""

    #: Names, or patterns of names in which * also matches folders; empty means all.
    files: tuple[str, ...] = ()
    #: Reload them, and replace their rows.
    replaces: bool = False
    #: Rows to be replaced also go if their file is empty, or is another one of its name in another folder.
    accepts_differences: bool = False
    #: Files that are not replaced again, because this batch has done it.
    done: frozenset[str] = frozenset()
    #: Why they are not.
    notes: tuple[Note, ...] = ()

    def includes(self, name: str) -> bool:
        return not self.files or any(name == each or fnmatchcase(name, each) for each in self.files)


EVERYTHING = Choice()


def chosen_of(listing: Listing, choice: Choice) -> Listing:
    if not choice.files:
        return listing
    return replace(
        listing,
        files=tuple(listed for listed in listing.files if choice.includes(listed.name)),
        folders=tuple(filter(choice.includes, listing.folders)),
    )
