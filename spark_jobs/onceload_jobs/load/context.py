"""The shared state of one load: its batch, its planning session, its ledger and its board."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Engine

from onceload_core.events import event
from onceload_core.names import Batch, Position, Version
from onceload_core.ports import Claim, Outlook, Session
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.batches import planner_of
from onceload_core.postgres.deliveries import Holder, OpenWork, PostgresDeliveries
from onceload_core.replay import Run
from onceload_jobs.load.phases import Stopwatch
from onceload_jobs.load.settings import LoadSettings, without_replaced
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.choice import Choice
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.read.board_work import offers_of
from onceload_jobs.work.parts import Culprit
from onceload_jobs.work.session import BEATS_PER_LEASE
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.rights import check_schema
from onceload_jobs.write.target import check_target


@dataclass(frozen=True, kw_only=True)
class LoadContext:
    """One call of a batch, while no other call runs under its name."""

    declared: Declared
    settings: LoadSettings
    engine: Engine
    batch: Batch
    run: Run | None
    ledger: PostgresLedger
    board: PostgresDeliveries
    version: Version
    session: Session
    #: The pipeline's position at the start.
    before: Position
    #: By earlier commits.
    is_snapshot_due: bool
    #: As one that files were loaded into.
    is_target_recorded: bool
    stopwatch: Stopwatch

    @classmethod
    def begun(
        cls, declared: Declared, settings: LoadSettings, engine: Engine, *, batch: Batch, run: Run | None
    ) -> "LoadContext":
        stopwatch = Stopwatch()
        ledger = PostgresLedger(engine)
        check_schema(engine, declared)
        version = ledger.declare(pipeline_with_declaration(declared), version=settings.version, may_be_paused=False)
        is_recorded = check_target(engine, ledger, declared)
        pipeline_id = ledger.id_of(declared.name)
        board = PostgresDeliveries(engine, declared.name, declared.delivery, pipeline_id=pipeline_id)
        # First release everything that an earlier epoch under this name still holds.
        board.end_earlier(batch, reason=f"a later run of batch {batch} took over")
        opened = ledger.open_session_of_load(declared.name, planner_of(batch), version=version)
        policy = declared.pipeline.snapshot
        return cls(
            declared=declared,
            settings=settings,
            engine=engine,
            batch=batch,
            run=run,
            ledger=ledger,
            board=board,
            version=version,
            session=opened.session,
            before=opened.position,
            is_snapshot_due=policy.is_due(commits_since=opened.commits_since, seconds_since=opened.seconds_since),
            is_target_recorded=is_recorded,
            stopwatch=stopwatch,
        )

    def end(self) -> None:
        """Release what workers held that were killed with their process, so that no load waits for it."""
        self.board.end_batch(self.batch, life=self.session)

    def tidy_up(self) -> None:
        """Hand out expired deliveries again, and give those of removed sessions to the first session."""
        self.expire()
        if self.declared.has_fixed_sessions:
            until_answered(self.board.adopt_strays)

    def expire(self) -> None:
        if self.is_staged:
            # Only claims, which end by themselves.
            until_answered(self.board.end_leases)
            return
        if expired := until_answered(self.board.expire):
            event("claim_expired", level=logging.WARNING, pipeline=self.declared.name, deliveries=expired)

    def set_aside(self, claim: Claim, culprits: Sequence[Culprit]) -> None:
        """Make dead letters of chunks that failed in all of their tries."""
        for culprit in culprits:
            (offer,) = offers_of([(culprit.chunk,)])
            set_aside = partial(self.board.set_aside, claim, offer, batch=self.batch, reasons=culprit.reasons)
            until_answered(set_aside)

    def renew(self) -> None:
        self.ledger.renew(self.session, lease_s=self.lease_s)

    @property
    def lease_s(self) -> float:
        return self.declared.delivery.ack_deadline_s

    @property
    def beat_s(self) -> float:
        """How often a lease is renewed."""
        return self.lease_s / BEATS_PER_LEASE

    @property
    def is_staged(self) -> bool:
        return not self.declared.is_direct

    @property
    def uses_board(self) -> bool:
        """Whether deliveries are handed out to sessions: where they have an order, and to consumers."""
        return self.declared.is_direct and (self.declared.keeps_order or self.settings.session is not None)

    @property
    def has_own_line(self) -> bool:
        """Whether this is one of the fixed sessions, which only takes its own deliveries."""
        return self.declared.has_fixed_sessions and self.settings.session is not None

    @property
    def is_stopped(self) -> bool:
        return self.settings.is_stopped()

    def choice(self) -> Choice:
        choice = replace(self.settings.choice, accepts_differences=self.settings.differences_accepted)
        name = self.declared.name
        return without_replaced(choice, self.ledger, name, self.batch, begun_at=self.before)

    def left(self) -> OpenWork:
        look = partial(self.board.open_work, self.batch, session=self.settings.session)
        return until_answered(look)

    def outlook(self) -> Outlook:
        return until_answered(partial(self.ledger.outlook, self.declared.name))

    def holders(self) -> str:
        """The sessions that hold something, formatted for messages."""
        return "".join(f" ({each})" for each in ["; ".join(map(_in_words, self._holders()))] if each)

    def held_by_others(self) -> str:
        """The same as sentences, with the command that releases what a lost session holds."""
        release = "If that session is gone, run `onceload deliveries abandon"
        return "".join(f". Now {_in_words(each)}. {release} {each.delivery}`" for each in self._holders())

    def _holders(self) -> Sequence[Holder]:
        return until_answered(self.board.holders)


def _in_words(holder: Holder) -> str:
    until = f"{holder.until:%Y-%m-%d %H:%M:%S} UTC, and longer while it lives"
    return f"session {holder.session} holds delivery {holder.delivery} until {until}"
