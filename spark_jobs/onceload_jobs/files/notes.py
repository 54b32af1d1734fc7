"""Reports about files that are not loaded, or not completely."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onceload_core.commands import PIPELINE_FILE, only
from onceload_core.errors import ExitCode, OnceloadError
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.listing import Listing


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Fields without a column, which are not loaded: in how many of the records that were looked at each is."""

    fields: tuple[tuple[str, int], ...] = ()
    records: int = 0

    @classmethod
    def of(cls, fields: Mapping[str, int], *, records: int) -> "Ignored":
        return cls(fields=tuple(Counter(fields).most_common(_FIELDS_MAX)), records=records) if records else cls()

    def __add__(self, other: "Ignored") -> "Ignored":
        fields = Counter(dict(self.fields)) + Counter(dict(other.fields))
        return Ignored.of(fields, records=self.records + other.records)

    def __str__(self) -> str:
        return ", ".join(f"{name} (in {count:,} of {self.records:,} records looked at)" for name, count in self.fields)


#: Records may have any number of different fields.
_FIELDS_MAX = 100


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
    #: That run has staged it and waits to be published, maybe by a person.
    is_kept: bool = False
    #: It contains more than the other run loads: plan it again when that run is done.
    has_more: bool = False
    #: It has no record that waits to be loaded.
    is_settled: bool = False
    #: About fields of records, and not about a file.
    ignored: Ignored | None = None

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
        ask = f"`onceload load {PIPELINE_FILE} {only(name)} --replace --accept-differences`"
        what = f"Restore the file, or write it again. To delete its loaded rows instead, run {ask}"
        note = cls(name=name, reason=found, needs_a_person=True).of_no_replacement()
        return replace(note, reason=f"{note.reason}. {what}")

    @property
    def leaves_records(self) -> bool:
        """Whether the file has, or may have, records that a later load takes without a person."""
        return not (self.needs_a_person or self.is_settled or self.ignored is not None)

    def of_no_replacement(self) -> "Note":
        return replace(self, reason=f"{self.reason.removesuffix('.')}. Its loaded rows stay and are not replaced")


def notes_of_refused(listing: Listing) -> Iterator[Note]:
    """Files and folders that are not read. Their names may be unprintable, so they are quoted."""
    yield from (Note(name=repr(name), reason=reason) for name, reason in listing.refused)
    for name, fault in listing.misnamed:
        yield Note(name=repr(name), reason=f"{fault}. Nothing of it is loaded. Rename it", needs_a_person=True)
    yield from (Note(name=repr(name), reason=reason, is_unreadable=True) for name, reason in listing.unreadable)


def code_of(notes: Iterable[Note], *, is_idle: bool = False) -> ExitCode:
    """The exit code: a file that needs a person stops no other file, but the caller must learn of it.

    Nothing new is a success. Nothing loaded because files were unreadable, or held by unfinished loads, is not.
    """
    notes = tuple(notes)
    if any(note.needs_a_person for note in notes):
        return ExitCode.NEEDS_A_PERSON
    is_left = any(note.is_busy or (is_idle and note.is_unreadable) for note in notes)
    return ExitCode.CALL_AGAIN if is_left else ExitCode.DONE


def problems_of(notes: Iterable[Note]) -> str:
    """The files that need a person, each with its reason; empty if there are none."""
    return "; ".join(f"{note.name}: {note.reason}" for note in notes if note.needs_a_person)


def held_in_words(notes: Iterable[Note]) -> str:
    """The files that other runs hold, by the reason; empty if there are none."""
    names: dict[str, list[str]] = {}
    for note in notes:
        if note.is_busy:
            names.setdefault(note.reason, []).append(note.name)
    return "; ".join(f"{_listed(some)}: {reason}" for reason, some in names.items())


#: A batch may hold any number of files.
_NAMES_MAX = 5


def _listed(names: Sequence[str]) -> str:
    left = len(names) - _NAMES_MAX
    return ", ".join([*names[:_NAMES_MAX], *([f"{left:,} more files"] if left > 0 else [])])
