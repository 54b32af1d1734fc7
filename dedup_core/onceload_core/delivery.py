"""The state machine of deliveries, and the order that each delivery mode guarantees.

A delivery is one chunk, or a bundle with several producers. It is offered once and is then in exactly one state:
`waiting` (for a session), `held` (by one epoch of one session), `acked` (committed), `dead` (a dead letter that a
person may redrive) or `abandoned` (given up: its spans may be planned again). TRANSITIONS holds every transition.

Failures:
- The worker dies, hangs or is cut off: its delivery waits again once its deadline has passed (`expire`), or once a
  later epoch of its session opens. Calls of the earlier epoch are refused (SessionFenced, DeliveryTakenAway).
- The worker dies because of one of the files in its delivery: from the second try on, a worker records each file
  before it reads it. On the last try, the file that was recorded last becomes a dead letter of its own, with its
  spans. The rest stays with the same session and in its place, and counts as a second try.
- The worker reports the failure: after `nack` the delivery waits again at once.
- The worker exits cleanly: `close_session` returns what it holds, and that does not count as a try.
- The last of `deliveries_max` tries fails: the delivery becomes a dead letter, also in modes that guarantee an order.
  Later deliveries continue: consumed sets are exact, so it stays a gap and moves no watermark. After a redrive it
  is the first in its line again, but waits for the delivery that is held.

Order. A line hands out one delivery at a time, the oldest first. The next one follows when that one is closed, so
acks come in the order of the line, and only redriven dead letters come late.
- `session`: one line per session, filled round robin at the offer, never reassigned. Deadlines are shown, but
  nothing expires: a session that is away keeps its line, and its next epoch continues after the last ack.
- `shared`: no lines and no order. Any session takes the oldest waiting delivery.
- `key_shared`: one line per producer. The session that takes from it keeps the deliveries in it until its lease
  ends, or until a new session joins and all lines are reassigned. A bundle is in the line of each of its producers
  and waits until it is the first in all of them. The session that takes it keeps all these lines.
- `ordered`: one line for all. The session that takes from it keeps it until its lease ends.
A waiting delivery names the session that keeps its line. An empty line belongs to no session.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from onceload_core.errors import SettingRefused
from onceload_core.names import Batch, SessionName


class Mode(StrEnum):
    """How deliveries are assigned to sessions, and the order that is guaranteed."""

    SESSION = "session"
    SHARED = "shared"
    KEY_SHARED = "key_shared"
    ORDERED = "ordered"


class State(StrEnum):
    """The state of a delivery."""

    WAITING = "waiting"
    HELD = "held"
    ACKED = "acked"
    DEAD = "dead"
    ABANDONED = "abandoned"


class Event(StrEnum):
    """What can happen to a delivery."""

    TAKE = "take"
    ACK = "ack"
    NACK = "nack"
    EXPIRE = "expire"
    FENCE = "fence"
    RETURN = "return"
    EXHAUST = "exhaust"
    REDRIVE = "redrive"
    ABANDON = "abandon"
    WITHDRAW = "withdraw"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.WAITING, Event.TAKE): State.HELD,
    (State.WAITING, Event.ABANDON): State.ABANDONED,
    (State.HELD, Event.ACK): State.ACKED,
    (State.HELD, Event.NACK): State.WAITING,
    (State.HELD, Event.EXPIRE): State.WAITING,
    (State.HELD, Event.FENCE): State.WAITING,
    (State.HELD, Event.RETURN): State.WAITING,
    (State.HELD, Event.EXHAUST): State.DEAD,
    (State.DEAD, Event.REDRIVE): State.WAITING,
    (State.DEAD, Event.ABANDON): State.ABANDONED,
    # By a person who knows that its holder is gone.
    (State.HELD, Event.WITHDRAW): State.ABANDONED,
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a pipeline hands out its deliveries."""

    mode: Mode = Mode.SHARED
    #: In mode session: their number; they are named 1, 2, 3 and so on. Else any number may join.
    sessions: int | None = None
    #: A worker without a heartbeat for this time loses what it holds.
    ack_deadline_s: float = 120.0
    deliveries_max: int = 5
    #: The most that are waiting or held at a time.
    open_max: int = 1_000

    def __post_init__(self) -> None:
        bounds = {"ack_deadline": self.ack_deadline_s, "deliveries_max": self.deliveries_max, "open_max": self.open_max}
        for setting, found in {**bounds, "sessions": 1 if self.sessions is None else self.sessions}.items():
            if found <= 0:
                raise SettingRefused(f"delivery.{setting}", str(found), "more than 0")
        if self.mode is Mode.SESSION and self.sessions is None:
            raise SettingRefused("delivery.sessions", "none", "a number of sessions, because mode is session")

    @property
    def names(self) -> tuple[SessionName, ...]:
        """The fixed sessions, in the order in which they are served."""
        return tuple(SessionName(str(number)) for number in range(1, (self.sessions or 0) + 1))


def next_state(state: State, event: Event) -> State:
    """The state after an event; an event that the state does not allow is refused."""
    if (state, event) not in TRANSITIONS:
        allowed = " or ".join(source for source, possible in TRANSITIONS if possible is event)
        raise SettingRefused(event, f"a delivery that is {state}", f"one that is {allowed}")
    return TRANSITIONS[state, event]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A batch that is staged and not published: it holds its records until its lease ends, whatever processes live."""

    batch: Batch
    until: datetime
