"""What a load shares with others of its pipeline: it works on open deliveries, and waits for what others hold."""

import logging
import time
from collections.abc import Callable, Sequence, Set

from onceload_core.events import event
from onceload_core.names import SessionName
from onceload_core.ports import Outlook
from onceload_core.postgres.deliveries import Holder, OpenWork
from onceload_core.postgres.sessions import session_of
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.report import Phase
from onceload_jobs.plan.plan import depends_on_others
from onceload_jobs.work.session import run_sessions, work
from onceload_jobs.write.patience import until_answered

_PAUSE_S = (0.02, 0.5)


class OtherLoads:
    """Other loads of the same pipeline at the same time."""

    def __init__(self, context: LoadContext) -> None:
        self._context = context

    def tidy_up(self) -> None:
        """Hand out expired deliveries again, and give those of removed sessions to the first session."""
        self._expire()
        if self._context.declared.has_fixed_sessions:
            until_answered(self._context.board.adopt_strays)

    def _expire(self) -> None:
        context = self._context
        if not context.declared.is_direct:
            # Only claims, which end by themselves.
            until_answered(context.board.end_leases)
        elif expired := until_answered(context.board.expire):
            event("claim_expired", level=logging.WARNING, pipeline=context.declared.name, deliveries=expired)

    def work(self) -> list[Note]:
        """Let sessions work on open deliveries of any planner, as long as they may get one."""
        context = self._context
        notes: list[Note] = []
        if not context.declared.is_direct:
            return notes
        before, left = None, context.left()
        while left != before and self._is_for_us(left) and not context.is_stopped:
            job, own_name = context.job, context.settings.session
            with context.stopwatch.during(Phase.STAGE), context.watching_commits():
                if own_name is None:
                    notes += run_sessions(context.executor, job, self._names())
                else:
                    # A consumer works itself, and learns if another one takes its name.
                    notes += work(job, own_name, is_stopped=context.settings.is_stopped)
            # A newer process with the same session name continues instead.
            until_answered(context.renew)
            before, left = left, context.left()
        return notes

    def _is_for_us(self, left: OpenWork) -> bool:
        """Whether our sessions may find work."""
        return left.of_session if self._context.has_own_line else bool(left.waiting or left.of_batch)

    def _names(self) -> Sequence[SessionName]:
        """The fixed sessions, or as many of our own as there is work for."""
        context, rules = self._context, self._context.declared.delivery
        if context.declared.has_fixed_sessions:
            return rules.names
        count = min(rules.sessions or context.executor.slots, max(1, context.left().count))
        return [session_of(context.batch, str(number)) for number in range(1, count + 1)]

    def are_done_with(self, busy: Set[str], notes: list[Note]) -> bool:
        """Wait until no load holds these files, or anything that decides what is new; return whether that happened."""
        return self._wait_until(lambda outlook, _: not self._before_us(busy, outlook), notes)

    def have_handed_out(self, more: Set[str], notes: list[Note]) -> bool:
        """Wait until our line has work, or no planner that comes first may still add some."""

        def is_so(outlook: Outlook, left: OpenWork) -> bool:
            if left.of_session:
                return True
            return not (more and self._before_us(more, outlook)) and not until_answered(
                self._context.board.is_being_planned
            )

        return self._wait_until(is_so, notes)

    def leave_room(self, notes: list[Note]) -> bool:
        """Wait until more deliveries may be open, or some of them are for our line."""
        open_max, has_own_line = self._context.declared.delivery.open_max, self._context.has_own_line
        return self._wait_until(lambda _, left: left.count < open_max or (has_own_line and left.of_session), notes)

    def _before_us(self, names: Set[str], outlook: Outlook) -> Set[str]:
        """What others hold of these files, or of everything that decides what is new in them."""
        others = outlook.claimed - outlook.dead_letters.keys() - outlook.kept.keys()
        return others if depends_on_others(self._context.declared) else others & names

    def _wait_until(self, is_so: Callable[[Outlook, OpenWork], bool], notes: list[Note]) -> bool:
        """Wait and help until it is so, or no session makes progress for too long; return whether it is so."""
        context = self._context
        pause_s, seen, until, helps_at = _PAUSE_S[0], None, 0.0, 0.0
        while not context.is_stopped:
            outlook, left = context.outlook(), context.left()
            if is_so(outlook, left):
                return True
            if (outlook, left) != seen:
                seen, until, helps_at = (outlook, left), time.monotonic() + context.settings.wait_s, 0.0
            if time.monotonic() >= until:
                return False
            if context.settings.on_progress is not None:
                held = "; ".join(map(_in_words, self._holders()))
                context.report_waiting(f"another load ({held})" if held else "another load")
            self._expire()
            if left.waiting and time.monotonic() >= helps_at:
                notes += self.work()
                # A delivery may become free when a lease ends, which does not change the outlook.
                helps_at = time.monotonic() + context.beat_s
            with context.stopwatch.during(Phase.WAIT):
                time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])
        return False

    def held_in_words(self) -> str:
        """What others hold, as sentences, with the command that releases what a lost session holds."""
        release = "If that session is gone, run `onceload deliveries abandon"
        return "".join(f". Now {_in_words(each)}. {release} {each.delivery}`" for each in self._holders())

    def _holders(self) -> Sequence[Holder]:
        return until_answered(self._context.board.holders)


def _in_words(holder: Holder) -> str:
    until = f"{holder.until:%Y-%m-%d %H:%M:%S} UTC, and longer while it lives"
    return f"session {holder.session} holds delivery {holder.delivery} until {until}"
