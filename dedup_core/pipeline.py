"""A declared pipeline as a value: what the ledger has to know of it."""

from dataclasses import dataclass, field
from enum import StrEnum

from dedup_core.errors import SettingRefused


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
        _at_least("snapshot.every_commits", self.every_commits, 1)
        _at_least("snapshot.every", self.every_s, 0)
        _at_least("snapshot.kept", self.kept, 1)

    def is_due(self, *, commits_since: int, seconds_since: float) -> bool:
        """Nothing new since the last one is never due, however long ago that was."""
        return commits_since > 0 and (commits_since >= self.every_commits or seconds_since >= self.every_s)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A declared way from a source to a target table."""

    name: str
    #: Left out, the global switch decides; said here, it wins over the switch.
    guarantee: Guarantee | None = None
    producers_max: int = 10_000_000
    #: A producer of 100 000 islands takes 0.24 s to advance, so the bound comes well before that.
    islands_max: int = 10_000
    #: Left out, no producer is ever forgotten.
    forget_idle_after_s: float | None = None
    #: How long a business id is remembered, at the least; 0: ids are not used.
    message_keep_days: int = 0
    snapshot: SnapshotPolicy = field(default_factory=SnapshotPolicy)

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise SettingRefused("pipeline", repr(self.name), "a printable name of 1 to 200 characters")
        _at_least("producers_max", self.producers_max, 1)
        _at_least("islands_max", self.islands_max, 1)
        _at_least("message_id.keep", self.message_keep_days, 0)
        if self.forget_idle_after_s is not None:
            _at_least("forget_idle_after", self.forget_idle_after_s, 1)


def guarantee_in_force(*, switch: Guarantee, declared: Guarantee | None) -> Guarantee:
    """The pipeline's own word wins over the global switch."""
    return declared or switch


def _at_least(setting: str, found: float, least: float) -> None:
    if not found >= least:
        raise SettingRefused(setting, str(found), f"{least} or more")
