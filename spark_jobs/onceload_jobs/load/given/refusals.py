"""Why rows that a program gives are refused as a whole."""

from dataclasses import dataclass

from onceload_core.errors import NeedsAPerson, WrongUse


@dataclass(eq=False)
class OfferRefused(WrongUse):
    """Rows that are refused as a whole, because of their ids or their form."""

    pipeline: str
    producer: str
    found: str
    expected: str
    #: How many rows before them were read; with publish: direct, they are loaded.
    before: int = 0

    def __str__(self) -> str:
        kept = f"The {self.before:,} rows before them stay loaded." if self.before else "Nothing was loaded."
        return (
            f"pipeline {self.pipeline}, producer {self.producer!r}: {self.found}. {kept} Expected {self.expected}. "
            "Correct the rows, and call again: ids that are loaded are skipped."
        )


@dataclass(eq=False)
class NoGoodRow(NeedsAPerson):
    """Every row of a commit is bad: the columns or the rows as a whole are wrong."""

    pipeline: str
    producer: str
    records: int
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}, producer {self.producer!r}: all {self.records:,} rows are bad, the first one "
            f"because of this: {self.reason}. None of them was loaded or quarantined. Correct the rows or the declared "
            "columns, and call again. To quarantine such rows instead, set quality.quarantined_max"
        )
