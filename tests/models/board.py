"""The board as pure functions with time as an argument: each step of a delivery, session and line.

`dedup_core/onceload_core/delivery.py` says what it promises; the board in Postgres is compared with it, step by step.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import assert_never

from onceload_core.delivery import Event, Mode, State, next_state
from onceload_core.errors import DeliveryTakenAway, NotFound, SessionFenced, SettingRefused
from onceload_core.names import DeliveryId, Epoch, ProducerId, SessionName
from tests.models.shelf import Shelf

OPEN = frozenset({State.WAITING, State.HELD})


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One chunk or bundle; session and epoch name its holder. While it waits, session names the keeper of its line."""

    id: DeliveryId
    producers: tuple[ProducerId, ...]
    state: State = State.WAITING
    session: SessionName | None = None
    epoch: Epoch | None = None
    deadline: float | None = None
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class Session:
    """One life of a named consumer."""

    name: SessionName
    epoch: Epoch
    lease_until: float
    held: frozenset[DeliveryId] = frozenset()


@dataclass(frozen=True)
class Line:
    """Open deliveries that go one after another, the oldest first."""

    ids: tuple[DeliveryId, ...] = ()
    in_hand: DeliveryId | None = None


@dataclass(frozen=True, kw_only=True)
class Board:
    """All deliveries and sessions of a pipeline at one moment."""

    pipeline: str
    mode: Mode
    ack_deadline_s: float
    deliveries_max: int
    #: Deliveries that one session may hold at once.
    open_max: int
    sealed: bool = False
    #: Deliveries that wait or are held.
    open_count: int = 0
    sessions: Mapping[SessionName, Session] = field(default_factory=dict)
    deliveries: Shelf[DeliveryId, Delivery] = field(default_factory=Shelf, repr=False)
    lines: Shelf[Hashable, Line] = field(default_factory=Shelf, repr=False)
    #: For the keeper of a line, and for None (no keeper): what may be taken now, as a set of bits.
    ready: Mapping[SessionName | None, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        bounds = {"ack_deadline": self.ack_deadline_s, "deliveries_max": self.deliveries_max, "open_max": self.open_max}
        for setting, found in bounds.items():
            if found <= 0:
                raise SettingRefused(setting, str(found), "more than 0")


def open_session(board: Board, name: SessionName, now: float) -> tuple[Board, Session]:
    """Start a life of a session; an earlier life is fenced, and what it held falls back."""
    known = board.sessions.get(name)
    for delivery_id in sorted(known.held) if known else ():
        board = _fall_back(board, delivery_id, Event.FENCE)
    epoch = Epoch(known.epoch + 1 if known else 1)
    session = Session(name=name, epoch=epoch, lease_until=now + board.ack_deadline_s)
    board = _with_session(board, session)
    if board.mode is Mode.KEY_SHARED and (known is None or known.lease_until <= now):
        board = _shared_out_anew(board)
    return board, session


def renew(board: Board, name: SessionName, epoch: Epoch, now: float) -> Board:
    """Heartbeat: move the lease of a session and the deadlines of what it holds."""
    session = _get_session(board, name, epoch)
    until = now + board.ack_deadline_s
    held = [replace(board.deliveries[delivery_id], deadline=until) for delivery_id in session.held]
    board = replace(board, deliveries=board.deliveries.put((delivery.id, delivery) for delivery in held))
    return _with_session(board, replace(session, lease_until=until))


def close_session(board: Board, name: SessionName, epoch: Epoch, now: float) -> Board:
    """Leave in good order: give back what is held, uncounted, and end the lease."""
    session = _get_session(board, name, epoch)
    for delivery_id in sorted(session.held):
        delivery = board.deliveries[delivery_id]
        board = _put(board, replace(_moved(delivery, Event.RETURN), tries=delivery.tries - 1))
    return _with_session(board, replace(board.sessions[name], lease_until=now))


def offer(board: Board, work: Iterable[tuple[ProducerId, ...]]) -> tuple[Board, tuple[Delivery, ...]]:
    """Add a waiting delivery for each tuple of producers, in this order."""
    if board.sealed:
        raise SettingRefused(setting="offer", found="a sealed board", expected="a board that is not sealed")
    names = tuple(board.sessions)
    if board.mode is Mode.SESSION and not names:
        raise SettingRefused(setting="offer", found="no session", expected="sessions to go round, opened before")
    added = []
    for number, producers in enumerate(work, start=len(board.deliveries)):
        if not producers:
            raise SettingRefused(setting="offer", found="a delivery of no producer", expected="at least one")
        session = names[number % len(names)] if board.mode is Mode.SESSION else None
        added.append(Delivery(id=DeliveryId(number), producers=tuple(dict.fromkeys(producers)), session=session))
    return _with_added(board, added), tuple(added)


def seal(board: Board) -> Board:
    """Say that nothing more will be offered."""
    return replace(board, sealed=True)


def take(board: Board, name: SessionName, epoch: Epoch, now: float) -> tuple[Board, Delivery | None]:
    """Hand the oldest delivery within reach to a session, or None: nothing is ready for it, or its hands are full."""
    until = now + board.ack_deadline_s
    session = replace(_get_session(board, name, epoch), lease_until=until)
    board = _with_session(board, session)
    ready = _within_reach(board, name, now)
    if not ready or len(session.held) >= board.open_max:
        return board, None
    oldest = DeliveryId((ready & -ready).bit_length() - 1)
    delivery = board.deliveries[oldest]
    delivery = replace(
        _moved(delivery, Event.TAKE), session=name, epoch=epoch, deadline=until, tries=delivery.tries + 1
    )
    return _put(_kept(board, delivery), delivery), delivery


def ack(board: Board, name: SessionName, epoch: Epoch, delivery_id: DeliveryId) -> Board:
    """Close a delivery whose work is committed; belongs in that very commit."""
    return _put(board, _moved(_get_held(board, name, epoch, delivery_id), Event.ACK))


def withdraw(board: Board, delivery_id: DeliveryId) -> Board:
    """Give up a delivery that is held, by hand: what its worker commits then is refused."""
    return _put(board, _moved(_get_delivery(board, delivery_id), Event.WITHDRAW))


def nack(board: Board, name: SessionName, epoch: Epoch, delivery_id: DeliveryId) -> Board:
    """Give a failed delivery back, to be delivered again now."""
    return _fall_back(board, _get_held(board, name, epoch, delivery_id).id, Event.NACK)


def expire(board: Board, now: float) -> Board:
    """Let all deliveries fall back whose deadline has passed, but in mode session, where nothing is taken away."""
    if board.mode is Mode.SESSION:
        return board
    held = (board.deliveries[delivery_id] for session in board.sessions.values() for delivery_id in session.held)
    late = [delivery.id for delivery in held if delivery.deadline is not None and delivery.deadline <= now]
    for delivery_id in sorted(late):
        board = _fall_back(board, delivery_id, Event.EXPIRE)
    return board


def redrive(board: Board, delivery_id: DeliveryId) -> Board:
    """Give a dead letter all its tries again, at its old place."""
    return _put(board, replace(_moved(_get_delivery(board, delivery_id), Event.REDRIVE), tries=0))


def abandon(board: Board, delivery_id: DeliveryId) -> Board:
    """Give a delivery up for good; a held one is refused, as its worker may be committing it."""
    return _put(board, _moved(_get_delivery(board, delivery_id), Event.ABANDON))


def end_of_session(board: Board, name: SessionName) -> bool:
    """Whether the board is sealed and nothing open can come to this session any more."""
    if board.mode is Mode.SESSION:
        return board.sealed and not board.lines.get(name, Line()).ids
    return board.sealed and board.open_count == 0


def _moved(delivery: Delivery, event: Event) -> Delivery:
    return replace(delivery, state=next_state(delivery.state, event), deadline=None)


def _fall_back(board: Board, delivery_id: DeliveryId, cause: Event) -> Board:
    delivery = board.deliveries[delivery_id]
    return _put(board, _moved(delivery, cause if delivery.tries < board.deliveries_max else Event.EXHAUST))


def _get_session(board: Board, name: SessionName, epoch: Epoch) -> Session:
    if name not in board.sessions:
        raise NotFound(what="session", name=name, known=tuple(board.sessions))
    if board.sessions[name].epoch != epoch:
        raise SessionFenced(board.pipeline, name, epoch)
    return board.sessions[name]


def _get_delivery(board: Board, delivery_id: DeliveryId) -> Delivery:
    if delivery_id not in board.deliveries:
        raise NotFound(what="delivery", name=str(delivery_id), known=tuple(map(str, sorted(board.deliveries))))
    return board.deliveries[delivery_id]


def _get_held(board: Board, name: SessionName, epoch: Epoch, delivery_id: DeliveryId) -> Delivery:
    session = _get_session(board, name, epoch)
    delivery = _get_delivery(board, delivery_id)
    if delivery_id not in session.held:
        raise DeliveryTakenAway(board.pipeline, delivery_id, name, epoch, delivery.state)
    return delivery


def _kept(board: Board, taken: Delivery) -> Board:
    """Let the session that takes a delivery keep all that waits in its lines."""
    numbers = {number for key in _line_keys(board.mode, taken) for number in board.lines[key].ids} - {taken.id}
    others = [board.deliveries[number] for number in sorted(numbers)]
    kept = [(each.id, replace(each, session=taken.session)) for each in others if each.session != taken.session]
    # None of them is ready before this one is closed, so that nothing else changes.
    return replace(board, deliveries=board.deliveries.put(kept)) if kept else board


def _shared_out_anew(board: Board) -> Board:
    """Without this, the first session would keep every line, and a later session would idle for good."""
    waiting = [each for each in board.deliveries.values() if each.state is State.WAITING and each.session is not None]
    free = [(each.id, replace(each, session=None)) for each in waiting]
    ready: dict[SessionName | None, int] = {None: reduce(or_, board.ready.values(), 0)}
    return replace(board, deliveries=board.deliveries.put(free), ready=ready)


def _with_session(board: Board, session: Session) -> Board:
    return replace(board, sessions={**board.sessions, session.name: session})


def _with_added(board: Board, added: list[Delivery]) -> Board:
    added = [replace(delivery, session=delivery.session or _keeper_of_lines(board, delivery)) for delivery in added]
    joining: dict[Hashable, list[Delivery]] = {}
    for delivery in added:
        for key in _line_keys(board.mode, delivery):
            joining.setdefault(key, []).append(delivery)
    lines = []
    for key, joined in joining.items():
        line = board.lines.get(key, Line())
        lines.append((key, replace(line, ids=(*line.ids, *(each.id for each in joined)))))
    board = replace(
        board,
        open_count=board.open_count + len(added),
        deliveries=board.deliveries.put((delivery.id, delivery) for delivery in added),
        lines=board.lines.put(lines),
    )
    return _with_ready(board, board, {delivery.id for delivery in added})


def _keeper_of_lines(board: Board, delivery: Delivery) -> SessionName | None:
    """Find who keeps the youngest of the deliveries that a new one is behind."""
    lines = [board.lines.get(key, Line()).ids for key in _line_keys(board.mode, delivery)]
    youngest = max((ids[-1] for ids in lines if ids), default=None)
    return None if youngest is None else board.deliveries[youngest].session


def _put(board: Board, delivery: Delivery) -> Board:
    """Change one delivery, and all that follows from it: its session, its lines, and what is ready."""
    before = board.deliveries[delivery.id]
    keys = _line_keys(board.mode, delivery)
    after = replace(
        board,
        open_count=board.open_count + (delivery.state in OPEN) - (before.state in OPEN),
        sessions=_sessions_after(board.sessions, delivery),
        deliveries=board.deliveries.put([(delivery.id, delivery)]),
        lines=board.lines.put((key, _line_after(board, key, delivery)) for key in keys),
    )
    return _with_ready(board, after, {delivery.id, *_heads(board, keys), *_heads(after, keys)})


def _sessions_after(sessions: Mapping[SessionName, Session], delivery: Delivery) -> Mapping[SessionName, Session]:
    if delivery.session is None:
        return sessions
    session = sessions[delivery.session]
    held = session.held | {delivery.id} if delivery.state is State.HELD else session.held - {delivery.id}
    return {**sessions, session.name: replace(session, held=held)}


def _line_keys(mode: Mode, delivery: Delivery) -> tuple[Hashable, ...]:
    """Name the lines that have a delivery."""
    match mode:
        case Mode.SESSION:
            return (delivery.session,)
        case Mode.SHARED:
            return ()
        case Mode.KEY_SHARED:
            return delivery.producers
        case Mode.ORDERED:
            return (mode,)
        case _:
            assert_never(mode)


def _line_after(board: Board, key: Hashable, delivery: Delivery) -> Line:
    line = board.lines[key]
    place = bisect_left(line.ids, delivery.id)
    younger = line.ids[place + 1 :] if line.ids[place : place + 1] == (delivery.id,) else line.ids[place:]
    ids = line.ids[:place] + ((delivery.id,) if delivery.state in OPEN else ()) + younger
    if delivery.state is State.HELD:
        return Line(ids, in_hand=delivery.id)
    return replace(line, ids=ids, in_hand=None if line.in_hand == delivery.id else line.in_hand)


def _heads(board: Board, keys: tuple[Hashable, ...]) -> set[DeliveryId]:
    return {board.lines[key].ids[0] for key in keys if board.lines[key].ids}


def _is_ready(board: Board, delivery: Delivery) -> bool:
    lines = (board.lines[key] for key in _line_keys(board.mode, delivery))
    return delivery.state is State.WAITING and all(
        line.in_hand is None and line.ids[0] == delivery.id for line in lines
    )


def _keeper(board: Board, delivery: Delivery) -> SessionName | None:
    """Find who may take a delivery; where there are no lines, any session."""
    return None if board.mode is Mode.SHARED else delivery.session


def _with_ready(before: Board, after: Board, delivery_ids: set[DeliveryId]) -> Board:
    """Decide again whether, and for whom, these deliveries are ready."""
    ready = dict(after.ready)
    for delivery_id in delivery_ids:
        keeper = _keeper(before, before.deliveries[delivery_id])
        ready[keeper] = ready.get(keeper, 0) & ~(1 << delivery_id)
        if _is_ready(after, after.deliveries[delivery_id]):
            keeper = _keeper(after, after.deliveries[delivery_id])
            ready[keeper] = ready.get(keeper, 0) | (1 << delivery_id)
    return replace(after, ready=ready)


def _within_reach(board: Board, name: SessionName, now: float) -> int:
    """Collect what is ready in lines that a session keeps or may come to keep."""
    reach = {None, name}
    if board.mode is not Mode.SESSION:
        reach |= {other.name for other in board.sessions.values() if other.lease_until <= now}
    return reduce(or_, (ids for keeper, ids in board.ready.items() if keeper in reach), 0)
