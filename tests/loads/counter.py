"""An independent count: what the files hold, what the database holds, and where the two differ.

Nothing of the product reads a file here: Python's own gzip and json do.
The identity: every complete record that was offered is in the target once or in quarantine once, nothing else is
there, and the ledger proves just that.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, Engine, text

from dedup_core.names import Position
from dedup_core.postgres import PostgresLedger, recover_state
from dedup_core.replay import replay
from dedup_core.spans import SpanSet

#: The contract that the records of these tests are written for, and that is checked here anew.
COLUMNS = {"id": "bigint not null", "amount": "numeric(12,2)", "note": "text"}
_AMOUNT_END = Decimal(10**10)
_BLANKS = b" \t\r"
_SHOWN = 3


class Life(NamedTuple):
    """One generation of a file."""

    file: str
    generation: int


class Record(NamedTuple):
    """One record, and where it belongs: a row as its values, a bad one as its bytes."""

    life: Life
    offset: int
    is_row: bool
    payload: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a pipeline puts what it loads."""

    pipeline: str
    target: str


def stream_of(path: Path) -> tuple[bytes, bool]:
    """What is in a file, as far as it can be unpacked, and whether that is all of it."""
    if path.suffix != ".gz":
        return path.read_bytes(), True
    taken = []
    with gzip.open(path) as packed:
        try:
            while block := packed.read1(2**16):
                taken.append(block)
        except (EOFError, gzip.BadGzipFile):
            # It breaks off, in what is packed or in a header.
            return b"".join(taken), False
    return b"".join(taken), True


def lines_in(stream: bytes, *, sealed: bool) -> Iterator[tuple[int, bytes]]:
    """Every complete line that is not blank, and where it starts."""
    offset = 0
    # A stream of bytes ends its lines at newlines only, never at a carriage return alone.
    for line in BytesIO(stream):
        if (line.endswith(b"\n") or sealed) and line.strip(_BLANKS + b"\n"):
            yield offset, line.removesuffix(b"\n")
        offset += len(line)


def record_of(life: Life, offset: int, line: bytes) -> Record:
    """What has to become of a line."""
    try:
        found = json.loads(line, parse_float=Decimal)
        payload = _row(found["id"], found.get("amount"), found.get("note"))
    except (ValueError, ArithmeticError, TypeError, KeyError, AttributeError):
        return Record(life, offset, is_row=False, payload=_shown(line))
    return Record(life, offset, is_row=True, payload=payload)


def _shown(raw: bytes) -> str:
    """Bytes that may be anything as text, different ones as different texts."""
    return raw.decode("latin-1")


def _row(number: object, amount: object, note: object) -> str:
    if type(number) is not int or not (note is None or isinstance(note, str)):
        raise ValueError
    if amount is not None:
        amount = Decimal(str(amount))
        if not -_AMOUNT_END < amount < _AMOUNT_END:
            raise ValueError
        amount = str(amount.quantize(Decimal("0.01")))
    return json.dumps([number, amount, note])


def records_of(streams: Mapping[Life, bytes], *, sealed: bool = False) -> Counter[Record]:
    """All complete records of some files."""
    return Counter(
        record_of(life, offset, line)
        for life, stream in streams.items()
        for offset, line in lines_in(stream, sealed=sealed)
    )


def broken(engine: Engine, place: Place, expected: Counter[Record]) -> list[str]:
    """Where the database differs from what is expected of it; a good one has nothing to say."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        found = _found(connection, place)
        differences = [
            *_differences(expected, found),
            *_broken_sum(connection, place, expected),
            *_broken_ledger(connection, place, found),
            *_broken_receipts(connection, place),
        ]
    return [*differences, *_broken_replay(engine, place)]


def consumed_by(engine: Engine, pipeline: str) -> dict[Life, SpanSet]:
    """What the ledger says of each generation that has consumed anything."""
    query = """
        SELECT producer.name, generation, CAST(consumed AS text) FROM onceload.producer JOIN onceload.pipeline
         USING (pipeline_id) WHERE pipeline.name = :pipeline AND NOT isempty(consumed)"""
    with engine.begin() as connection:
        rows = connection.execute(text(query), {"pipeline": pipeline})
        return {Life(row[0], row[1]): SpanSet.parse(row[2]) for row in rows}


def _found(connection: Connection, place: Place) -> Counter[Record]:
    rows = f"""
        SELECT producer.name, generation, _sequence, id, CAST(amount AS text), note
          FROM {place.target} LEFT JOIN onceload.producer ON producer_id = _producer_id"""
    quarantined = """
        SELECT producer.name, generation, sequence_id, raw
          FROM onceload.quarantine JOIN onceload.pipeline USING (pipeline_id)
          LEFT JOIN onceload.producer USING (producer_id) WHERE pipeline.name = :pipeline"""
    found = Counter(
        Record(Life(row[0], row[1]), row[2], is_row=True, payload=json.dumps(list(row[3:])))
        for row in connection.execute(text(rows))
    )
    found.update(
        Record(Life(row[0], row[1]), row[2], is_row=False, payload=_shown(bytes(row[3])))
        for row in connection.execute(text(quarantined), {"pipeline": place.pipeline})
    )
    return found


def _differences(expected: Counter[Record], found: Counter[Record]) -> Iterator[str]:
    lost, too_many = expected - found, found - expected
    if lost:
        yield f"{lost.total()} records are lost, such as {sorted(lost)[:_SHOWN]}"
    if too_many:
        yield f"{too_many.total()} records are repeated or were never offered, such as {sorted(too_many)[:_SHOWN]}"


def _broken_sum(connection: Connection, place: Place, expected: Counter[Record]) -> Iterator[str]:
    amounts = ((json.loads(record.payload)[1], times) for record, times in expected.items() if record.is_row)
    offered = sum((Decimal(amount) * times for amount, times in amounts if amount is not None), Decimal(0))
    there = connection.execute(text(f"SELECT coalesce(sum(amount), 0) FROM {place.target}")).scalar_one()
    if offered != there:
        yield f"the amounts should add up to {offered}, but do to {there}"


def _broken_ledger(connection: Connection, place: Place, found: Counter[Record]) -> Iterator[str]:
    query = """
        SELECT pipeline.position, count(ledger.position), coalesce(max(ledger.position), 0),
               coalesce(sum(loaded), 0), coalesce(sum(quarantined), 0)
          FROM onceload.pipeline LEFT JOIN onceload.ledger USING (pipeline_id)
         WHERE name = :pipeline GROUP BY pipeline.position"""
    row = connection.execute(text(query), {"pipeline": place.pipeline}).one()
    if not row[0] == row[1] == row[2]:
        yield f"the ledger should be gapless: position {row[0]}, but {row[1]} entries up to {row[2]}"
    rows = sum(times for record, times in found.items() if record.is_row)
    if (row[3], row[4]) != (rows, found.total() - rows):
        yield f"the ledger counts {row[3]} rows and {row[4]} bad records; there are {rows} and {found.total() - rows}"


def _broken_receipts(connection: Connection, place: Place) -> Iterator[str]:
    query = f"""
        WITH receipts AS (
            SELECT producer_id, range_agg(span) AS spans, sum(upper(span) - lower(span)) AS length
              FROM onceload.ledger_span JOIN onceload.pipeline USING (pipeline_id), LATERAL unnest(spans) AS span
             WHERE name = :pipeline GROUP BY 1
        ), rows AS (SELECT _producer_id AS producer_id, count(*) AS rows FROM {place.target} GROUP BY 1
        ), proven AS (
            SELECT producer_id, sum(rows) AS rows FROM onceload.ledger_span JOIN onceload.pipeline USING (pipeline_id)
             WHERE name = :pipeline GROUP BY 1
        ), live AS (
            SELECT producer.* FROM onceload.producer JOIN onceload.pipeline USING (pipeline_id)
             WHERE pipeline.name = :pipeline AND NOT isempty(consumed)
        ), outside AS (
            SELECT _producer_id AS producer_id FROM {place.target}
              LEFT JOIN live ON live.producer_id = _producer_id WHERE (consumed @> _sequence) IS NOT TRUE
             UNION ALL
            SELECT producer_id FROM onceload.quarantine JOIN onceload.pipeline USING (pipeline_id)
              LEFT JOIN live USING (producer_id)
             WHERE pipeline.name = :pipeline AND (consumed @> sequence_id) IS NOT TRUE)
        SELECT producer_id, 'the union of its receipts is not what is consumed' FROM receipts FULL JOIN live
         USING (producer_id) WHERE spans IS DISTINCT FROM consumed
         UNION ALL
        SELECT producer_id, 'a span has two receipts' FROM receipts
         WHERE length <> (SELECT sum(upper(span) - lower(span)) FROM unnest(spans) AS span)
         UNION ALL
        SELECT producer_id, 'its receipts count other rows than there are' FROM rows FULL JOIN proven
         USING (producer_id) WHERE coalesce(rows.rows, 0) <> coalesce(proven.rows, 0)
         UNION ALL
        SELECT producer_id, 'a record without proof' FROM outside"""
    for producer_id, what in connection.execute(text(query), {"pipeline": place.pipeline}):
        yield f"producer {producer_id}: {what}"


def _broken_replay(engine: Engine, place: Place) -> Iterator[str]:
    ledger = PostgresLedger(engine)
    if replay({}, ledger.entries(place.pipeline, after=Position(0))) != ledger.states(place.pipeline).states:
        yield "the whole ledger replayed is not the live state"
    recovery = recover_state(engine, place.pipeline, dry_run=True)
    if recovery.differing or recovery.position != recovery.position_was:
        yield f"a recovery from the snapshot at {recovery.snapshot_position} would change {recovery.differing}"
