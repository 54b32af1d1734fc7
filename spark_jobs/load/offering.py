"""Plan, and offer what is new: handed out if each piece is committed directly, else staged and published."""

import random
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from sqlalchemy import Connection

from dedup_core.errors import AlreadyConsumed, ClaimedElsewhere, NotAlone, OnceloadError
from dedup_core.names import ProducerId
from dedup_core.ports import Advance, Claim, Commit, Outlook
from dedup_core.replay import Counts
from dedup_core.spans import SEQUENCE_END, SpanSet
from spark_jobs.content.known import Twin
from spark_jobs.files.notes import Note
from spark_jobs.load.at_once import AtOnce
from spark_jobs.load.attempt import Attempt
from spark_jobs.load.crew import Crew
from spark_jobs.plan.bundles import bundles
from spark_jobs.plan.life import was_left_open
from spark_jobs.plan.plan import Plan, depends_on_others, make_plan
from spark_jobs.read.delivery import Bundle, offers_of, spans_of
from spark_jobs.work.progress import planned_bytes
from spark_jobs.work.session import renewed
from spark_jobs.write.patience import answered

#: A plan that another load overtakes is made again, up to this many times.
_PLANS_MAX = 5
#: Loads that wait for the same file would all start at the same moment.
_APART_S_MAX = 0.5


@dataclass(frozen=True, kw_only=True)
class Offered:
    """The result of one round of planning."""

    plan: Plan
    deliveries: int = 0
    #: More is new than may be open at a time.
    is_cut: bool = False

    @property
    def busy(self) -> set[str]:
        """The files that other sessions load, or that depend on what they load."""
        return {note.name for note in self.plan.notes if note.is_busy}


class Offering:
    """Plans one load repeatedly, and remembers what it handed out."""

    def __init__(self, attempt: Attempt, crew: Crew, at_once: AtOnce) -> None:
        self._attempt, self._crew, self._at_once = attempt, crew, at_once
        self._handed_out: dict[ProducerId, SpanSet] = {}
        self._sizes: dict[ProducerId, int] = {}

    def offer(self, notes: list[Note]) -> Offered:
        """Plan, and offer what is new to the sessions."""
        for left in reversed(range(_PLANS_MAX)):
            plan = answered(self._plan)
            # Files that failed would fail again, and might take the room of others: the next call may retry them.
            failed = {note.name for note in (*notes, *self.not_loaded(plan.outlook, known=()))}
            plan = replace(plan, to_read=tuple(file for file in plan.to_read if file.listed.name not in failed))
            if not plan.to_read:
                return Offered(plan=plan)
            try:
                return self._offer(plan, notes)
            except (ClaimedElsewhere, AlreadyConsumed, NotAlone):
                # Another load was faster since this was planned.
                if not left:
                    raise
                time.sleep(random.uniform(0, _APART_S_MAX))  # noqa: S311 - it is not a secret.
        raise AssertionError

    def _plan(self) -> Plan:
        attempt = self._attempt
        return make_plan(attempt.declared, attempt.ledger, now_s=time.time(), choice=attempt.choice())

    def not_loaded(self, outlook: Outlook, *, known: Container[str]) -> Iterator[Note]:
        """Deliveries that were handed out, are gone and were not loaded, because a session could not read them."""
        states = answered(partial(self._attempt.ledger.know, self._attempt.session, list(self._handed_out)))
        for producer_id, spans in self._handed_out.items():
            state = states[producer_id].state if producer_id in states else None
            if state is None or state.name in known or state.name in outlook.claimed:
                continue
            is_open_ended = bool(spans) and spans.end == SEQUENCE_END
            # For these, the size is recorded with the last part, unless the last line is open.
            is_read = (state.size or 0) >= self._sizes[producer_id] or was_left_open(state)
            if not (is_read if is_open_ended else state.consumed.covers(spans)):
                reason = "some of its records were not loaded. The session that read them reports why. Load again"
                yield Note(name=state.name, reason=reason, is_unreadable=True)

    def _offer(self, plan: Plan, notes: list[Note]) -> Offered:
        """Claim the planned files, and hand them out, or stage and publish them."""
        attempt, declared = self._attempt, self._attempt.declared
        ids = answered(partial(attempt.ledger.register, declared.name, _lives(plan)))
        named = {producer_id: name for (name, _), producer_id in ids.items()}
        twins = {ids[file.listed.name, file.generation]: file.twin for file in plan.to_read if file.twin}
        # A file that continues under a new name is read as its old producer.
        ids |= {
            (file.listed.name, file.generation): file.twin.copy_of
            for file in plan.to_read
            if file.twin and file.twin.takes_over and file.twin.copy_of is not None
        }
        some, is_cut = self._with_room(bundles(declared, plan.to_read, ids))
        spans = spans_of(chunk for chunks in some for chunk in chunks)
        claim = attempt.ledger.claim(
            attempt.session,
            dict.fromkeys(twins, SpanSet()) | spans,
            batch=attempt.batch,
            lease_s=attempt.lease_s,
            names=named,
            # The new spans depend on files that are loaded under another name, or that come first in order.
            unchanged=plan.outlook if depends_on_others(declared) else None,
        )
        self._crew.planned_bytes = planned_bytes(some)
        with renewed(attempt.renew, every_s=attempt.beat_s):
            try:
                self._note(twins, claim)
                if declared.is_direct:
                    self._hand_out(some, spans, claim)
                elif some:
                    notes += self._at_once.stage_and_publish(plan.to_read, ids, some, claim)
            finally:
                # If acked or handed out, the claim is gone; else it is released now instead of when its lease ends.
                with suppress(OnceloadError):
                    attempt.ledger.release(claim)
        return Offered(plan=plan, deliveries=len(some), is_cut=is_cut)

    def _with_room(self, some: Iterable[Bundle]) -> tuple[list[Bundle], bool]:
        """As many deliveries as may be open, and whether there are more."""
        if self._attempt.is_staged:
            return list(some), False
        room = max(0, self._attempt.declared.delivery.open_max - self._attempt.left().count)
        # Take one more, to know whether there are more.
        gathered = list(islice(some, room + 1))
        return gathered[:room], len(gathered) > room

    def _note(self, twins: Mapping[ProducerId, Twin], claim: Claim) -> None:
        """Record what the plan found without reading records, as long as its claim is held."""
        advances = [_noted(producer_id, twin) for producer_id, twin in twins.items()]
        if advances:
            commit: Commit[Connection] = Commit(
                session=self._attempt.session,
                batch=self._attempt.batch,
                advances=tuple(advances),
                write_rows=lambda _: 0,
                # A planner that was away for longer than its lease has an outdated plan.
                claim=claim,
                is_last=False,
                counts=Counts(duplicate=sum(twin.duplicates for twin in twins.values())),
                run=self._attempt.run,
            )
            self._attempt.ledger.commit(commit)

    def _hand_out(self, some: Sequence[Bundle], spans: Mapping[ProducerId, SpanSet], claim: Claim) -> None:
        self._attempt.board.offer(claim, offers_of(some), batch=self._attempt.batch)
        for producer_id, some_spans in spans.items():
            self._handed_out[producer_id] = self._handed_out.get(producer_id, SpanSet()) | some_spans
        self._sizes |= {chunk.producer_id: chunk.size for chunks in some for chunk in chunks}


def _lives(plan: Plan) -> list[tuple[str, int]]:
    return [(file.listed.name, file.generation) for file in plan.to_read]


def _noted(producer_id: ProducerId, twin: Twin) -> Advance:
    """Content that is loaded under another name keeps its producer, whatever name continues it."""
    if twin.takes_over and twin.copy_of is not None:
        its: dict[str, ProducerId] = {"producer_id": twin.copy_of, "takes_name_of": producer_id}
    else:
        its = {"producer_id": producer_id} | ({} if twin.copy_of is None else {"copy_of": twin.copy_of})
    return Advance(
        **its,
        spans=twin.consumed,
        shares_with=twin.shares_with,
        records=twin.records,
        digest=twin.digest,
        fingerprint=twin.fingerprint,
        size=twin.size,
        condition=twin.condition,
    )
