"""What there is to say of a file that is not loaded, or not all of it."""

from dataclasses import dataclass, replace

from dedup_core.errors import ExitCode, OnceloadError
from spark_jobs.files.addresses import Unreadable


@dataclass(frozen=True, kw_only=True)
class Note:
    """A file that is not read, or not whole, and why."""

    name: str
    reason: str
    needs_a_person: bool = False
    #: It could not be read, and may be readable when somebody calls again.
    is_unreadable: bool = False
    #: Somebody else is loading it, or something that decides what is new of it.
    is_busy: bool = False
    #: There is more of it than what they have: it is to be planned once they are done with that.
    has_more: bool = False

    @classmethod
    def of(cls, name: str, error: OnceloadError) -> "Note":
        return cls(
            name=name,
            reason=str(error),
            needs_a_person=error.exit_code is ExitCode.NEEDS_A_PERSON,
            is_unreadable=isinstance(error, Unreadable),
        )

    def of_no_replacement(self) -> "Note":
        return replace(self, reason=f"{self.reason}; nothing of it replaces what was loaded of it before")
