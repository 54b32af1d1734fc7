"""Laws over counts of records by their own values; nothing here knows how a load works.

Each record is counted where it is: as rows of a target, or as bytes in quarantine. A law is an answer to one question
about these counts, in words of the record that breaks it; no words, no breach.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from onceload_core.pipeline import Guarantee
from onceload_jobs.pipeline.declared import Identity, OnRewrite, Write
from tests.loads.storm.folder import File, Folder, allowed
from tests.loads.storm.operations import Transform, Words
from tests.loads.storm.records import GOOD, Record

_OFTEN = 1_000


def rows_of(words: Words, record: Record) -> int:
    """How many rows a record makes."""
    return record.uid % 3 if words.transform is Transform.SOME else 1


def without_rows(folder: Folder, words: Words) -> set[int]:
    """The records of which a transform makes no row. One of these may be the one of its name that took effect."""
    return {uid for uid, record in folder.written.items() if not rows_of(words, record)}


@dataclass(frozen=True)
class Counted:
    """All that was counted at one moment."""

    #: Rows by record and by which of its rows it is.
    rows: Counter[tuple[int, int]]
    #: By record, those that wait in quarantine.
    held: Counter[int]
    #: Rows whose values are not those of their record.
    altered: tuple[int, ...] = ()
    #: The records that each key shows: of a merge one, unless its rows were appended before.
    shown: Mapping[int | None, Set[int]] = field(default_factory=dict)

    def of(self, words: Words, record: Record) -> tuple[int, int]:
        """How often a record is there, by its rarest row and by its most frequent one."""
        each = [self.rows[record.uid, number] for number in range(rows_of(words, record))]
        if not each:
            # It is nowhere to be seen, however often it took effect.
            return _OFTEN, 0
        return min(each) + self.held[record.uid], max(each) + self.held[record.uid]


@dataclass
class Declared:
    """All that was ever declared, as far as a load went by it."""

    identities: set[Identity] = field(default_factory=set)
    rewrites: set[OnRewrite] = field(default_factory=set)
    #: The records that ever had a row.
    ever: set[int] = field(default_factory=set)
    #: At some time records had no names.
    is_unnamed: bool = False
    #: At some time a row took the place of another.
    is_merged: bool = False
    #: By which nothing is refused that was consumed before.
    is_at_least_once: bool = False
    #: The columns that said which record it is.
    named_by: set[tuple[str, ...]] = field(default_factory=set)
    #: How often these columns changed.
    epoch: int = 0
    _last: tuple[str, ...] | None = None

    def add(self, words: Words) -> None:
        self.identities.add(words.identity)
        self.rewrites.add(words.on_rewrite)
        self.is_merged |= words.write is Write.MERGE
        self.is_at_least_once |= words.guarantee is Guarantee.AT_LEAST_ONCE
        columns = names_of(words)
        if columns != self._last:
            self._last, self.epoch = columns, self.epoch + 1
        if columns:
            self.named_by.add(columns)
        else:
            self.is_unnamed = True

    def has_names(self, columns: tuple[str, ...]) -> bool:
        """Whether a load has gone by these."""
        return bool(columns) and columns == self._last

    def has_one_name(self, words: Words) -> bool:
        """Whether it was the same columns at all times, and is now."""
        return self.epoch <= 1 and self._last in (None, names_of(words))


def names_of(words: Words) -> tuple[str, ...]:
    """The columns that say which record it is; two names of a producer that hold the same value are one."""
    if words.message_id:
        return (words.message_id,)
    return ("dev", words.producer[1]) if words.producer else ()


def _name(record: Record, columns: Iterable[str]) -> tuple[object, ...]:
    return tuple(record.value(column) for column in columns)


def holds(record: Record, *, dev: object, seq: object, oid: object, amount: str) -> bool:
    """Whether a row has the values of its record; a bad one was corrected."""
    amounts = {record.amount, GOOD.decode()} if record.is_bad else {record.amount}
    return (dev, seq, oid) == (record.dev, record.seq, record.oid) and amount in amounts


def repeated(folder: Folder, words: Words, declared: Declared, now: Counted) -> Iterator[str]:
    """No record is there more often than all that was declared allows."""
    if declared.is_merged or declared.is_at_least_once:
        return
    for uid in sorted({uid for uid, _ in now.rows} | set(now.held)):
        record = folder.written.get(uid)
        if record is None:
            yield f"record {uid} was never written"
            continue
        most = now.of(words, record)[1]
        may = allowed(folder, uid, identities=declared.identities, rewrites=declared.rewrites)
        if len(declared.named_by) == 1 and not declared.is_unnamed and not record.is_bad:
            may = 1
        if most > may:
            yield f"record {uid} is there {most} times, and may be {may} times"


def named_twice(
    folder: Folder, words: Words, declared: Declared, now: Counted, seen: Mapping[int, int]
) -> Iterator[str]:
    """No two records of one name came while it was declared that there is one."""
    columns = names_of(words)
    if not declared.has_names(columns) or declared.is_merged or declared.is_at_least_once:
        return
    named: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for uid in {uid for uid, _ in now.rows}:
        record = folder.written[uid]
        if seen.get(uid) == declared.epoch:
            named[_name(record, columns)].append(uid)
    for name, uids in named.items():
        if len(uids) > 1:
            yield f"records {sorted(uids)} have one name {name} in {columns}, and all of them are there"


def altered(now: Counted) -> Iterator[str]:
    for uid in now.altered:
        yield f"record {uid} has other values than were written"


def lost(folder: Folder, words: Words, declared: Declared, now: Counted, files: Mapping[str, File]) -> Iterator[str]:
    """Each record of these files is there, or another one of its name."""
    if declared.is_merged:
        yield from _lost_keys(folder, words, declared, now, files)
        return
    by_path = declared.identities == {Identity.PATH}
    there = {uid for uid, _ in now.rows}
    # A row of that name may have been replaced since; that a row goes otherwise, another law says.
    ever = declared.ever | there
    names = {
        columns: {_name(folder.written[uid], columns) for uid in ever | without_rows(folder, words)}
        for columns in declared.named_by
    }
    needed = Counter(record.uid for file in files.values() for record in file.records)
    for path, file in files.items():
        for record in file.records:
            least, _ = now.of(words, record)
            need = needed[record.uid] if by_path and not declared.named_by else 1
            if least >= need:
                continue
            if record.uid not in there and any(_name(record, columns) in names[columns] for columns in names):
                continue
            yield f"record {record.uid} of {path} is there {least} times instead of {need}"


def _lost_keys(
    folder: Folder, words: Words, declared: Declared, now: Counted, files: Mapping[str, File]
) -> Iterator[str]:
    there = {uid for uid, _ in now.rows}
    for file in files.values():
        for record in file.records:
            key = key_of(words, record)
            # Good records are in quarantine too, if their file was read in another format.
            is_held = record.is_bad or now.held[record.uid]
            if is_held or (record.uid in there if key is None else key in now.shown):
                continue
            if not rows_of(words, record) or _is_named_like(folder, declared, record, without_rows(folder, words)):
                continue
            yield f"key {key} of record {record.uid} has no row"


def key_of(words: Words, record: Record) -> int | None:
    """What a merge finds a record's row by."""
    return None if words.transform is Transform.NULLS and record.uid % 3 == 0 else record.k


def stale(folder: Folder, words: Words, declared: Declared, now: Counted, files: Mapping[str, File]) -> Iterator[str]:
    """In a merge, each key shows the last record that was written of it, where one producer alone writes it."""
    if words.write is not Write.MERGE:
        return
    good = [
        (record, path)
        for path, file in files.items()
        for record in file.records
        if not record.is_bad and not now.held[record.uid] and not _is_second(folder, words, declared, record)
    ]
    writers: dict[int | None, set[str]] = defaultdict(set)
    for record in folder.written.values():
        writers[key_of(words, record)].add(record.dev)
    for k, uids in now.shown.items():
        # The how-to describes what late records of several producers do to one row, and other tests show it.
        if k is None or len(uids) > 1 or (words.producer and len(writers[k]) > 1):
            continue
        (uid,) = uids
        winner = folder.written[uid]
        for record, path in good:
            if key_of(words, record) != k:
                continue
            is_later = record.seq > winner.seq if words.producer else record.uid > winner.uid
            if is_later:
                yield f"key {k} shows record {uid}, although record {record.uid} of {path} came later"
                break


def _is_second(folder: Folder, words: Words, declared: Declared, record: Record) -> bool:
    """Whether it has never been there, and another one of its name has: so it may be before rows are merged."""
    others = declared.ever | without_rows(folder, words)
    return record.uid not in declared.ever and _is_named_like(folder, declared, record, others)


def _is_named_like(folder: Folder, declared: Declared, record: Record, others: Set[int]) -> bool:
    return any(
        _name(record, columns) == _name(folder.written[uid], columns) for columns in declared.named_by for uid in others
    )


def vanished(before: Counted, now: Counted, *, but: Set[int] = frozenset()) -> Iterator[str]:
    for uid in sorted({uid for uid, _ in before.rows} - {uid for uid, _ in now.rows} - but):
        yield f"record {uid} was there, and is gone"
