"""Changes that users rely on, such as a pause, whose COMMIT gets no answer: their outcome is unknown."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from sqlalchemy import Engine, text

from onceload_core.errors import ExitCode
from onceload_core.names import Batch
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Claim
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect
from onceload_core.postgres.batches import KeptBatch, PostgresBatches, planner_of
from onceload_core.postgres.connection import ChangeOutcomeUnknown
from onceload_core.postgres.pausing import find_pause, pause, resume
from onceload_core.spans import SpanSet
from tests.fault.proxy import Fate, Proxy
from tests.integration.shell import onceload

pytestmark = pytest.mark.every_postgres

BATCH = Batch("b")


@pytest.fixture
def unsure(dsn: str) -> Iterator[tuple[Engine, Proxy]]:
    """Through a proxy before the server. Its connection is open, so that the next COMMIT is that of a change."""
    folder = parse_qs(urlsplit(dsn).query)["host"][0]
    with TemporaryDirectory(prefix="onceload-proxy-") as own, Proxy(folder=Path(own), server_folder=Path(folder)) as it:
        engine = connect(LedgerSettings(dsn=dsn.replace(quote(folder, safe=""), quote(own, safe=""))))
        engine.connect().close()
        yield engine, it
        engine.dispose()


@pytest.fixture
def claim(engine: Engine) -> Claim:
    """That of a batch which is staged."""
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    (producer_id,) = ledger.register("events", [("a", 1)]).values()
    session = ledger.open_session("events", planner_of(BATCH))
    claim = ledger.claim(session, {producer_id: SpanSet.of((0, 5))}, batch=BATCH, lease_s=3600)
    PostgresBatches(engine, "events").keep(claim, stage="stage_1")
    return claim


@dataclass(frozen=True, kw_only=True)
class Change:
    make: Callable[[Engine, Claim], object]
    #: Whether it took effect.
    is_made: Callable[[Engine], bool]
    #: The command that shows it.
    see: str


def pause_now(engine: Engine, _: Claim) -> None:
    pause(engine, "events", by="ann", why="repair")


def resume_now(engine: Engine, _: Claim) -> None:
    resume(engine, "events", by="ann")


def give_up_now(engine: Engine, claim: Claim) -> None:
    PostgresBatches(engine, "events").give_up(KeptBatch(claim=claim, stage="stage_1", has_passed=False))


def take_now(engine: Engine, _: Claim) -> None:
    PostgresSnapshots(engine).take("events")


CHANGES = {
    "pause": Change(
        make=pause_now, is_made=lambda engine: find_pause(engine, "events") is not None, see="onceload status"
    ),
    "resume": Change(
        make=resume_now, is_made=lambda engine: find_pause(engine, "events") is None, see="onceload status"
    ),
    "give up": Change(
        make=give_up_now,
        is_made=lambda engine: PostgresBatches(engine, "events").find(BATCH) is None,
        see="onceload deliveries list --pipeline events",
    ),
    "snapshot": Change(
        make=take_now,
        is_made=lambda engine: bool(PostgresSnapshots(engine).list("events")),
        see="onceload snapshot list --pipeline events",
    ),
}


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_whose_commit_gets_no_answer_is_unknown_and_may_be_repeated(engine, claim, unsure, name, fate):
    change, (through_proxy, proxy) = CHANGES[name], unsure
    if name == "resume":
        pause_now(engine, claim)
    proxy.doom_next_commit(fate)

    with pytest.raises(ChangeOutcomeUnknown) as unknown:
        change.make(through_proxy, claim)

    assert not proxy.doom_is_pending
    assert f"Run `{change.see}` to see which. If it did not take effect, run the same command again" in str(
        unknown.value
    )
    if fate is not Fate.UNDER_WAY:
        assert change.is_made(engine) is (fate is Fate.ANSWER_SWALLOWED)
    change.make(through_proxy, claim)
    assert change.is_made(engine)


def test_a_command_ends_with_3_if_the_outcome_of_its_change_is_unknown(engine, dsn, claim):
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"
                " CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON onceload.pipeline DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION hang_up()"
            )
        )

    done = onceload("pause", "events", "--why", "repair", ONCELOAD_DSN=dsn)

    assert done.returncode == ExitCode.OUTCOME_UNKNOWN
    assert "the database did not answer COMMIT while pausing a pipeline" in done.stderr
