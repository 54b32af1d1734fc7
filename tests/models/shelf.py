"""An immutable mapping that is cheap to change: what the delivery machine keeps its deliveries on."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Shelf(Mapping[K, V]):
    """An immutable mapping whose changed copy shares all drawers but those that were touched."""

    drawers: tuple[Mapping[K, V], ...] = ({},) * 512

    def __getitem__(self, key: K) -> V:
        return self.drawers[hash(key) % len(self.drawers)][key]

    def __iter__(self) -> Iterator[K]:
        return (key for drawer in self.drawers for key in drawer)

    def __len__(self) -> int:
        return sum(map(len, self.drawers))

    def put(self, items: Iterable[tuple[K, V]]) -> "Shelf[K, V]":
        drawers = list(self.drawers)
        touched: dict[int, dict[K, V]] = {}
        for key, value in items:
            number = hash(key) % len(drawers)
            if number not in touched:
                drawers[number] = touched[number] = dict(drawers[number])
            touched[number][key] = value
        return Shelf(tuple(drawers))
