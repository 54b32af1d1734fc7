"""Which files a load was asked for."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from spark_jobs.files.listing import Listing


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which files a load is about: all of them, unless somebody says otherwise."""

    #: Names, or patterns of names, where * also stands for folders; none means all.
    files: tuple[str, ...] = ()
    #: What was loaded of them is loaded anew, in place of its rows.
    replaces: bool = False
    #: Of these it was.
    replaced: frozenset[str] = frozenset()

    def means(self, name: str) -> bool:
        return not self.files or any(name == each or fnmatchcase(name, each) for each in self.files)


EVERYTHING = Choice()


def chosen_of(listing: Listing, choice: Choice) -> Listing:
    return replace(
        listing,
        files=tuple(listed for listed in listing.files if choice.means(listed.name)),
        folders=tuple(filter(choice.means, listing.folders)),
    )
