"""An independent count: what the files hold, what the database holds, and where the two differ.

Nothing of the product reads a file here: Python's own gzip, json and csv do.
The identity: every complete record that was offered is in the target once or in quarantine once, nothing else is
there, and the ledger proves just that.
"""

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import zstandard
from sqlalchemy import Connection, Engine, text

from onceload_core.names import Position
from onceload_core.postgres import PostgresLedger, recover_state
from onceload_core.replay import replay
from onceload_core.spans import SpanSet

#: The contract that the records of these tests are written for, and that is checked here again.
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


class Form(StrEnum):
    """How records are written."""

    JSONL = "jsonl"
    #: With a header, and newlines inside quotes.
    CSV = "csv"
    #: With a header, and no value over several lines.
    CSV_OF_LINES = "csv of lines"


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What records have to be like."""

    form: Form = Form.JSONL
    #: They say themselves who they are: their note names a producer, and their id counts its records.
    is_named: bool = False

    @property
    def has_header(self) -> bool:
        return self.form is not Form.JSONL


_LINES_OF_JSON = Contract()


def stream_of(path: Path) -> tuple[bytes, bool]:
    """The content of a file, as far as it can be unpacked, and whether that is all of it."""
    match path.suffix:
        case ".gz":
            return _gunzipped(path)
        case ".zst":
            return _unzstd(path.read_bytes())
        case _:
            return path.read_bytes(), True


def _gunzipped(path: Path) -> tuple[bytes, bool]:
    taken = []
    with gzip.open(path) as packed:
        try:
            while block := packed.read1(2**16):
                taken.append(block)
        except (EOFError, gzip.BadGzipFile):
            # It breaks off, in what is packed or in a header.
            return b"".join(taken), False
    return b"".join(taken), True


def _unzstd(packed: bytes) -> tuple[bytes, bool]:
    taken = b""
    while packed:
        frame = zstandard.ZstdDecompressor().decompressobj()
        taken += frame.decompress(packed)
        if not frame.eof:
            return taken, False
        packed = frame.unused_data
    return taken, True


def ends_in(stream: bytes, form: Form) -> list[int]:
    """Where complete records end, behind their newlines."""
    # A stream of bytes ends its lines at newlines only, never at a carriage return alone.
    lines = BytesIO(stream).readlines()
    ends = list(accumulate(map(len, lines)))
    if form is Form.CSV:
        # For Python a carriage return ends a line; and an empty line at last goes into quotes that are still open.
        reader = csv.reader([*(line.decode("latin-1").replace("\r", "_") for line in lines), ""])
        counts = [reader.line_num for _ in reader]
        ends = [ends[count - 1] for count in counts if count <= len(lines)]
    return [end for end in ends if stream[end - 1 : end] == b"\n"]


def lines_in(stream: bytes, *, sealed: bool, form: Form = Form.JSONL) -> Iterator[tuple[int, bytes]]:
    """Every complete record that is not blank, and where it starts."""
    first, blanks = 0, b"\r\n" if form is not Form.JSONL else _BLANKS + b"\n"
    for end in [*ends_in(stream, form), *([len(stream)] if sealed else [])]:
        if stream[first:end].strip(blanks):
            yield first, stream[first:end].removesuffix(b"\n")
        first = end


def header_of(record: bytes) -> list[str | None]:
    """The names in a first record; one that cannot be read is a ValueError."""
    return _values(record.removesuffix(b"\n"))


def records_in(life: Life, stream: bytes, *, sealed: bool, contract: Contract = _LINES_OF_JSON) -> Iterator[Record]:
    """What has to become of every complete record."""
    header: list[str | None] = []
    for offset, line in lines_in(stream, sealed=sealed, form=contract.form):
        if contract.has_header and offset == 0:
            header = header_of(line)
        else:
            yield _record_of(life, offset, line, contract, header)


def _record_of(life: Life, offset: int, line: bytes, contract: Contract, header: list[str | None]) -> Record:
    try:
        found = _from_csv(header, line) if contract.has_header else json.loads(line, parse_float=Decimal)
        payload = _row(found["id"], found.get("amount"), found.get("note"), contract)
    except (ValueError, ArithmeticError, TypeError, KeyError, AttributeError):
        return Record(life, offset, is_row=False, payload=_shown(line))
    return Record(life, offset, is_row=True, payload=payload)


def _shown(raw: bytes) -> str:
    """Bytes that may be anything as text, different ones as different texts."""
    return raw.decode("latin-1")


def _from_csv(header: list[str | None], line: bytes) -> dict[str | None, object]:
    found: dict[str | None, object] = dict(zip(header, _values(line), strict=True))
    return found | {"id": int(str(found["id"]))}


_VALUE = re.compile(r'(?:"((?:[^"]|"")*)"|([^",]*))(,|\Z)')


def _values(line: bytes) -> list[str | None]:
    text, at, comma = line.decode().removesuffix("\r"), 0, ","
    values: list[str | None] = []
    while comma:
        found = _VALUE.match(text, at)
        if found is None:
            raise ValueError(f"a quote out of its place behind character {at}")
        quoted, bare, comma = found.groups()
        values.append((bare or None) if quoted is None else quoted.replace('""', '"'))
        at = found.end()
    return values


def _row(number: object, amount: object, note: object, contract: Contract) -> str:
    if type(number) is not int or not (note is None or isinstance(note, str)):
        raise ValueError
    if contract.is_named and (note is None or number < 0):
        raise ValueError
    if amount is not None:
        amount = Decimal(str(amount))
        # Nothing is rounded.
        if not -_AMOUNT_END < amount < _AMOUNT_END or amount != amount.quantize(Decimal("0.01")):
            raise ValueError
        amount = str(amount.quantize(Decimal("0.01")))
    return json.dumps([number, amount, note])


def records_of(streams: Mapping[Life, bytes], *, sealed: bool = False) -> Counter[Record]:
    """All complete records of some files of JSON lines."""
    return Counter(record for life, stream in streams.items() for record in records_in(life, stream, sealed=sealed))


_NONE = Counter[Record]()


def broken(engine: Engine, place: Place, expected: Counter[Record], *, gone: Counter[Record] = _NONE) -> list[str]:
    """Where the database differs from what should have taken effect; a good one has nothing to say.

    `gone` counts the rows among it that other rows have replaced since.
    """
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        found = _found(connection, place)
        differences = [
            *_differences(expected - gone, found),
            *_broken_sum(connection, place, expected - gone),
            *_broken_ledger(connection, place, found + gone),
            *_broken_counts(connection, place, expected),
            *_broken_receipts(connection, place),
        ]
    return [*differences, *_broken_replay(engine, place)]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What one commit says that it consumed, of its producers in the order of their ids."""

    batch: str
    spans: dict[Life, SpanSet] = field(default_factory=dict)
    #: Nothing was read for it, because all of it is in under another name.
    is_noted: bool
    replaced: set[Life] = field(default_factory=set)


def commits_of(engine: Engine, pipeline: str, *, after: int) -> list[Commit]:
    """What the ledger says of each commit behind the first so many."""
    query = """
        SELECT ledger.position, bytes, producer, generation, CAST(spans AS text), condition, batch
          FROM onceload.pipeline JOIN onceload.ledger USING (pipeline_id)
          JOIN onceload.ledger_span ON ledger_span.pipeline_id = ledger.pipeline_id
               AND ledger_span.position = ledger.position
         WHERE name = :pipeline AND ledger.position > :after ORDER BY ledger.position, producer_id"""
    commits: dict[int, Commit] = {}
    with engine.begin() as connection:
        for row in connection.execute(text(query), {"pipeline": pipeline, "after": after}):
            commit = commits.setdefault(row[0], Commit(batch=row[6], is_noted=row[1] == 0))
            if row[5] == "replaced":
                commit.replaced.add(Life(row[2], row[3]))
            else:
                commit.spans[Life(row[2], row[3])] = SpanSet.parse(row[4])
    return list(commits.values())


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


def _broken_counts(connection: Connection, place: Place, expected: Counter[Record]) -> Iterator[str]:
    query = """
        SELECT producer, generation, sum(rows) FROM onceload.ledger_span JOIN onceload.pipeline USING (pipeline_id)
         WHERE name = :pipeline GROUP BY 1, 2"""
    promised = Counter(
        {Life(row[0], row[1]): int(row[2]) for row in connection.execute(text(query), {"pipeline": place.pipeline})}
    )
    rows = Counter(record.life for record in expected.elements() if record.is_row)
    for life in promised.keys() | rows.keys():
        if promised[life] != rows[life]:
            yield f"{life}: its receipts promise {promised[life]} rows instead of {rows[life]}"


def _broken_receipts(connection: Connection, place: Place) -> Iterator[str]:
    query = f"""
        WITH receipts AS (
            SELECT producer_id, range_agg(span) AS spans, sum(upper(span) - lower(span)) AS length
              FROM onceload.ledger_span JOIN onceload.pipeline USING (pipeline_id), LATERAL unnest(spans) AS span
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
        SELECT producer_id, 'a record without proof' FROM outside"""
    for producer_id, what in connection.execute(text(query), {"pipeline": place.pipeline}):
        yield f"producer {producer_id}: {what}"


def _broken_replay(engine: Engine, place: Place) -> Iterator[str]:
    ledger = PostgresLedger(engine)
    if replay({}, ledger.entries(place.pipeline, after=Position(0))) != ledger.states(place.pipeline).states:
        yield "the whole ledger replayed is not the live state"
    recovery = recover_state(engine, place.pipeline, dry_run=True)
    if recovery.differing or recovery.position != recovery.position_was:
        yield f"a recovery would change {recovery.differing or 'the position'}"
