"""Whether the answers that processes got fit the ledger: each operation is ok, failed or unknown.

Operations that are ok must be there as answered, failed ones must not, unknown ones may; nothing else is there.
An operation that was answered before another one was asked for comes before it. Once a later life of a session was
opened, an earlier one gets no ok any more.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from onceload_core.delivery import Mode


class Told(StrEnum):
    OK = "ok"
    FAILED = "failed"
    #: Also if the process was killed before an answer came.
    UNKNOWN = "unknown"


Spans = tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A commit that a process asked for."""

    session: str
    epoch: int
    spans: Spans
    asked_at: int
    told: Told = Told.UNKNOWN
    answered_at: int | None = None
    position: int | None = None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A life of a session, and when it was there."""

    session: str
    epoch: int
    at: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A commit that the ledger holds."""

    position: int
    session: str
    epoch: int
    spans: Spans


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A delivery as it was offered, and in mode session to whom."""

    delivery: int
    producer: int
    first: int
    end: int
    session: str | None = None


def read_history(folder: Path) -> tuple[list[Operation], list[Opened]]:
    """All that was written down in a folder; what was half written when its process was killed was not answered."""
    asked: dict[str, dict[str, Any]] = {}
    opened: list[Opened] = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            match said["said"]:
                case "opened":
                    opened.append(Opened(session=said["session"], epoch=said["epoch"], at=said["at"]))
                case "asked":
                    spans = tuple(sorted((int(producer), span) for producer, span in said["spans"].items()))
                    one = {"session": said["session"], "epoch": said["epoch"], "spans": spans, "asked_at": said["at"]}
                    asked[said["op"]] = one
                case told:
                    one = {"told": Told(told), "answered_at": said["at"], "position": said.get("position")}
                    asked[said["op"]] |= one
    return [Operation(**each) for each in asked.values()], opened


def violations(
    operations: Sequence[Operation], opened: Iterable[Opened], entries: Sequence[Entry], *, at_most: int = 10
) -> list[str]:
    """What does not fit; of a good history, nothing."""
    found = [
        *_told_wrongly(operations, entries),
        *_asked_by_nobody(operations, entries),
        *_out_of_time(operations),
        *_by_an_earlier_life(operations, opened, entries),
    ]
    return found[:at_most]


def _told_wrongly(operations: Iterable[Operation], entries: Iterable[Entry]) -> Iterator[str]:
    by_position = {entry.position: entry for entry in entries}
    for each in operations:
        if each.told is Told.OK and each.position is not None:
            entry = by_position.get(each.position)
            if entry is None or (entry.session, entry.epoch, entry.spans) != (each.session, each.epoch, each.spans):
                yield f"{each} was answered ok, but the ledger has {entry}"


def _asked_by_nobody(operations: Iterable[Operation], entries: Iterable[Entry]) -> Iterator[str]:
    possible: dict[tuple[str, int, Spans], list[Told]] = {}
    for each in operations:
        possible.setdefault((each.session, each.epoch, each.spans), []).append(each.told)
    for entry in entries:
        told = possible.get((entry.session, entry.epoch, entry.spans), [])
        if Told.OK in told:
            told.remove(Told.OK)
        elif Told.UNKNOWN in told:
            told.remove(Told.UNKNOWN)
        else:
            yield f"{entry} is in the ledger, but its process was answered {told or 'nothing, as none asked for it'}"


def _out_of_time(operations: Iterable[Operation]) -> Iterator[str]:
    done = [each for each in operations if each.told is Told.OK and each.answered_at is not None]
    answered = sorted(done, key=lambda each: each.answered_at or 0)
    highest, behind = 0, iter(answered)
    current = next(behind, None)
    for each in sorted(done, key=lambda each: each.asked_at):
        while current is not None and (current.answered_at or 0) < each.asked_at:
            highest, current = max(highest, current.position or 0), next(behind, None)
        if (each.position or 0) < highest:
            yield f"{each} was asked for when position {highest} had been answered"


def _by_an_earlier_life(
    operations: Iterable[Operation], opened: Iterable[Opened], entries: Sequence[Entry]
) -> Iterator[str]:
    lives: dict[str, list[Opened]] = {}
    for life in opened:
        lives.setdefault(life.session, []).append(life)
    for each in operations:
        later = [life for life in lives.get(each.session, ()) if life.epoch > each.epoch and life.at < each.asked_at]
        if each.told is Told.OK and later:
            yield f"{each} was answered ok, after {later[0]}"
    last: dict[str, int] = {}
    for entry in entries:
        if entry.epoch < last.get(entry.session, 0):
            yield f"{entry} was committed after one of epoch {last[entry.session]}"
        last[entry.session] = max(entry.epoch, last.get(entry.session, 0))


def out_of_order(
    mode: Mode, offered: Iterable[Offered], committed: Sequence[tuple[int, int, int, str]], *, at_most: int = 10
) -> list[str]:
    """Where commits, each (position, producer, first sequence id, session), are not in the order of the mode."""
    by_producer: dict[int, list[Offered]] = {}
    for each in offered:
        by_producer.setdefault(each.producer, []).append(each)
    lines: dict[object, list[tuple[int, int]]] = {}
    found: list[str] = []
    for position, producer, first, session in committed:
        delivery = next((each for each in by_producer.get(producer, ()) if each.first <= first < each.end), None)
        if delivery is None:
            found.append(f"position {position} holds {first} of producer {producer}, which were not offered")
            continue
        if mode is Mode.SESSION and delivery.session != session:
            found.append(f"position {position}: session {session} has committed what was offered to {delivery.session}")
        line = {Mode.SESSION: session, Mode.KEY_SHARED: producer, Mode.ORDERED: mode, Mode.SHARED: position}[mode]
        lines.setdefault(line, []).append((delivery.delivery, position))
    for name, line in lines.items():
        found += [
            f"line {name}: delivery {later[0]} at position {later[1]} after delivery {earlier[0]}"
            for earlier, later in pairwise(line)
            if later[0] < earlier[0]
        ]
    return found[:at_most]


def spans_of(receipts: Mapping[int, str]) -> Spans:
    return tuple(sorted(receipts.items()))
