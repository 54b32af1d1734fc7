"""A board with a clock, as sessions see it."""

from onceload_core.delivery import Mode
from onceload_core.names import DeliveryId, Epoch, ProducerId, SessionName
from tests.models.board import (
    Board,
    Session,
    ack,
    close_session,
    expire,
    nack,
    offer,
    open_session,
    renew,
    take,
)

DEADLINE_S = 10.0
TRIES = 2
WITHOUT_LINES_TAKEN_AWAY = [Mode.SHARED, Mode.KEY_SHARED, Mode.ORDERED]


class Desk:
    """A board, a clock and the latest life of each session, so that a test reads as a story."""

    def __init__(self, mode: Mode, *names: str, open_max: int = 5) -> None:
        self.board = Board(
            pipeline="events", mode=mode, ack_deadline_s=DEADLINE_S, deliveries_max=TRIES, open_max=open_max
        )
        self.now = 0.0
        self.lives: dict[str, Session] = {}
        for name in names:
            self.open(name)

    def open(self, name: str) -> Session:
        self.board, self.lives[name] = open_session(self.board, SessionName(name), self.now)
        return self.lives[name]

    def close(self, name: str) -> None:
        self.board = close_session(self.board, *self._life(name), self.now)

    def offer(self, *work: tuple[int, ...]) -> None:
        bundles = [tuple(ProducerId(producer) for producer in producers) for producers in work]
        self.board, _ = offer(self.board, bundles)

    def take(self, name: str) -> int | None:
        self.board, delivery = take(self.board, *self._life(name), self.now)
        return delivery.id if delivery else None

    def ack(self, name: str, number: int) -> None:
        self.board = ack(self.board, *self._life(name), DeliveryId(number))

    def nack(self, name: str, number: int) -> None:
        self.board = nack(self.board, *self._life(name), DeliveryId(number))

    def renew(self, name: str) -> None:
        self.board = renew(self.board, *self._life(name), self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.board = expire(self.board, self.now)

    def kill(self, name: str, number: int) -> None:
        """Let a delivery fail until it is a dead letter."""
        for _ in range(TRIES):
            assert self.take(name) == number
            self.nack(name, number)

    def finish(self, name: str) -> list[int]:
        """Take and ack whatever comes."""
        done = []
        while (number := self.take(name)) is not None:
            self.ack(name, number)
            done.append(number)
        return done

    def states(self) -> list[str]:
        return [self.board.deliveries[DeliveryId(number)].state for number in range(len(self.board.deliveries))]

    def tries(self, number: int) -> int:
        return self.board.deliveries[DeliveryId(number)].tries

    def _life(self, name: str) -> tuple[SessionName, Epoch]:
        return self.lives[name].name, self.lives[name].epoch
