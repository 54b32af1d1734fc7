"""The delivery that a session takes, and its form on the board."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from dedup_core.names import ProducerId
from dedup_core.ports import Claim
from dedup_core.postgres.deliveries import Handed
from dedup_core.postgres.offers import Offer
from dedup_core.spans import SEQUENCE_END, Span, SpanSet
from spark_jobs.files.addresses import shown, with_login
from spark_jobs.formats.records import Chunk
from spark_jobs.pipeline.declared import Declared


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Chunks that one task loads: one large or many small ones."""

    number: int
    chunks: tuple[Chunk, ...]
    claim: Claim


Bundle = tuple[Chunk, ...]


def spans_of(chunks: Iterable[Chunk]) -> dict[ProducerId, SpanSet]:
    spans: dict[ProducerId, SpanSet] = {}
    for chunk in chunks:
        span = SpanSet([Span(chunk.first, SEQUENCE_END if chunk.end is None else chunk.end)])
        spans[chunk.producer_id] = spans.get(chunk.producer_id, SpanSet()) | span
    return spans


def offers_of(some: Sequence[Bundle], *, stage: str | None = None) -> list[Offer]:
    """Serialise bundles, without passwords; `stage` names the stage of their rows."""
    return [
        Offer(spans=spans_of(chunks), work=_written(chunks, number=number, stage=stage))
        for number, chunks in enumerate(some)
    ]


def _written(chunks: Bundle, *, number: int, stage: str | None) -> str:
    return json.dumps({"number": number, "stage": stage, "chunks": [_as_json(chunk) for chunk in chunks]})


def _as_json(chunk: Chunk) -> dict[str, object]:
    # Defaults are omitted.
    said = {name: value for name, value in asdict(chunk).items() if value != _DEFAULTS.get(name, _NOTHING)}
    said["url"] = shown(chunk.url)
    if chunk.expected:
        said["expected"] = [b64encode(each).decode() for each in chunk.expected]
    if chunk.lying:
        said["lying"] = b64encode(chunk.lying).decode()
    return said


_NOTHING = object()
_DEFAULTS: dict[str, object] = {
    "begins": None,
    "etag": None,
    "expected": (),
    "lying": None,
    "sealed": False,
    "header": (),
    "is_followed": False,
}


def read_work(declared: Declared, work: str, claim: Claim) -> tuple[Delivery, str | None]:
    """Deserialise a delivery, and the stage of its rows."""
    said = json.loads(work)
    chunks = tuple(
        Chunk(
            **{
                **each,
                "url": with_login(each["url"], of=declared.source.path),
                "expected": tuple(map(b64decode, each.get("expected", ()))),
                "lying": b64decode(each["lying"]) if "lying" in each else None,
                "header": tuple(each.get("header", ())),
            }
        )
        for each in said["chunks"]
    )
    return Delivery(number=said["number"], chunks=chunks, claim=claim), said["stage"]


def read_handed(declared: Declared, handed: Handed) -> tuple[Delivery, str | None]:
    return read_work(declared, handed.work, handed.claim)


def reading(work: str, name: str | None) -> str:
    """The same work with the name of the file that is being read, or None."""
    return json.dumps({**json.loads(work), _READING: name})


def find_file_in_hand(work: str) -> str | None:
    """The file that a worker was reading at its last sign of life."""
    name: str | None = json.loads(work).get(_READING)
    return name


_READING = "reading"


def parted(work: str, name: str) -> tuple[str | None, Offer]:
    """Split one file off a delivery: the rest, if there is any, and that file."""
    said = json.loads(reading(work, None))
    rest = [chunk for chunk in said["chunks"] if chunk["name"] != name]
    its = [chunk for chunk in said["chunks"] if chunk["name"] == name]
    spans = {ProducerId(chunk["producer_id"]): SpanSet() for chunk in its}
    return (
        json.dumps({**said, "chunks": rest}) if rest else None,
        Offer(spans=spans, work=json.dumps({**said, "chunks": its})),
    )
