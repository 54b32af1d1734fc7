"""A declared pipeline as a value: what the ledger has to know of it."""

from dataclasses import dataclass, field
from enum import StrEnum

from dedup_core.declaration import Declaration
from dedup_core.errors import SettingRefused

_INT4_MAX = 2**31 - 1
_INT8_MAX = 2**63 - 1


class Guarantee(StrEnum):
    """Whether spans that were consumed before are refused; they are written down either way."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, kw_only=True)
class SnapshotPolicy:
    """A snapshot is due after so many commits or so much time, whichever is first."""

    every_commits: int = 1000
    every_s: float = 120.0
    #: Older ones are dropped; the ledger keeps everything, so one is enough to recover.
    kept: int = 10

    def __post_init__(self) -> None:
        _between("snapshot.every_commits", self.every_commits, 1, _INT4_MAX)
        _between("snapshot.every", self.every_s, 0, _INT4_MAX)
        _between("snapshot.kept", self.kept, 1, _INT4_MAX)

    def is_due(self, *, commits_since: int, seconds_since: float) -> bool:
        """Nothing new since the last one is never due, however long ago that was."""
        return commits_since > 0 and (commits_since >= self.every_commits or seconds_since >= self.every_s)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A declared way from a source to a target table."""

    name: str
    #: Left out, exactly once.
    guarantee: Guarantee | None = None
    producers_max: int = 10_000_000
    #: A producer of 100 000 islands takes 0.24 s to advance, so the bound comes well before that.
    islands_max: int = 10_000
    #: Of producers that records name; left out, none is ever forgotten.
    forget_idle_after_s: float | None = None
    #: How long a business id is remembered, at the least; 0: ids are not used.
    message_keep_days: int = 0
    declaration: Declaration = field(default_factory=Declaration)
    #: The folder that names of files started below before; it says that the names stayed.
    moved_from: str | None = None
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
