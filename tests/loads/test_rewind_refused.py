"""Rewinds that deleting rows cannot do right: they are refused, or asked for explicitly."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from onceload_core.errors import (
    SettingRefused,
    StateDiffers,
)
from onceload_core.postgres import PostgresSnapshots, recover_state
from onceload_jobs.pipeline.declared import MessageId, OnRewrite, Publish, Write
from tests.loads.conftest import line
from tests.loads.rewinding import back, everything, proven
from tests.servers import execute

pytestmark = pytest.mark.usually_staged


def test_lost_and_duplicated_rows_are_named_and_accepted_only_if_asked_for(grown):
    before = grown.rows()
    with grown.engine.begin() as connection:
        connection.execute(text("DELETE FROM target WHERE id = 3"))
        connection.execute(text("INSERT INTO target SELECT * FROM target WHERE id = 4"))

    looked = back(grown, 1, dry_run=True)
    with pytest.raises(StateDiffers, match=r"a.jsonl \(1 rows instead of 2\), b.jsonl \(2 rows instead of 1\)"):
        back(grown, 1)
    assert grown.ledger.position("events") == 4
    done = back(grown, 1, differences_accepted=True)
    grown.load()

    assert len(looked.differing) == len(done.differing) == 2
    assert grown.rows() == [each for each in before if each != 2]


def test_a_row_that_does_not_go_stops_it(grown):
    with grown.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            "CREATE TRIGGER keep BEFORE DELETE ON target FOR EACH ROW EXECUTE FUNCTION keep()"
        )

    with pytest.raises(StateDiffers, match="0 rows deleted of 4"):
        back(grown, 0)

    assert grown.ledger.position("events") == 4


@pytest.mark.parametrize("is_in_a_snapshot", [False, True])
def test_state_that_is_damaged_is_recovered_first(grown, is_in_a_snapshot):
    PostgresSnapshots(grown.engine).take("events")
    execute(grown.admin_dsn, "UPDATE onceload.producer SET consumed = '{[0,3)}' WHERE name = 'b.jsonl'")
    if is_in_a_snapshot:
        execute(
            grown.admin_dsn,
            "UPDATE onceload.snapshot SET position = 3;"
            " UPDATE onceload.snapshot_producer SET position = 3, consumed = live.consumed"
            " FROM onceload.producer AS live WHERE live.producer_id = snapshot_producer.producer_id",
        )

    with pytest.raises(StateDiffers, match=r"differs from the ledger for b.jsonl\. .*recover state"):
        back(grown, 3)

    assert grown.ledger.position("events") == 4


def test_state_that_cannot_be_set_back_is_recovered_first(grown):
    with grown.engine.begin() as connection:
        connection.execute(text("DELETE FROM onceload.producer WHERE name = 'a.jsonl'"))

    with pytest.raises(StateDiffers, match=r"differs from the ledger for a.jsonl\. .*recover state"):
        back(grown, 1)

    assert grown.rows() == [1, 2, 3, 4]
    recover_state(grown.engine, "events", dry_run=False)
    assert back(grown, 1).applied


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"write": Write.MERGE, "key": ("id",)}, "append.* recover rebuild"),
        ({"lineage": False}, "lineage: true.* recover rebuild"),
    ],
)
def test_rows_that_do_not_name_their_record_are_not_rewound(grown, change, sentence):
    grown.declared = replace(grown.declared, target=replace(grown.declared.target, **change))

    with pytest.raises(SettingRefused, match=sentence):
        back(grown, 0)


def test_a_target_that_got_no_lineage_from_its_transform_is_refused(grown):
    with grown.engine.begin() as connection:
        connection.execute(text("ALTER TABLE target DROP COLUMN _sequence"))

    with pytest.raises(SettingRefused, match="a transform may have left them out"):
        back(grown, 0)


def test_rows_from_before_there_was_a_lineage_are_refused(grown):
    execute(grown.admin_dsn, "UPDATE target SET _producer_id = NULL")
    execute(grown.admin_dsn, "ALTER TABLE onceload.ledger DISABLE TRIGGER ledger_is_append_only")
    execute(grown.admin_dsn, "UPDATE onceload.ledger SET loaded = loaded + 1 WHERE position = 2")

    with pytest.raises(SettingRefused, match="_producer_id and _sequence in all rows"):
        back(grown, 0, differences_accepted=True)


def test_nothing_goes_back_past_a_forgetting(grown):
    grown.ledger.declare(replace(grown.declared.pipeline, forget_idle_after_s=60))
    with grown.engine.begin() as connection:
        connection.execute(
            text("UPDATE onceload.producer SET advanced_at = '2000-01-01', fingerprint = NULL WHERE name = 'b.jsonl'")
        )
    grown.ledger.forget_idle("events")

    with pytest.raises(SettingRefused, match=r"position 5 forgot b.jsonl"):
        back(grown, 4)

    assert not back(grown, 5).entries


def test_nothing_goes_back_past_a_replaced_generation(loads):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("pieces that commit themselves cannot replace anything at once")
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.REPLACE)
    path = loads.write("a.jsonl", line(1))
    loads.load()
    path.write_text(line(2))
    loads.load()
    loads.write("b.jsonl", line(3))
    loads.load()

    with pytest.raises(SettingRefused, match=r"position 2 replaced the rows of a.jsonl"):
        back(loads, 1)

    assert back(loads, 2).applied
    assert loads.rows() == [2]
    assert proven(loads)


def test_rows_that_were_loaded_twice_as_allowed_are_not_taken_apart(loads):
    """A row of theirs does not tell with which of the two entries it came."""
    loads.write("a.jsonl", line(1))
    loads.load()
    with loads.engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{}'"))
    loads.load()

    for position in (1, 0):
        with pytest.raises(SettingRefused, match=r"a.jsonl, loaded more than once"):
            back(loads, position)
    assert loads.rows() == [1, 1]


@pytest.fixture
def with_ids(loads):
    """Two commits: the second one found a duplicate by its business id."""
    keep = replace(loads.declared.pipeline, message_keep_days=2)
    loads.declared = replace(
        loads.declared, pipeline=keep, publish=Publish.STAGED, message_id=MessageId(columns=("id",), keep_days=2)
    )
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.jsonl", line(1) + line(2))
    loads.load()
    assert loads.rows() == [1, 2]
    return loads


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_rewind_of_duplicates_whose_business_ids_are_forgotten_is_asked_for_explicitly(with_ids, is_dropped):
    """The id is remembered no longer, so the duplicate would be loaded. Upkeep may have deleted its day or not yet."""
    if is_dropped:
        execute(with_ids.admin_dsn, "DELETE FROM onceload.message")
    else:
        today = datetime.now(UTC).date()
        execute(
            with_ids.admin_dsn,
            "CREATE TABLE onceload.message_19990101 PARTITION OF onceload.message"
            f" FOR VALUES FROM ('{today - timedelta(9)}') TO ('{today - timedelta(2)}');"
            "UPDATE onceload.message SET day = day - 3",
        )
    before = everything(with_ids)

    looked = back(with_ids, 1, dry_run=True)
    with pytest.raises(StateDiffers, match="up to 1 records that were skipped as duplicates would be loaded"):
        back(with_ids, 1)

    assert "those of 1 commits up to position 1 are no longer remembered" in looked.differing[0]
    assert everything(with_ids) == before
    assert back(with_ids, 1, differences_accepted=True).applied


def test_a_rewind_that_brings_back_no_duplicate_is_not_asked_for(with_ids):
    """All is loaded again, or the rewound commits found no duplicate."""
    with_ids.write("c.jsonl", line(3))
    with_ids.load()
    execute(with_ids.admin_dsn, "DELETE FROM onceload.message")

    assert back(with_ids, 2).differing == ()
    assert back(with_ids, 0).differing == ()
