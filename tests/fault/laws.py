"""What must hold: of every view of the database at any time, and of a finished run.

A record is lost if it is nowhere, and repeated if it is somewhere more than once, target and quarantine together.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg2.extensions
from sqlalchemy import Engine, text

from onceload_core.names import Position, ProducerId
from onceload_core.postgres import PostgresLedger, PostgresSnapshots, recover_state
from onceload_core.replay import Entry, replay
from onceload_core.spans import SpanSet
from tests.fault.work import Record, Work, is_damaged, message_ids_in


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run puts what it loads."""

    pipeline: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """How a run ended; a good one has nothing to say."""

    lost: int
    repeated: int
    broken: tuple[str, ...]


_COUNTED_IDS = """
SELECT producer.producer_id, count(*), range_agg(int8range({sequence}, {sequence} + 1))
  FROM {ids} AS ids JOIN onceload.producer ON producer.producer_id = ids.{producer}
  JOIN onceload.pipeline ON pipeline.pipeline_id = producer.pipeline_id AND pipeline.name = %(pipeline)s GROUP BY 1
"""
_RECEIPTS = """
SELECT producer_id, rows, range_agg(span) FROM (
    SELECT producer_id, sum(rows) OVER (PARTITION BY producer_id) AS rows, spans
      FROM onceload.ledger_span JOIN onceload.pipeline USING (pipeline_id) WHERE name = %(pipeline)s
) AS receipts CROSS JOIN LATERAL unnest(spans) AS span GROUP BY 1, 2
"""
_CONSUMED = """
SELECT producer_id, 0, consumed FROM onceload.producer JOIN onceload.pipeline USING (pipeline_id)
 WHERE pipeline.name = %(pipeline)s AND NOT isempty(consumed)
"""
_POSITIONS = """
SELECT pipeline.position, count(ledger.position), coalesce(max(ledger.position), 0)
  FROM onceload.pipeline LEFT JOIN onceload.ledger USING (pipeline_id) WHERE name = %(pipeline)s GROUP BY 1
"""


@dataclass(frozen=True, kw_only=True)
class _Ids:
    """The number of rows of one producer, and its sequence ids."""

    rows: int = 0
    ids: SpanSet = field(default_factory=SpanSet)


def violations_in_view(connection: psycopg2.extensions.connection, place: Place) -> list[str]:
    """Rows without proof and proof without rows, in one view of the database."""
    with connection, connection.cursor() as cursor:
        binds = {"pipeline": place.pipeline}

        def ids_by_producer(query: str) -> dict[int, _Ids]:
            cursor.execute(query, binds)
            return {row[0]: _Ids(rows=row[1], ids=SpanSet.parse(row[2])) for row in cursor.fetchall()}

        # The rows come first: were this not one view, whatever is committed meanwhile would be proof without rows.
        rows = ids_by_producer(_COUNTED_IDS.format(ids=place.target, producer="_producer_id", sequence="_sequence"))
        quarantined = ids_by_producer(
            _COUNTED_IDS.format(ids="onceload.quarantine", producer="producer_id", sequence="sequence_id")
        )
        receipts, consumed = ids_by_producer(_RECEIPTS), ids_by_producer(_CONSUMED)
        cursor.execute(_POSITIONS, binds)
        position, entries, last = cursor.fetchall()[0]
    found = [] if position == entries == last else [f"position {position}, but {entries} entries up to {last}"]
    nothing = _Ids()
    for producer_id in rows.keys() | quarantined.keys() | receipts.keys() | consumed.keys():
        found += _violations_of(
            producer_id,
            rows=rows.get(producer_id, nothing),
            quarantined=quarantined.get(producer_id, nothing),
            receipts=receipts.get(producer_id, nothing),
            consumed=consumed.get(producer_id, nothing).ids,
        )
    return found


def _violations_of(
    producer_id: int, *, rows: _Ids, quarantined: _Ids, receipts: _Ids, consumed: SpanSet
) -> Iterator[str]:
    there = rows.ids | quarantined.ids
    if there - consumed:
        yield f"producer {producer_id}: rows without proof: {there - consumed}"
    if consumed - there:
        yield f"producer {producer_id}: proof without rows: {consumed - there}"
    if rows.rows != receipts.rows:
        yield f"producer {producer_id}: {rows.rows} rows, but receipts for {receipts.rows}"
    if receipts.ids != consumed:
        yield f"producer {producer_id}: receipts for {receipts.ids}, but consumed {consumed}"


def judge_run(engine: Engine, place: Place, work: Work) -> Findings:
    """Look at everything that a finished run left behind."""
    found, expected = _records_in(engine, place), work.records()
    entries = list(PostgresLedger(engine).entries(place.pipeline, after=Position(0)))
    broken = [
        *_broken_by_ledger(engine, place, entries, found),
        *_broken_by_replay(engine, place, entries),
        *_broken_by_messages(engine, place, work),
    ]
    if found.keys() - expected.keys():
        broken.append(f"records that were never offered: {sorted(found.keys() - expected.keys())[:3]}")
    return Findings(
        lost=len(expected.keys() - found.keys()),
        repeated=sum(times - 1 for times in found.values()),
        broken=tuple(broken),
    )


def records_lost(engine: Engine, place: Place, work: Work) -> int:
    """How many records are nowhere yet; none may be once a worker says that it has finished."""
    return len(work.records().keys() - _records_in(engine, place).keys())


def _records_in(engine: Engine, place: Place) -> Counter[Record]:
    query = f"""
        SELECT _producer_id, _sequence, payload FROM {place.target} UNION ALL
        SELECT producer_id, sequence_id, convert_from(raw, 'UTF8') FROM onceload.quarantine
          JOIN onceload.pipeline USING (pipeline_id) WHERE name = :pipeline"""
    with engine.begin() as connection:
        rows = connection.execute(text(query), {"pipeline": place.pipeline})
        return Counter((ProducerId(row[0]), row[1], row[2]) for row in rows)


def _broken_by_ledger(engine: Engine, place: Place, entries: list[Entry], found: Counter[Record]) -> Iterator[str]:
    positions = [entry.position for entry in entries]
    live = PostgresLedger(engine).states(place.pipeline)
    if positions != list(range(1, live.position + 1)):
        yield f"positions should be 1 to {live.position}, without a gap: {positions}"
    taken: dict[ProducerId, SpanSet] = {}
    for entry in entries:
        for receipt in entry.receipts:
            before = taken.get(receipt.producer_id, SpanSet())
            if before & receipt.spans:
                yield f"position {entry.position} took {before & receipt.spans} of {receipt.producer} again"
            taken[receipt.producer_id] = before | receipt.spans
    if taken != {producer_id: state.consumed for producer_id, state in live.states.items()}:
        yield "the union of the receipts is not what is consumed"
    epochs = [entry.epoch or 0 for entry in entries]
    lives = {entry.session for entry in entries}
    if len(lives) == 1 and epochs != sorted(epochs):
        yield f"a session's earlier life committed after a later one: {epochs}"
    promised = sum(entry.counts.loaded + entry.counts.quarantined for entry in entries)
    if promised != found.total():
        yield f"the entries count {promised} records, but there are {found.total()}"


def _broken_by_replay(engine: Engine, place: Place, entries: list[Entry]) -> Iterator[str]:
    live = PostgresLedger(engine).states(place.pipeline).states
    snapshot = PostgresSnapshots(engine).get(place.pipeline)
    if replay({}, entries) != live:
        yield "the whole ledger replayed is not the live state"
    if replay(snapshot.states, entries[snapshot.position :]) != live:
        yield f"the snapshot at {snapshot.position} plus the ledger after it is not the live state"
    recovery = recover_state(engine, place.pipeline, dry_run=True)
    if recovery.differing or recovery.position != recovery.position_was:
        yield f"a recovery would change {recovery.differing or 'the position'}"


def _broken_by_messages(engine: Engine, place: Place, work: Work) -> Iterator[str]:
    query = """
        SELECT (SELECT count(*) FROM onceload.message WHERE message.pipeline_id = pipeline.pipeline_id)
          FROM onceload.pipeline WHERE name = :pipeline"""
    with engine.begin() as connection:
        messages = connection.execute(text(query), {"pipeline": place.pipeline}).scalar_one()
    carrying = 0 if work.is_plain else len(message_ids_in(_good_ids(work)))
    if messages != carrying:
        yield f"{carrying} business ids should be remembered, but {messages} are"


def _good_ids(work: Work) -> Iterator[tuple[ProducerId, int]]:
    for producer_id, sequence_id, _ in work.records():
        if not is_damaged(producer_id, sequence_id):
            yield producer_id, sequence_id
