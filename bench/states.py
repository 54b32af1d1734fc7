"""A million producers: registered, advanced in one commit, kept in a snapshot, and rebuilt from it and the ledger."""

from sqlalchemy import Connection, Engine, text

from bench.measured import Measured, Stopwatch, check_equal, table
from dedup_core.names import Batch, ProducerId, SessionName
from dedup_core.pipeline import Pipeline
from dedup_core.ports import Advance, Commit, Session
from dedup_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, Recovery, connect, recover_state
from dedup_core.spans import SpanSet

PRODUCERS = 1_000_000
ENTRIES = 100_000
REGISTER, FIRST, AGAIN, SNAPSHOT = "register", "first advance", "second advance", "snapshot"
DRY_RUN, TENTH, ALL = "dry run", "a tenth set back", "all rows gone"
PARTS = {
    REGISTER: "1 000 000 producers registered",
    FIRST: "1 000 000 producers advanced in one commit, for the first time",
    AGAIN: "1 000 000 producers advanced in one commit, again",
    SNAPSHOT: "snapshot of 1 000 000 producers",
    DRY_RUN: "`recover state --dry-run`: snapshot + 100 000 entries against an intact table",
    TENTH: "`recover state`: every tenth producer was set back",
    ALL: "`recover state`: all rows of the producers were gone",
}

#: Entries of one receipt each, spread over the producers, and the states that they lead to.
_ENTRIES = """
INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, loaded)
SELECT :pipeline_id, :position + number, 'load', 'bench', 10 FROM generate_series(1, :entries) AS number;

CREATE TEMPORARY TABLE offered ON COMMIT DROP AS
SELECT :position + number AS position, :first_id + (number * 7919) % :producers AS producer_id,
       int8multirange(int8range(1000 + 10 * number, 1010 + 10 * number)) AS spans
  FROM generate_series(1, :entries) AS number;

INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows, condition)
SELECT :pipeline_id, position, producer_id, name, generation, spans, 10, 'open'
  FROM offered JOIN onceload.producer USING (producer_id);

UPDATE onceload.producer SET consumed = consumed + gained.spans
  FROM (SELECT producer_id, range_agg(span) AS spans FROM offered, unnest(spans) AS span GROUP BY 1) AS gained
 WHERE producer.producer_id = gained.producer_id;

UPDATE onceload.pipeline SET position = :position + :entries WHERE pipeline_id = :pipeline_id;

CREATE TABLE proven AS SELECT * FROM onceload.producer WHERE pipeline_id = :pipeline_id;
"""
_DIFFERING = """
SELECT count(*) FROM proven FULL JOIN onceload.producer USING (producer_id)
 WHERE (proven.name, proven.generation, proven.consumed, proven.condition)
       IS DISTINCT FROM (producer.name, producer.generation, producer.consumed, producer.condition)
"""


def measure(dsn: str, *, repetitions: int) -> dict[str, Measured]:
    """Seconds of each part; every repetition starts with empty tables."""
    engine = connect(LedgerSettings(dsn=dsn, idle_timeout_s=300))
    watch = Stopwatch()
    for number in range(repetitions):
        _empty(engine)
        pipeline = f"bench {number}"
        _grow(engine, pipeline, watch)
        _rebuild(engine, pipeline, watch)
        print(", ".join(f"{part} {seconds[-1]:.1f} s" for part, seconds in watch.seconds.items()), flush=True)
    engine.dispose()
    return watch.measured()


def report(seconds: dict[str, Measured]) -> str:
    return table(["what", "seconds"], [[PARTS[part], str(measured)] for part, measured in seconds.items()])


def _grow(engine: Engine, pipeline: str, watch: Stopwatch) -> None:
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name=pipeline))
    with watch.timing(REGISTER):
        ids = ledger.register(pipeline, [(f"device-{number:07}", 1) for number in range(PRODUCERS)])
    check_equal("producers registered", found=len(set(ids.values())), expected=PRODUCERS)
    session = ledger.open_session(pipeline, SessionName("bench"))
    for part, first in ((FIRST, 0), (AGAIN, 100)):
        commit = _advancing(session, list(ids.values()), SpanSet.of((first, first + 100)))
        with watch.timing(part):
            ledger.commit(commit)
        _check_consumed(engine, first + 100)
    _settle(engine)
    with watch.timing(SNAPSHOT):
        PostgresSnapshots(engine).take(pipeline)
    kept = PostgresSnapshots(engine).list(pipeline)[0].producers
    check_equal("producers in the snapshot", found=kept, expected=PRODUCERS)


def _advancing(session: Session, producer_ids: list[ProducerId], spans: SpanSet) -> Commit[Connection]:
    advances = tuple(Advance(producer_id=producer_id, spans=spans, rows=100) for producer_id in producer_ids)
    return Commit(session=session, batch=Batch("bench"), advances=advances, write_rows=lambda _: None)


def _check_consumed(engine: Engine, end: int) -> None:
    with engine.connect() as connection:
        consumed = connection.execute(
            text("SELECT count(*) FROM onceload.producer WHERE consumed = int8multirange(int8range(0, :end))"),
            {"end": end},
        )
        check_equal("producers advanced", found=consumed.scalar_one(), expected=PRODUCERS)


def _rebuild(engine: Engine, pipeline: str, watch: Stopwatch) -> None:
    _add_entries(engine, pipeline)
    damages = {
        DRY_RUN: "SELECT 1",
        TENTH: "UPDATE onceload.producer SET consumed = '{}' WHERE producer_id % 10 = 0",
        ALL: "DELETE FROM onceload.producer",
    }
    for part, damage in damages.items():
        with engine.begin() as connection:
            connection.execute(text(damage))
        _settle(engine)
        with watch.timing(part):
            recovery = recover_state(engine, pipeline, dry_run=part == DRY_RUN)
        _check_recovered(engine, recovery)


def _add_entries(engine: Engine, pipeline: str) -> None:
    """What so many commits would leave, written in bulk."""
    with engine.begin() as connection:
        found = connection.execute(
            text("SELECT pipeline_id, position FROM onceload.pipeline WHERE name = :name"), {"name": pipeline}
        ).one()
        first_id = connection.execute(text("SELECT min(producer_id) FROM onceload.producer")).scalar_one()
        binds = {"pipeline_id": found.pipeline_id, "position": found.position, "first_id": first_id}
        connection.execute(text(_ENTRIES), {**binds, "entries": ENTRIES, "producers": PRODUCERS})


def _check_recovered(engine: Engine, recovery: Recovery) -> None:
    check_equal("entries replayed", found=recovery.entries_replayed, expected=ENTRIES)
    with engine.connect() as connection:
        differing = connection.execute(text(_DIFFERING)).scalar_one()
    check_equal("producers that differ after the recovery", found=differing, expected=0)


def _settle(engine: Engine) -> None:
    """Bring the tables to rest, so that the clean-up of one part is not measured in the next."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE)"))
        connection.execute(text("CHECKPOINT"))


def _empty(engine: Engine) -> None:
    with engine.begin() as connection:
        # The ledger refuses to forget; here nothing in it is true.
        connection.execute(text("SET LOCAL session_replication_role = 'replica'"))
        connection.execute(text("DROP TABLE IF EXISTS proven"))
        connection.execute(
            text(
                "TRUNCATE onceload.producer, onceload.ledger, onceload.ledger_span, onceload.snapshot,"
                " onceload.snapshot_producer, onceload.session, onceload.pipeline CASCADE"
            )
        )
