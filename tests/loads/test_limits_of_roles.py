"""Limits that a role has for its sessions, as managed services set them, are none for a load."""

import pytest

from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.pipeline.declared import Publish
from tests.loads.conftest import line
from tests.servers import execute


@pytest.mark.parametrize("publish", [Publish.STAGED], indirect=True)
@pytest.mark.parametrize("limit", ["statement_timeout", pytest.param("transaction_timeout", marks=pytest.mark.long)])
def test_a_load_may_take_longer_than_its_role_lets_others(loads, limit):
    loads.write("a.jsonl", line(1))
    loads.load()
    slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'"
    execute(loads.admin_dsn, slow)
    execute(loads.admin_dsn, "CREATE TRIGGER slow AFTER INSERT ON target EXECUTE FUNCTION slow()")
    ((database,),) = loads.ask("SELECT current_database()")
    execute(loads.admin_dsn, f"ALTER ROLE a_onceload_loader IN DATABASE {database} SET {limit} = '500ms'")

    loads.write("b.jsonl", line(2))
    loads.load()

    assert loads.rows() == [1, 2]


@pytest.mark.every_postgres
def test_a_session_sets_its_own_limits(dsn):
    limits = ("statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout")
    engine = connect(LedgerSettings(dsn=f"{dsn}&options=" + "%20".join(f"-c%20{limit}%3D77s" for limit in limits)))
    with engine.connect() as connection:
        found = {limit: connection.exec_driver_sql(f"SHOW {limit}").scalar_one() for limit in limits}
    engine.dispose()

    assert found == {limits[0]: "0", limits[1]: "0", limits[2]: "30s"}
