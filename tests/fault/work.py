"""Work that is made up from a seed: producers, their records, and the chunks in which these are offered."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from onceload_core.names import ProducerId
from onceload_core.spans import Span, SpanSet

#: What one commit offers, by producer.
Chunk = Mapping[ProducerId, SpanSet]
#: (producer, sequence id, payload), in the target or in quarantine.
Record = tuple[ProducerId, int, str]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Chunks in the order in which they are offered; some overlap what was offered before."""

    chunks: tuple[Chunk, ...]
    #: Plain work has no damaged records and no business ids, whose own constraints would help to keep rows single.
    is_plain: bool

    def with_something_new(self) -> list[int]:
        """Which chunks a worker commits that goes through them alone."""
        seen: dict[ProducerId, SpanSet] = {}
        numbers = []
        for number, chunk in enumerate(self.chunks):
            if any(spans - seen.get(producer_id, SpanSet()) for producer_id, spans in chunk.items()):
                numbers.append(number)
            for producer_id, spans in chunk.items():
                seen[producer_id] = seen.get(producer_id, SpanSet()) | spans
        return numbers

    def records(self) -> Counter[Record]:
        """Every record once, as it has to be found in the end."""
        ids = {record_id for chunk in self.chunks for record_id in ids_in(chunk)}
        return Counter((*record_id, payload_of(*record_id)) for record_id in ids)


def ids_in(chunk: Chunk) -> Iterator[tuple[ProducerId, int]]:
    for producer_id, spans in chunk.items():
        for span in spans:
            for sequence_id in range(span.first, span.end):
                yield producer_id, sequence_id


def payload_of(producer_id: ProducerId, sequence_id: int) -> str:
    return f"record {sequence_id} of producer {producer_id}"


def is_damaged(producer_id: ProducerId, sequence_id: int) -> bool:
    """Such a record goes to quarantine."""
    return (sequence_id * 31 + producer_id * 17) % 7 == 0


def message_ids_in(records: Iterable[tuple[ProducerId, int]]) -> tuple[str, ...]:
    """Some records carry a business id."""
    return tuple(f"{producer_id}/{sequence_id}" for producer_id, sequence_id in records if sequence_id % 3 == 0)


def make_up(rng: Random, producer_ids: Sequence[ProducerId]) -> Work:
    """Each producer's records, cut at random, mixed, and dealt into at least four chunks."""
    pieces = [(producer_id, piece) for producer_id in producer_ids for piece in _pieces(rng)]
    rng.shuffle(pieces)
    count = rng.randint(4, 7)
    chunks = [_bundle(pieces[number::count]) for number in range(count)]
    for _ in range(rng.randint(0, 2)):
        chunks.insert(rng.randint(1, len(chunks)), _overlapping(rng, pieces))
    return Work(chunks=tuple(chunks), is_plain=rng.random() < 0.5)


def _pieces(rng: Random) -> Iterator[Span]:
    """Pieces that touch each other, but for a gap between some of them."""
    first = rng.choice([0, 0, rng.randint(1, 1_000), 2**40])
    for _ in range(rng.randint(3, 6)):
        end = first + rng.randint(1, 9)
        yield Span(first, end)
        first = end + rng.choice([0, 0, 0, rng.randint(1, 5)])


def _bundle(pieces: Iterable[tuple[ProducerId, Span]]) -> Chunk:
    chunk: dict[ProducerId, SpanSet] = {}
    for producer_id, piece in pieces:
        chunk[producer_id] = chunk.get(producer_id, SpanSet()) | SpanSet([piece])
    return chunk


def _overlapping(rng: Random, pieces: Sequence[tuple[ProducerId, Span]]) -> Chunk:
    """A repeated delivery: a part of some pieces."""
    again = rng.sample(pieces, k=min(3, len(pieces)))
    return _bundle(
        (producer_id, Span(piece.first, rng.randint(piece.first + 1, piece.end))) for producer_id, piece in again
    )
