"""A declared pipeline as a value: what the ledger needs to know about it."""

import sys
from dataclasses import dataclass, field
from enum import StrEnum

from onceload_core.declaration import Declaration
from onceload_core.errors import SettingRefused

_INT4_MAX = 2**31 - 1
_INT8_MAX = 2**63 - 1


class Guarantee(StrEnum):
    """Whether spans that are already consumed are refused. They are recorded either way."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, kw_only=True)
class SnapshotPolicy:
    """A snapshot is due after a number of commits or seconds, whichever comes first."""

    every_commits: int = 1000
    every_s: float = 120.0
    #: Older ones are deleted. The ledger keeps everything, so one is enough to recover.
    kept: int = 10

    def __post_init__(self) -> None:
        _between("snapshot.every_commits", self.every_commits, 1, _INT4_MAX)
        _between("snapshot.every", self.every_s, 0, _INT4_MAX)
        _between("snapshot.kept", self.kept, 1, _INT4_MAX)

    def is_due(self, *, commits_since: int, seconds_since: float) -> bool:
        """Without commits since the last snapshot none is due, however old that is."""
        return commits_since > 0 and (commits_since >= self.every_commits or seconds_since >= self.every_s)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A declared way from a source to a target table."""

    name: str
    #: None: exactly once.
    guarantee: Guarantee | None = None
    producers_max: int = 10_000_000
    #: To advance a producer of 100 000 islands takes 0.24 s, so the limit is well below that.
    islands_max: int = 10_000
    #: For producers that records name. None: they are never forgotten.
    forget_idle_after_s: float | None = None
    #: The least number of days that a business id is remembered. 0: ids are not used.
    message_keep_days: int = 0
    declaration: Declaration = field(default_factory=Declaration)
    #: The folder that file names were relative to before. It declares that the names stayed the same.
    moved_from: str | None = None
    #: The address of the folder that file names are relative to, the same however it is spelt. None: it has no files.
    folder: str | None = None
    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise SettingRefused("pipeline", repr(self.name), "a printable name of 1 to 200 characters")
        _between("producers_max", self.producers_max, 1, _INT8_MAX)
        _between("islands_max", self.islands_max, 1, _INT4_MAX)
        _between("message_id.keep", self.message_keep_days, 0, 36_500)
        if self.forget_idle_after_s is not None:
            _between("forget_idle_after", self.forget_idle_after_s, 1, _INT4_MAX)


def _between(setting: str, found: float, least: int, most: int) -> None:
    if not least <= found <= most:
        raise SettingRefused(setting, str(found), f"{least} to {most}")


def refuse_other_encodings() -> None:
    """Refuse a process that decodes the names of files otherwise than others: to it, each would be another file."""
    found = sys.getfilesystemencoding()
    if found != "utf-8":
        expected = (
            "UTF-8, because loaded files are recorded by their names in UTF-8. Set PYTHONUTF8=1, or a locale of UTF-8 "
            "such as LC_ALL=C.UTF-8"
        )
        raise SettingRefused("the encoding of file names in this process", found, expected)
