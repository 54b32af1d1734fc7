"""A million producers: registered, advanced in one commit, kept in a snapshot, and rebuilt from it and the ledger."""

from sqlalchemy import Engine, text

from bench.measured import Measured, Stopwatch, check_equal, table
from onceload_core.names import Batch, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import (
    BulkCommit,
    LedgerSettings,
    PostgresLedger,
    PostgresSnapshots,
    Recovery,
    connect,
    producers,
    recover_state,
)

PRODUCERS = 1_000_000
ENTRIES = 100_000
REGISTER, FIRST, AGAIN, SNAPSHOT = "register", "first advance", "second advance", "snapshot"
BARE = "bare update and insert"
DRY_RUN, TENTH, ALL = "dry run", "a tenth set back", "all rows gone"
BARE_ROWS = "bare insert"
PARTS = {
    REGISTER: "1 000 000 producers registered",
    FIRST: "1 000 000 producers advanced in one commit, for the first time",
    AGAIN: "1 000 000 producers advanced in one commit, again",
    BARE: "the limit of that: the same rows updated and inserted, nothing checked",
    SNAPSHOT: "snapshot of 1 000 000 producers",
    DRY_RUN: "`recover state --position N --dry-run`: snapshot + 100 000 entries against an intact table",
    TENTH: "`recover state --position N`: every tenth producer was set back",
    ALL: "`recover state --position N`: all rows of the producers were gone",
    BARE_ROWS: "the limit of that: the same rows inserted, nothing replayed, compared or checked",
}

#: What a load stages: names, and what is new of each.
_NAMED = """
CREATE UNLOGGED TABLE named AS SELECT 'device-' || to_char(number, 'FM0000000') AS name
  FROM generate_series(1, :producers) AS number
"""
_OFFERED = """
CREATE UNLOGGED TABLE offered AS SELECT producer_id, CAST(:spans AS int8multirange) AS spans, 100::bigint AS rows
  FROM onceload.producer
"""
#: Tables like the ledger's own, with its indexes, and as full.
_BARE = """
CREATE TABLE bare_producer (LIKE onceload.producer INCLUDING ALL);
CREATE TABLE bare_receipt (LIKE onceload.ledger_span INCLUDING ALL);
INSERT INTO bare_producer OVERRIDING SYSTEM VALUE SELECT * FROM onceload.producer;
INSERT INTO bare_receipt SELECT * FROM onceload.ledger_span;
"""
_BARE_ADVANCE = """
UPDATE bare_producer SET consumed = consumed + '{[200,300)}', advanced_at = clock_timestamp();
INSERT INTO bare_receipt (pipeline_id, position, producer_id, producer, generation, spans, rows, condition)
SELECT pipeline_id, 0, producer_id, name, generation, '{[200,300)}', 100, condition FROM bare_producer;
"""

#: Entries of one receipt each, spread over the producers, and the states that they lead to.
_ENTRIES = """
INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, loaded)
SELECT :pipeline_id, :position + number, 'load', 'bench', 10 FROM generate_series(1, :entries) AS number;

CREATE TEMPORARY TABLE gained ON COMMIT DROP AS
SELECT :position + number AS position, :first_id + (number * 7919) % :producers AS producer_id,
       int8multirange(int8range(1000 + 10 * number, 1010 + 10 * number)) AS spans
  FROM generate_series(1, :entries) AS number;

INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows, condition)
SELECT :pipeline_id, position, producer_id, name, generation, spans, 10, 'open'
  FROM gained JOIN onceload.producer USING (producer_id);

UPDATE onceload.producer SET consumed = consumed + together.spans
  FROM (SELECT producer_id, range_agg(span) AS spans FROM gained, unnest(spans) AS span GROUP BY 1) AS together
 WHERE producer.producer_id = together.producer_id;

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
    _execute(engine, _NAMED, producers=PRODUCERS)
    with watch.timing(REGISTER):
        register_all(engine, pipeline)
    session = ledger.open_session(pipeline, SessionName("bench"))
    for part, first in ((FIRST, 0), (AGAIN, 100)):
        _execute(engine, f"DROP TABLE IF EXISTS offered; {_OFFERED}", spans=f"{{[{first},{first + 100})}}")
        _settle(engine)
        commit = BulkCommit(
            session=session, batch=Batch("bench"), advances=(), write_rows=lambda _: 0, offered="offered"
        )
        with watch.timing(part):
            ledger.commit(commit)
        _check_consumed(engine, "onceload.producer", first + 100)
    _execute(engine, _BARE)
    _settle(engine)
    with watch.timing(BARE):
        _execute(engine, _BARE_ADVANCE)
    _check_consumed(engine, "bare_producer", 300)
    _execute(engine, "DROP TABLE bare_producer, bare_receipt")
    _settle(engine)
    with watch.timing(SNAPSHOT):
        PostgresSnapshots(engine).take(pipeline)
    kept = PostgresSnapshots(engine).list(pipeline)[0].producers
    check_equal("producers in the snapshot", found=kept, expected=PRODUCERS)


def _check_consumed(engine: Engine, producers: str, end: int) -> None:
    with engine.connect() as connection:
        consumed = connection.execute(
            text(f"SELECT count(*) FROM {producers} WHERE consumed = int8multirange(int8range(0, :end))"), {"end": end}
        )
        check_equal("producers advanced", found=consumed.scalar_one(), expected=PRODUCERS)


def _rebuild(engine: Engine, pipeline: str, watch: Stopwatch) -> None:
    _add_entries(engine, pipeline)
    start = PostgresSnapshots(engine).list(pipeline)[0].position
    damages = {
        DRY_RUN: "SELECT 1",
        TENTH: "UPDATE onceload.producer SET consumed = '{}' WHERE producer_id % 10 = 0",
        ALL: "DELETE FROM onceload.producer",
    }
    for part, damage in damages.items():
        _execute(engine, damage)
        _settle(engine)
        with watch.timing(part):
            recovery = recover_state(engine, pipeline, snapshot_position=start, dry_run=part == DRY_RUN)
        _check_recovered(engine, recovery)
    _execute(engine, "CREATE TABLE bare_producer (LIKE onceload.producer INCLUDING ALL)")
    _settle(engine)
    with watch.timing(BARE_ROWS):
        _execute(engine, "INSERT INTO bare_producer OVERRIDING SYSTEM VALUE SELECT * FROM proven")
    _execute(engine, "DROP TABLE bare_producer")


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


def register_all(engine: Engine, pipeline: str) -> None:
    """Register the producers of the table `named`."""
    with engine.begin() as connection:
        producers.register_all(connection, pipeline, "named", generation=1)


def _execute(engine: Engine, statements: str, **binds: object) -> None:
    with engine.begin() as connection:
        connection.execute(text(statements), binds)


def _settle(engine: Engine) -> None:
    """Bring the tables to rest, so that the clean-up of one part is not measured in the next."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE)"))
        connection.execute(text("CHECKPOINT"))


def _empty(engine: Engine) -> None:
    with engine.begin() as connection:
        # The ledger refuses to forget; here nothing in it is true.
        connection.execute(text("SET LOCAL session_replication_role = 'replica'"))
        connection.execute(text("DROP TABLE IF EXISTS proven, named, offered"))
        connection.execute(
            text(
                "TRUNCATE onceload.producer, onceload.ledger, onceload.ledger_span, onceload.snapshot,"
                " onceload.snapshot_producer, onceload.session, onceload.pipeline CASCADE"
            )
        )
