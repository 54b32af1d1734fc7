"""Reports about files that are not loaded, or not completely."""

import shlex
from dataclasses import dataclass, replace

from dedup_core.errors import ExitCode, OnceloadError
from spark_jobs.files.addresses import Unreadable


@dataclass(frozen=True, kw_only=True)
class Note:
    """A file that is not read, or not completely, and why."""

    name: str
    reason: str
    needs_a_person: bool = False
    #: It could not be read, but a later load may be able to read it.
    is_unreadable: bool = False
    #: Another run is loading it, or loads something that decides what is new in it.
    is_busy: bool = False
    #: It contains more than the other run loads: plan it again when that run is done.
    has_more: bool = False

    @classmethod
    def of(cls, name: str, error: OnceloadError) -> "Note":
        return cls(
            name=name,
            reason=str(error),
            needs_a_person=error.exit_code is ExitCode.NEEDS_A_PERSON,
            is_unreadable=isinstance(error, Unreadable),
        )

    @classmethod
    def of_nothing_to_load(cls, name: str, found: str) -> "Note":
        """A rewritten file without a record to load: it may be cut off, or still empty, or an error page."""
        ask = f"`onceload load` with --only {shlex.quote(name)} --replace --accept-differences"
        what = f"Restore the file, or write it again. To delete its loaded rows instead, run {ask}"
        note = cls(name=name, reason=found, needs_a_person=True).of_no_replacement()
        return replace(note, reason=f"{note.reason}. {what}")

    def of_no_replacement(self) -> "Note":
        return replace(self, reason=f"{self.reason.removesuffix('.')}. Its loaded rows stay and are not replaced")
