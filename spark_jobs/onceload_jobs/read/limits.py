"""Limit how many records may be bad, in each commit and in each of its files.

Without a limit in the pipeline file, any share of a file may be bad, but not all of it. A file without a good record
is refused, and nothing that was read together of it is loaded or quarantined.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

import pyarrow.compute as pc

from onceload_core.errors import NeedsAPerson, TooManyQuarantined
from onceload_core.names import ProducerId
from onceload_core.ports import QuarantinedRecord
from onceload_core.postgres.quarantine import kind_of
from onceload_jobs.files.addresses import shown
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.records import BadRecord, Records
from onceload_jobs.pipeline.columns import PRODUCER_ID
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.checked_parts import ReadPart

#: Fewer bad records may be accidents, so they are quarantined even if no other record is good.
NOTHING_GOOD_MIN = 10


@dataclass(eq=False)
class NothingGood(NeedsAPerson):
    """Every record of these files is bad: the format, the columns or the whole file is wrong."""

    urls: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def refused(self) -> Mapping[str, str]:
        """The reason, for each file's address."""
        return dict(zip(self.urls, self.reasons, strict=True))

    def __str__(self) -> str:
        return "; ".join(f"{shown(url)} has no good record: {reason}" for url, reason in self.refused.items())


def check_piece(declared: Declared, records: Records, parts: Sequence[ReadPart]) -> None:
    """Refuse a piece of files as soon as it must fail."""
    if declared.quarantine_limit.is_declared:
        check_limit(declared, records)
    else:
        _check_files(declared, records, parts)


def check_limit(declared: Declared, records: Records) -> None:
    """Refuse a piece with more bad records than the limit, if it decides about them.

    For a batch published as a whole, a share is known only at its end.
    """
    if declared.is_direct or declared.quarantine_limit.share is None:
        check_quarantine(declared, records.bad, records=records.count)


def note_nothing_good(declared: Declared, bad: Mapping[str, int]) -> tuple[Note, ...]:
    """Report files with only bad records, each time too few to refuse the file."""
    if declared.quarantine_limit.is_declared or declared.producer is not None:
        return ()
    if sum(bad.values()) < NOTHING_GOOD_MIN:
        return ()
    return tuple(
        Note(name=name, reason=_NOTHING_GOOD.format(count, _look_at(declared, name)), needs_a_person=True)
        for name, count in bad.items()
    )


_NOTHING_GOOD = (
    "all {:,} records that this load read from it are bad and in quarantine. See {}. `quarantine show` with an id of "
    "that list prints what can be done. If such records are normal, set quality.quarantined_max"
)


def _look_at(declared: Declared, name: str) -> str:
    return f"`onceload quarantine list --file={quote(name)} --pipeline {quote(declared.name)}`"


def check_quarantine(declared: Declared, bad: Sequence[BadRecord | QuarantinedRecord], *, records: int) -> None:
    """Refuse everything if more is bad than the pipeline allows: then the source is wrong."""
    limit = declared.quarantine_limit
    if limit.is_passed(quarantined=len(bad), records=records):
        raise TooManyQuarantined(declared.name, len(bad), records, str(limit), bad[0].reason)


def bad_allowed(declared: Declared, *, bad: int, records: int) -> int | None:
    """How many more records of a piece may be bad before it is refused; None if the piece cannot decide."""
    limit = declared.quarantine_limit
    if limit.records is not None:
        return limit.records - bad
    if limit.share is not None and declared.is_direct:
        return int(limit.share * records) - bad
    return None


def _check_files(declared: Declared, records: Records, parts: Sequence[ReadPart]) -> None:
    """Refuse files without a good record: each with many records, or all if they have many together."""
    if len(records.bad) < NOTHING_GOOD_MIN:
        return
    bad_of = defaultdict[ProducerId, list[BadRecord]](list)
    for each in records.bad:
        bad_of[each.producer_id].append(each)
    good = set(pc.unique(records.rows.column(PRODUCER_ID)).to_pylist())
    least = NOTHING_GOOD_MIN if good else 1
    refused = {file: bad for file, bad in bad_of.items() if file not in good and len(bad) >= least}
    if refused:
        url_of = {each.part.producer_id: each.chunk.url for each in parts}
        urls, found = map(url_of.__getitem__, refused), refused.values()
        raise NothingGood(tuple(urls), tuple(_why_refused(declared, bad, parts, beside=records.bad) for bad in found))


def _why_refused(
    declared: Declared, bad: Sequence[BadRecord], parts: Sequence[ReadPart], *, beside: Sequence[BadRecord]
) -> str:
    kinds = [(each.column, kind_of(each.reason)) for each in bad]
    (most_common, count), *_ = Counter(kinds).most_common(1)
    example = bad[kinds.index(most_common)]
    column = f"{example.column}: " if example.column else ""
    is_of_few = len(bad) < NOTHING_GOOD_MIN
    others = f", and so are all {len(beside):,} records of the files read with it" if is_of_few else ""
    return (
        f"{_all_of_them(len(bad))} bad{others}; {count:,} of them like {_place(declared, example, parts)}: {column}"
        f"{example.reason}. None of them was loaded or quarantined. Fix the file, or source.format, source.options or "
        "columns in the pipeline file, and load again. To quarantine such records instead, set quality.quarantined_max"
    )


def _all_of_them(count: int) -> str:
    return "the only record read from it is" if count == 1 else f"all {count:,} records read from it are"


def _place(declared: Declared, record: BadRecord, parts: Sequence[ReadPart]) -> str:
    if declared.source.format.is_whole:
        return f"row {record.sequence_id}"
    begun = next((each.part for each in parts if each.part.producer_id == record.producer_id), None)
    if begun is None or begun.first or record.sequence_id >= begun.end:
        return f"byte {record.sequence_id}"
    line = 1 + begun.raw.count(b"\n", 0, record.sequence_id)
    return f"line {line} (byte {record.sequence_id})"
