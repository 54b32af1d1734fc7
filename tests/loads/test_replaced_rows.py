"""A file replaces what was loaded of it only where the rows that go are those that its receipts promise."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from onceload.choices import chosen
from onceload.cli import main
from onceload.pipeline_file import read_pipeline
from onceload_core.declaration import EditRefused
from onceload_core.errors import ExitCode
from onceload_core.names import Batch, Position
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_core.replay import replay
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.declared import OnRewrite, Publish, Target
from onceload_jobs.publish.replaced_rows import ReplacedRowsDiffer
from onceload_jobs.recover.retry import retry
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, line
from tests.loads.test_killed_replace import Moment, gate_at
from tests.waiting import until

pytestmark = pytest.mark.parametrize("publish", [Publish.STAGED])
NO_LINEAGE = Target(schema="public", table="target", lineage=False)
ANOTHER_TABLE = Target(schema="public", table="another")
BROKEN = "no json\n"


def settings_of(loads, *, accepted=False, publishes=True):
    return LoadSettings(
        ledger=LedgerSettings(dsn=loads.dsn),
        wait_s=0,
        publishes=publishes,
        choice=chosen(loads.declared, files=(), replaces=True),
        differences_accepted=accepted,
    )


def load_again(loads, *, batch=None, **settings):
    name = Batch(batch) if batch else new_batch()
    return load(loads.declared, settings_of(loads, **settings), batch=name, executor=InThisProcess())


def change(loads, *statements):
    with loads.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def retry_all(loads, *, fixed):
    """As a command of its own does it, on a connection of its own."""
    asked = tuple(find_records(loads.engine, Selection(pipeline="events")))
    return retry(
        loads.engine,
        loads.ledger,
        loads.declared,
        asked,
        batch=new_batch(),
        fixed={each.quarantine_id: Fix(raw=fixed.encode(), digest=each.digest) for each in asked},
    )


def is_sound(loads):
    states = loads.ledger.states("events").states
    return replay({}, loads.ledger.entries("events", after=Position(0))) == states and not (
        verify(loads.declared, loads.engine, deep=True).differing
    )


@pytest.fixture
def ten(loads):
    loads.write("a.jsonl", "".join(map(line, range(10))))
    return loads


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_rows_that_were_loaded_without_lineage_are_not_loaded_twice(ten, is_asked_for):
    loads = ten
    loads.load(target=NO_LINEAGE)
    change(loads, "ALTER TABLE target ADD _producer_id bigint, ADD _sequence bigint")
    loads.write("a.jsonl", "".join(map(line, range(12))) if is_asked_for else "".join(map(line, range(1, 12))))

    with pytest.raises(ReplacedRowsDiffer, match=r"'a\.jsonl' \(10 rows expected, 0 found\)"):
        load_again(loads) if is_asked_for else loads.load(on_rewrite=OnRewrite.REPLACE)

    assert loads.rows() == [*range(10)]
    assert loads.ledger.position("events") == 1


def test_rows_that_others_gave_another_producer_id_are_not_loaded_twice(ten):
    loads = ten
    loads.load()
    change(loads, "UPDATE target SET _producer_id = 999 WHERE id < 5")

    with pytest.raises(ReplacedRowsDiffer, match=r"'a\.jsonl' \(10 rows expected, 5 found\)"):
        load_again(loads)

    assert loads.rows() == [*range(10)]


def test_rows_that_others_copied_are_not_deleted_unasked(ten):
    loads = ten
    loads.load()
    change(loads, "INSERT INTO target SELECT * FROM target WHERE id = 3")

    with pytest.raises(ReplacedRowsDiffer, match=r"'a\.jsonl' \(10 rows expected, 11 found\)"):
        load_again(loads)

    assert loads.rows() == [0, 1, 2, 3, 3, *range(4, 10)]


def test_a_rewritten_file_does_not_leave_its_old_rows_in_the_table_that_was_declared_before(ten):
    loads = ten
    loads.load()
    change(loads, "CREATE TABLE another (LIKE target)")
    loads.write("a.jsonl", "".join(map(line, range(1, 12))))

    with pytest.raises(EditRefused, match=r"target\.table was changed"):
        loads.load(target=ANOTHER_TABLE, on_rewrite=OnRewrite.REPLACE)

    assert (loads.rows(), loads.ask("SELECT count(*) FROM another")) == ([*range(10)], [(0,)])


@pytest.mark.parametrize("accepted", [False, True])
def test_a_record_that_is_retried_while_its_file_is_replaced_is_not_there_twice(loads, accepted):
    loads.write("a.jsonl", line(1) + BROKEN + line(3))
    loads.load()
    loads.write("a.jsonl", line(1) + line(2) + line(3))

    with gate_at(Moment.OLD_ROWS_DELETED, loads.admin_dsn) as gate, ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(load_again, loads, accepted=accepted)
        until(lambda: gate.is_reached() or replacing.done())
        retried = retry_all(loads, fixed=line(2))
        gate.open()
        report = replacing.result()

    assert (retried.retried, report.loaded) == (1, 3)
    assert loads.rows() == [1, 2, 3]
    assert is_sound(loads)


def test_retried_and_rewound_records_are_counted(loads):
    loads.write("a.jsonl", line(1) + BROKEN)
    loads.load()
    loads.write("a.jsonl", line(1) + BROKEN + line(3))
    loads.load()
    rewind(loads.declared, loads.engine, to=Position(1), dry_run=False)
    retry_all(loads, fixed=line(2))
    before = loads.rows()

    report = load_again(loads)

    assert (before, report.loaded, report.quarantined) == ([1, 2], 2, 1)
    assert loads.rows() == [1, 3]
    assert is_sound(loads)


def test_a_user_who_knows_that_rows_are_lost_accepts_it(ten):
    loads = ten
    loads.load()
    change(loads, "DELETE FROM target WHERE id < 5")

    report = load_again(loads, accepted=True)

    assert (report.loaded, loads.rows()) == (10, [*range(10)])
    assert is_sound(loads)


def test_a_staged_batch_that_is_refused_stays_staged_until_the_difference_is_accepted(ten):
    loads = ten
    loads.load()
    change(loads, "DELETE FROM target WHERE id < 5")
    load_again(loads, batch="again", publishes=False)

    with pytest.raises(ReplacedRowsDiffer):
        publish_batch(loads.declared, settings_of(loads), batch=Batch("again"))
    before = loads.rows()
    report = publish_batch(loads.declared, settings_of(loads, accepted=True), batch=Batch("again"))

    assert (before, report.loaded, loads.rows()) == ([*range(5, 10)], 10, [*range(10)])
    assert is_sound(loads)


def test_one_error_names_every_file_that_differs_and_none_that_does_not(loads):
    for name, number in (("a.jsonl", 1), ("b.jsonl", 2), ("c.jsonl", 3)):
        loads.write(name, line(number))
    loads.load()
    change(loads, "DELETE FROM target WHERE id IN (1, 3)")

    with pytest.raises(ReplacedRowsDiffer) as refused:
        load_again(loads)

    assert refused.value.files == ("'a.jsonl' (1 rows expected, 0 found)", "'c.jsonl' (1 rows expected, 0 found)")
    assert "--accept-differences" in str(refused.value)


def test_the_command_line_says_what_differs_and_takes_the_flag(ten, tmp_path, capsys):
    loads = ten
    loads.load()
    change(loads, "DELETE FROM target WHERE id < 5")
    file = tmp_path / "events.yaml"
    columns = "\n".join(f"  {column.name}: {column.type}" for column in loads.declared.columns)
    file.write_text(
        f"pipeline: events\nsource: {{path: {loads.declared.source.path}, format: jsonl}}\n"
        f"columns:\n{columns}\ntarget: {{table: public.target}}\npublish: staged\n"
    )
    staging = settings_of(loads, publishes=False)
    load(read_pipeline(file), staging, batch=Batch("again"), executor=InThisProcess())
    environment = {"ONCELOAD_DSN": loads.dsn}

    refused = main(["publish", str(file), "--batch", "again"], environment)
    messages = capsys.readouterr().err
    done = main(["publish", str(file), "--batch", "again", "--accept-differences"], environment)

    assert (refused, done) == (ExitCode.NEEDS_A_PERSON, ExitCode.DONE)
    assert "'a.jsonl' (10 rows expected, 5 found)" in messages
    assert loads.rows() == [*range(10)]
