"""How much memory the values of a block take at most while they are Python objects: a byte may stand for hundreds."""

from collections.abc import Iterable
from dataclasses import dataclass

#: The place of a value in lists and in an array of Arrow.
_PLACE_BYTES = 48
_LIST_BYTES = 56
#: A dictionary, and each of its entries.
_RECORD_BYTES, _FIELD_BYTES = 200, 64


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a value of a type takes at most: a fixed part, and a multiple of its bytes in the file."""

    each: int
    times: float = 0
    #: The fewest bytes of a value in the file.
    least: int = 1

    def bytes_of(self, count: int, size: int) -> int:
        """What values take together, of which there are `count`, in `size` bytes of the file."""
        return count * (_PLACE_BYTES + self.each) + int(self.times * size)

    @property
    def as_items(self) -> "Held":
        """A list whose items are of this type."""
        times = self.times + (_PLACE_BYTES + self.each) / max(1, self.least)
        return Held(each=_LIST_BYTES, times=times)


def of_record(fields: Iterable[Held]) -> Held:
    held = list(fields)
    return Held(
        each=_RECORD_BYTES + sum(_FIELD_BYTES + each.each for each in held),
        times=max((each.times for each in held), default=0),
        least=sum(each.least for each in held),
    )


def of_union(branches: Iterable[Held]) -> Held:
    """A byte says which branch a value is of. So a null takes nothing but its place, in a wide record as well."""
    return Held(each=0, times=max((each.times + each.each / (1 + each.least) for each in branches), default=0))
