"""What a load promises, whatever happened to files before: small enough to be seen to be right.

A file is its name. What took effect of it stays its beginning, or else the file is conflicted: with on_rewrite=stop
it is left alone until it is put back, with new_generation a new life begins, with replace the rows of its earlier life
go. A load may choose some files, and replace them: then each begins a new life, once for each batch, and the rows of
its life before go in the same commit.
Where records name their producers, the first of each id takes effect; a merge leaves the last record of each key.
Nothing else about a file matters.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.declared import OnRewrite, Write
from tests.loads.counter import COLUMNS, Commit, Contract, Form, Life, Record, ends_in, header_of, records_in, stream_of


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of pipeline: what is declared, as far as it decides what becomes of records."""

    form: Form = Form.JSONL
    #: Files are complete when they appear.
    sealed: bool = False
    on_rewrite: OnRewrite = OnRewrite.STOP
    write: Write = Write.APPEND
    #: Records name their producers, whose ids come like this.
    order: Order | None = None

    @property
    def contract(self) -> Contract:
        return Contract(form=self.form, is_named=self.order is not None)

    @property
    def is_staged(self) -> bool:
        """Whether only a batch as a whole decides what to do with its records."""
        return self.write is Write.MERGE or self.order is not None or self.on_rewrite is OnRewrite.REPLACE


@dataclass(frozen=True, kw_only=True)
class Told:
    """The choices that a load was given."""

    batch: str
    #: Each chunk commits by itself, by the session that takes it.
    is_direct: bool
    #: Names, or patterns of names; none means all files.
    only: tuple[str, ...] = ()
    replaces: bool = False

    def includes(self, name: str) -> bool:
        patterns = (".*".join(map(re.escape, each.split("*"))) for each in self.only)
        return not self.only or any(re.fullmatch(pattern, name) for pattern in patterns)


class Way(NamedTuple):
    """How a load goes on with a file: which life of it, and which one before that it takes the place of."""

    life: Life
    instead_of: Life | None = None


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A file as a load finds it."""

    raw: bytes
    stream: bytes
    #: Its stream does not break off.
    is_whole: bool
    #: Its last record is complete without a newline.
    sealed: bool
    contract: Contract

    @classmethod
    def at(cls, path: Path, kind: Kind) -> "Offered":
        stream, is_whole = stream_of(path)
        sealed = kind.sealed and is_whole
        return cls(raw=path.read_bytes(), stream=stream, is_whole=is_whole, sealed=sealed, contract=kind.contract)

    @cached_property
    def _ends(self) -> list[int]:
        """Where its complete records end."""
        return [*ends_in(self.stream, self.contract.form), *([len(self.stream)] if self.sealed else [])]

    @property
    def end(self) -> int:
        """Where the last of them does."""
        return max(self._ends, default=0)

    @property
    def all_of_it(self) -> SpanSet:
        return SpanSet.of((0, self.end)) if self.end else SpanSet()

    @property
    def is_refused(self) -> bool:
        """Its first record does not name all columns."""
        if not self.contract.has_header or not self.end:
            return False
        try:
            return not COLUMNS.keys() <= set(header_of(self.stream[: self._ends[0]]))
        except ValueError:
            return True

    @property
    def has_row(self) -> bool:
        """Whether any record of it becomes a row."""
        records = records_in(Life("", 1), self.stream, sealed=self.sealed, contract=self.contract)
        return any(record.is_row for record in records)

    def has_grown_behind(self, earlier: "Offered", *, end: int) -> bool:
        """Each byte of a packed file counts while it is the same file, packed in the same way."""
        if self.raw.startswith(earlier.raw):
            return len(self.raw) > len(earlier.raw)
        return len(self.stream) > end


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What took effect of one generation, and the file as it then was."""

    offered: Offered
    consumed: SpanSet

    def may_go_on_as(self, now: Offered) -> bool:
        end = self.consumed.end
        if now.stream[:end] != self.offered.stream[:end]:
            return False
        # A last line that counted without its newline has to stay the last, unless just the newline comes.
        # An empty file has no line that could go on.
        was_sealed = self.offered.sealed and 0 < end == len(self.offered.stream)
        has_ended = self.offered.stream.endswith(b"\n") or now.stream[end:].startswith((b"\n", b"\r\n"))
        is_last = was_sealed and not has_ended
        return not is_last or not now.has_grown_behind(self.offered, end=end)

    def is_held_by(self, now: Offered | None) -> bool:
        """Whether a file still holds just what was consumed."""
        if now is None:
            return not self.consumed
        return all(
            now.stream[each.first : each.end] == self.offered.stream[each.first : each.end] for each in self.consumed
        )

    def records(self, life: Life, spans: SpanSet) -> list[Record]:
        """The records that start in some spans of it, in their order."""
        offered = self.offered
        records = records_in(life, offered.stream, sealed=offered.sealed, contract=offered.contract)
        return [record for record in records if record.offset in spans]


@dataclass(kw_only=True)
class Effects:
    """What all commits together did, taken one after the other."""

    kind: Kind
    #: All that took effect, as a row or as a bad record, whether its row is there still or not.
    records: Counter[Record] = field(default_factory=Counter)
    duplicates: int = 0
    #: What producers that the records name have consumed.
    consumed: dict[Life, SpanSet] = field(default_factory=dict)
    replaced: set[Life] = field(default_factory=set)
    _by_key: dict[int, Record] = field(default_factory=dict)

    @property
    def gone(self) -> Counter[Record]:
        """The rows that other rows have replaced."""
        rows = Counter({record: times for record, times in self.records.items() if record.is_row})
        if self.kind.write is Write.MERGE:
            return rows - Counter(self._by_key.values())
        return Counter({record: times for record, times in rows.items() if record.life in self.replaced})

    def add(self, commit: Commit, records: Sequence[Record]) -> None:
        """Count what one commit did with the records that it consumed."""
        if commit.is_noted:
            self.duplicates += len(records)
            return
        rows = [record for record in records if record.is_row]
        news = self._news(rows) if self.kind.order else rows
        self.duplicates += len(rows) - len(news)
        self.records.update([*news, *(record for record in records if not record.is_row)])
        self.replaced |= commit.replaced
        if self.kind.write is Write.MERGE:
            for row in news:
                self._merge(row)

    def _news(self, rows: Sequence[Record]) -> list[Record]:
        """The first of each id that did not take effect before; in ordered ones, nothing before the last that did."""
        news: dict[tuple[Life, int], Record] = {}
        for row in rows:
            number, _, note = json.loads(row.payload)
            life = Life(f"note={note}", 1)
            seen = self.consumed.get(life, SpanSet())
            if number >= seen.end if self.kind.order is Order.ORDERED else number not in seen:
                news.setdefault((life, number), row._replace(life=life, offset=number))
        for life, number in news:
            first = 0 if self.kind.order is Order.ORDERED else number
            self.consumed[life] = self.consumed.get(life, SpanSet()) | SpanSet.of((first, number + 1))
        return list(news.values())

    def _merge(self, row: Record) -> None:
        """The last record of a key wins; what came late of a file is behind what is there of the same file."""
        key = json.loads(row.payload)[0]
        there = self._by_key.get(key)
        if there is None or there.life != row.life or there.offset < row.offset:
            self._by_key[key] = row


#: The choices of a load that was given none.
EVERYTHING = Told(batch="", is_direct=True)


@dataclass(kw_only=True)
class Model:
    kind: Kind
    taken: dict[Life, Taken] = field(default_factory=dict)
    #: How many commits were looked at.
    commits: int = 0
    effects: Effects = field(init=False)
    _named: dict[Life, SpanSet] = field(default_factory=dict)
    #: The files that a batch has replaced.
    _replaced_by: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: The files that the call which is looked at has loaded.
    _loaded_now: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.effects = Effects(kind=self.kind)

    def latest(self, name: str) -> Life | None:
        return max((life for life in self.taken if life.file == name), default=None)

    def way(self, name: str, offered: Offered, told: Told) -> Way | None:
        """How a load goes on with a file that it is about; none if it leaves it alone."""
        life = self.latest(name)
        if self._needs_a_person(name, offered, told):
            return None
        if life is None:
            return Way(Life(name, 1))
        anew = Life(name, life.generation + 1)
        if self._is_replaced(life, offered, told):
            # What cannot be read to its end, or is still being written, replaces nothing.
            is_read = offered.is_whole and offered.end == len(offered.stream)
            return Way(anew, instead_of=life) if is_read else None
        return Way(life if self.taken[life].may_go_on_as(offered) else anew)

    def _is_replaced(self, life: Life, offered: Offered, told: Told) -> bool:
        """Whether the next life of a file comes in place of this one."""
        is_rewritten = not self.taken[life].may_go_on_as(offered)
        is_done = life.file in self._replaced_by[told.batch] | self._loaded_now
        is_asked = told.replaces and bool(self.taken[life].consumed) and not is_done
        return is_asked or (is_rewritten and self.kind.on_rewrite is OnRewrite.REPLACE)

    def _needs_a_person(self, name: str, offered: Offered, told: Told) -> bool:
        life = self.latest(name)
        if life is None or offered.is_refused:
            return offered.is_refused
        if self._is_replaced(life, offered, told):
            # A file without a good record does not replace records.
            is_read = offered.is_whole and offered.end == len(offered.stream)
            taken = self.taken[life]
            return not offered.raw or (is_read and not offered.has_row and bool(taken.records(life, taken.consumed)))
        return self.kind.on_rewrite is OnRewrite.STOP and not self.taken[life].may_go_on_as(offered)

    def conflicted(self, files: dict[str, Offered], told: Told) -> set[str]:
        of_load = ((name, offered) for name, offered in files.items() if told.includes(name))
        return {name for name, offered in of_load if self._needs_a_person(name, offered, told)}

    def changed(self, files: dict[str, Offered]) -> set[str]:
        """Files that do not hold any more what took effect of them."""
        latest = [(life.file, taken) for life, taken in self.taken.items() if life == self.latest(life.file)]
        return {name for name, taken in latest if not taken.is_held_by(files.get(name))}

    def after_loads(
        self,
        files: dict[str, Offered],
        commits: Sequence[Commit],
        loads: Sequence[Told],
        *,
        handed_out: Set[str],
        is_whole: bool,
    ) -> list[str]:
        """Take over what commits say that they consumed, unless it was not theirs to consume, or too little.

        What earlier loads handed out of files may be taken by any that commits chunk by chunk.
        """
        faults: list[str] = []
        for commit in commits:
            ways = self._ways_of(commit, files, loads, handed_out)
            faults += self._take(commit, files, ways, is_whole=is_whole)
            if len(loads) == 1:
                self._loaded_now |= {life.file for life in commit.spans}
            of_files = [(life, spans) for life, spans in commit.spans.items() if life in self.taken]
            self.effects.add(
                commit, [each for life, spans in of_files for each in self.taken[life].records(life, spans)]
            )
        self.commits += len(commits)
        going_on = {way.life: offered for way, offered in self._going_on(files, loads)}
        for life, offered in going_on.items():
            is_due = is_whole and not self._is_behind(life, files)
            if is_due and not self._consumed(life).covers(offered.all_of_it):
                faults.append(f"{life}: consumed only {self._consumed(life)} of {offered.all_of_it}")
            if life in self.taken:
                self.taken[life] = replace(self.taken[life], offered=offered)
        self._loaded_now.clear()
        return [*faults, *self._faults_of_names(commits)]

    def _is_behind(self, life: Life, files: dict[str, Offered]) -> bool:
        """Whether a file may wait because one before it is not whole, and nothing overtakes that."""
        if self.kind.order is not Order.ORDERED:
            return False
        before = ((name, offered) for name, offered in files.items() if name < life.file)
        return any(
            self.way(name, offered, EVERYTHING) is None or not offered.is_whole or offered.end != len(offered.stream)
            for name, offered in before
        )

    def _going_on(self, files: dict[str, Offered], loads: Sequence[Told]) -> Iterator[tuple[Way, Offered]]:
        for told in loads:
            for name, offered in files.items():
                if told.includes(name) and (way := self.way(name, offered, told)):
                    yield way, offered

    def _ways_of(
        self, commit: Commit, files: dict[str, Offered], loads: Sequence[Told], handed_out: Set[str]
    ) -> set[Way]:
        """How a commit may go on with files: as its own load does, or as those whose deliveries it may have taken."""
        own = [told for told in loads if told.batch == commit.batch]
        ways = {way for way, _ in self._going_on(files, own)}
        if any(told.is_direct for told in own):
            others = self._going_on(files, [told for told in loads if told.is_direct])
            earlier = self._going_on({name: files[name] for name in files.keys() & handed_out}, [EVERYTHING])
            ways |= {way for way, _ in (*others, *earlier)}
        return ways

    def _take(self, commit: Commit, files: dict[str, Offered], ways: Set[Way], *, is_whole: bool) -> Iterator[str]:
        instead_of = {life.file: life for life in commit.replaced}
        for life, spans in commit.spans.items():
            if _is_named(life):
                continue
            found = Way(life, instead_of.pop(life.file, None))
            before, offered = self._consumed(life), files.get(life.file)
            all_of_it = SpanSet()
            if offered and self._is_one_of(found, ways):
                all_of_it = offered.all_of_it
                self.taken[life] = Taken(offered=offered, consumed=before | spans)
            if not (before | all_of_it).covers(before | spans):
                yield f"{found}: consumed {spans}, but had {before} and was offered {all_of_it}, to go on as {ways}"
            if found.instead_of and is_whole and not spans.covers(all_of_it):
                yield f"{found}: only {spans} of {all_of_it} came in the commit in which the old rows went"
        if instead_of:
            yield f"{instead_of} is replaced by nothing"
        self._replaced_by[commit.batch] |= {life.file for life in commit.replaced}

    def _is_one_of(self, found: Way, ways: Set[Way]) -> bool:
        """A merge numbers new files in order. One of two at once may number a file again that is not loaded yet."""
        begins_later = (
            self.kind.write is Write.MERGE
            and found.life not in self.taken
            and any(
                way.life.file == found.life.file
                and way.life not in self.taken
                and way.life.generation < found.life.generation
                and way.instead_of == found.instead_of
                for way in ways
            )
        )
        return found in ways or begins_later

    def _consumed(self, life: Life) -> SpanSet:
        return self.taken[life].consumed if life in self.taken else SpanSet()

    def _faults_of_names(self, commits: Sequence[Commit]) -> Iterator[str]:
        named = _together(commit.spans for commit in commits)
        self._named = _together([self._named, {life: spans for life, spans in named.items() if _is_named(life)}])
        if self._named != self.effects.consumed:
            yield f"{self._named} is consumed of what records name, instead of {self.effects.consumed}"


def _together(some: Iterable[Mapping[Life, SpanSet]]) -> dict[Life, SpanSet]:
    together: dict[Life, SpanSet] = {}
    for spans_of in some:
        for life, spans in spans_of.items():
            together[life] = together.get(life, SpanSet()) | spans
    return together


def _is_named(life: Life) -> bool:
    """Whether the records name it; no file here is called like that."""
    return "=" in life.file
