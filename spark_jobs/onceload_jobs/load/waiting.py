"""Wait for deliveries that other sessions hold, and help meanwhile."""

import time
from collections.abc import Callable, Set

from onceload_core.ports import Outlook
from onceload_core.postgres.deliveries import OpenWork
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.phases import Phase
from onceload_jobs.load.sessions import Sessions
from onceload_jobs.plan.plan import depends_on_others
from onceload_jobs.write.patience import until_answered

_PAUSE_S = (0.02, 0.5)


class OtherLoads:
    """Other loads of the same pipeline at the same time."""

    def __init__(self, context: LoadContext, sessions: Sessions) -> None:
        self._context, self._sessions = context, sessions

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
        context, sessions = self._context, self._sessions
        pause_s, seen, helps_at = _PAUSE_S[0], None, 0.0
        until = time.monotonic() + context.settings.wait_s
        while not context.is_stopped:
            outlook, left = context.outlook(), context.left()
            if is_so(outlook, left):
                return True
            if (outlook, left) != seen:
                seen, until, helps_at = (outlook, left), time.monotonic() + context.settings.wait_s, 0.0
            if time.monotonic() >= until:
                return False
            if context.settings.on_progress is not None:
                sessions.report_waiting(f"another load{context.holders()}")
            context.expire()
            if left.waiting and time.monotonic() >= helps_at:
                notes += sessions.work()
                # A delivery may become free when a lease ends, which does not change the outlook.
                helps_at = time.monotonic() + context.beat_s
            with context.stopwatch.during(Phase.WAIT):
                time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])
        return False
