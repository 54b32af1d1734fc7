"""What a pipeline allows, by what it declares, so that messages name no command that it refuses."""

import re
from dataclasses import dataclass
from typing import Self

from onceload_core.declaration import IDENTITY, MESSAGE_ID, ORDER, PATH, PRODUCER, Declaration

#: What a transform in Postgres begins with in a declaration.
OF_POSTGRES = "postgres: "
#: What `source.path` says of a pipeline without source.
ROWS_OF_A_PROGRAM = "(rows of a program"
_TARGET = re.compile(
    r"(?P<write>\w+), key .*, deleted (?P<deleted>.*), lineage (?P<lineage>True|False)(?:, newer_file \w+)?", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What a pipeline allows."""

    #: The setting because of which no quarantined record can be retried; None: they can.
    against_retry: str | None
    #: Whether a file that is loaded can be loaded again alone, with its rows replaced. A transform would have to keep
    #: the lineage, which only its result shows, so it counts as not allowed.
    may_reload: bool
    #: Whether it reads files.
    has_source: bool
    #: Whether a later file may bring a record with an earlier id.
    takes_late_records: bool
    #: Whether a record takes the place of an earlier one of its key.
    is_merge: bool

    @classmethod
    def of(cls, declaration: Declaration) -> Self:
        """By the texts of a version."""
        terms, rest = declaration.terms, declaration.rest
        target = _TARGET.fullmatch(rest.get("target", ""))
        is_merge, lineage = (bool(target and target["write"] == "merge"), bool(target and target["lineage"] == "True"))
        has_source = not rest.get(PATH, "").startswith(ROWS_OF_A_PROGRAM)
        transform = rest.get("transform", "")
        settings = (
            # After a delete or a write without lineage, the target has nothing to compare a late record with.
            ("target.deleted", bool(target and target["deleted"] != "None")),
            ("target.lineage: false with write: merge", is_merge and not lineage),
            ("target.write: merge with a transform that drops _producer_id", is_merge and _drops_lineage(transform)),
        )
        is_of_files = has_source and not terms.get(PRODUCER) and not terms.get(MESSAGE_ID)
        return cls(
            against_retry=next((setting for setting, is_declared in settings if is_declared), None),
            may_reload=is_of_files
            and not transform
            and terms.get(IDENTITY) == "path"
            and lineage
            and not is_merge
            and rest.get("publish") == "staged"
            and rest.get("delivery.mode") != "ordered",
            has_source=has_source,
            takes_late_records=terms.get(ORDER) != "ordered",
            is_merge=is_merge,
        )

    def instead_of_retry(self) -> str:
        """How to load the records of a pipeline whose records cannot be retried."""
        if not self.takes_late_records:
            return (
                "load such records with a separate pipeline file that declares order: any, because this pipeline "
                "counts their ids as duplicates"
            )
        which = "the fixed records whose key no later record has" if self.is_merge else "the fixed records"
        if not self.has_source:
            return f"load {which} again from your program, under the name of a new producer"
        return f"write {which} into a new file below source.path, and load that file"


def _drops_lineage(transform: str) -> bool:
    """Whether a query cannot hand on which record its rows are of; that it does, only its result shows."""
    return bool(transform) and "*" not in transform and not ("_producer_id" in transform and "_sequence" in transform)
