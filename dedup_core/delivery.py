"""Who works on what: deliveries handed to sessions, and what each mode promises.

A delivery is one chunk, or a bundle with several producers. It is offered once and is then in exactly one state:
`waiting` (for a session), `held` (by one life of one session), `staged` (done, and waiting to be published with its
batch), `acked` (committed), `dead` (a dead letter: a person may redrive it) or `abandoned` (given up, so that what it
covers may be planned anew). TRANSITIONS holds every step between them.

When a step fails:
- the worker dies, hangs or is cut off: its delivery waits again once its deadline has passed (`expire`), or once a
  later life of its session opens; what the earlier life still says is refused (SessionFenced, DeliveryTakenAway);
- the worker dies because of one of the files that it has in hand: from the second try on, a worker notes each file
  before it reads it. On the last try the file that was noted last becomes a dead letter of its own, with its spans;
  what is left stays in the same hand and at its place, and counts as a second try;
- the worker says so itself: after `nack` the delivery waits again at once;
- the worker leaves in good order: `close_session` gives back what it holds, and that counts as no try;
- the last of `deliveries_max` tries fails: the delivery is set aside as a dead letter, also where order is promised.
  Those after it go on: consumed sets are exact, so it stays a gap and moves no watermark. Redriven, it returns to its
  old place, the first in its line, but waits for the one in hand.

What each mode promises about order. A line hands out one delivery at a time, the oldest by offer; the next follows
when that one is closed, so acks come in the order of the line, and only redriven dead letters come late.
- `session`: a line per session, filled round robin at the offer and never taken away. Deadlines are shown, but end
  nothing: a session that is away keeps its line, and its next life goes on after the last delivery that was acked.
- `shared`: no lines and no order. Any session takes the oldest that waits.
- `key_shared`: a line per producer. The session that takes from it keeps what stands in it until its lease ends, or
  until a session joins that was not there, and all lines are shared out anew. A bundle stands in the line of each of
  its producers and waits until it is the first in all of them; whoever takes it keeps all these lines.
- `ordered`: one line for all. The session that takes from it keeps it until its lease ends.
A delivery that waits names the keeper of its line; a line that has run empty belongs to nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dedup_core.errors import SettingRefused
from dedup_core.names import SessionName


class Mode(StrEnum):
    """How deliveries find their sessions, and what is promised about order."""

    SESSION = "session"
    SHARED = "shared"
    KEY_SHARED = "key_shared"
    ORDERED = "ordered"


class State(StrEnum):
    """Where a delivery is."""

    WAITING = "waiting"
    HELD = "held"
    STAGED = "staged"
    ACKED = "acked"
    DEAD = "dead"
    ABANDONED = "abandoned"


class Event(StrEnum):
    """What can happen to a delivery."""

    TAKE = "take"
    ACK = "ack"
    STAGE = "stage"
    PUBLISH = "publish"
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
    (State.HELD, Event.STAGE): State.STAGED,
    (State.STAGED, Event.PUBLISH): State.ACKED,
    (State.HELD, Event.NACK): State.WAITING,
    (State.HELD, Event.EXPIRE): State.WAITING,
    (State.HELD, Event.FENCE): State.WAITING,
    (State.HELD, Event.RETURN): State.WAITING,
    (State.HELD, Event.EXHAUST): State.DEAD,
    (State.DEAD, Event.REDRIVE): State.WAITING,
    (State.DEAD, Event.ABANDON): State.ABANDONED,
    # Whoever was to publish a batch is gone, or begins anew.
    (State.WAITING, Event.WITHDRAW): State.ABANDONED,
    (State.HELD, Event.WITHDRAW): State.ABANDONED,
    (State.STAGED, Event.WITHDRAW): State.ABANDONED,
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a pipeline hands out its deliveries."""

    mode: Mode = Mode.SHARED
    #: In mode session there are so many, named 1, 2, 3 and so on; else as many as take part.
    sessions: int | None = None
    #: A worker that says nothing for so long has lost what it holds.
    ack_deadline_s: float = 120.0
    deliveries_max: int = 5
    #: So many wait or are in hand at once; a batch that is published at once is offered whole.
    open_max: int = 1_000

    def __post_init__(self) -> None:
        bounds = {"ack_deadline": self.ack_deadline_s, "deliveries_max": self.deliveries_max, "open_max": self.open_max}
        for setting, found in {**bounds, "sessions": 1 if self.sessions is None else self.sessions}.items():
            if found <= 0:
                raise SettingRefused(f"delivery.{setting}", str(found), "more than 0")
        if self.mode is Mode.SESSION and self.sessions is None:
            raise SettingRefused("delivery.sessions", "none", "how many sessions there are, where mode is session")

    @property
    def names(self) -> tuple[SessionName, ...]:
        """The fixed sessions, in the order that they are served."""
        return tuple(SessionName(str(number)) for number in range(1, (self.sessions or 0) + 1))


def next_state(state: State, event: Event) -> State:
    """Where an event leads, or a refusal."""
    if (state, event) not in TRANSITIONS:
        allowed = " or ".join(source for source, possible in TRANSITIONS if possible is event)
        raise SettingRefused(event, f"a delivery that is {state}", f"one that is {allowed}")
    return TRANSITIONS[state, event]
