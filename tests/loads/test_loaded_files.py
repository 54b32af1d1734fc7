"""A file belongs to one pipeline per table, however its path is spelt and whatever happens at the same moment."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from onceload_core.declaration import DeclarationChanged, EditRefused, LoadedByAnother, LoadedUnderOtherName
from onceload_core.errors import AlreadyConsumed
from onceload_core.names import Batch, Position
from onceload_core.postgres import LedgerSettings, PostgresLedger, loaded_files
from onceload_core.postgres.recovery import recover_state
from onceload_jobs.files.addresses import address_of
from onceload_jobs.load import offering
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import NothingKept, publish_batch
from onceload_jobs.pipeline.declared import Declared, Identity, OnRewrite, Publish
from onceload_jobs.plan.choice import Choice
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.test_versions import below, edited, lines, load_now, load_while, renamed
from tests.servers import execute
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usually_staged


def files_of(loads: Loads, pipeline: str = "events") -> list[str]:
    """The files of a pipeline, each once, wherever it was loaded from."""
    found = loads.ask(
        "SELECT DISTINCT loaded_file.name FROM onceload.loaded_file JOIN onceload.pipeline USING (pipeline_id)"
        f" WHERE pipeline.name = '{pipeline}' ORDER BY 1"
    )
    return [name for (name,) in found]


def moved(loads: Loads, folder: str, *, moved_from: str = "2025", **of_file: object) -> Declared:
    source = {"path": f"{loads.folder}/{folder}/*.jsonl", "moved_from": f"{loads.folder}/{moved_from}"}
    return edited(loads, source=source, **of_file)


# Two pipelines.


def test_a_pipeline_that_is_renamed_while_its_first_load_runs_loads_nothing_a_second_time(loads):
    loads.write("a.jsonl", lines(1, 2))

    with pytest.raises(LoadedByAnother, match="pipeline events2 has loaded"):
        load_while(loads, loads.declared, lambda: load_now(loads, renamed(loads.declared)))

    assert loads.rows() == [1, 2]
    assert (files_of(loads), files_of(loads, "events2")) == ([], ["a.jsonl"])
    assert verify(renamed(loads.declared), loads.engine, deep=True).differing == 0


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_verify_says_which_pipeline_has_loaded_the_files_that_it_calls_not_loaded(loads):
    loads.write("a.jsonl", lines(1))
    loads.write("b.jsonl", lines(2))
    load_now(loads, below(loads, "a*.jsonl"))
    load_now(loads, renamed(below(loads, "b*.jsonl")))

    found = verify(below(loads, "*.jsonl"), loads.engine)

    assert found.differing == 0
    (note,) = (each for each in found.not_compared if "events2" in each.reason)
    assert f"pipeline events2 has loaded {loads.folder}/b.jsonl into public.target" in note.reason


def test_a_path_that_is_widened_over_the_files_of_another_pipeline_loads_none_of_them(loads):
    loads.write("a.jsonl", lines(1, 2))
    loads.write("b.jsonl", lines(3))
    load_now(loads, below(loads, "a*.jsonl"))
    load_now(loads, renamed(below(loads, "b*.jsonl")))
    loads.write("c.jsonl", lines(4))

    wider = renamed(below(loads, "*.jsonl"))
    for refused in (load_now, Loads.look):
        with pytest.raises(LoadedByAnother, match=r"pipeline events has loaded \S*/a\.jsonl into"):
            refused(loads, wider)
    load_now(loads, renamed(below(loads, "[bc]*.jsonl")))

    assert loads.rows() == [1, 2, 3, 4]


def test_a_commit_waits_for_another_pipeline_that_commits_the_same_file_at_the_same_moment(loads, monkeypatch):
    """No plan can see this: neither has committed when the other plans."""
    loads.write("a.jsonl", lines(1, 2))
    outcomes: list[object] = []

    def load_second() -> None:
        try:
            outcomes.append(load_now(loads, renamed(loads.declared)).loaded)
        except LoadedByAnother as error:
            outcomes.append(error.other)

    second, own = threading.Thread(target=load_second), loaded_files.own
    is_waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def own_and_wait(connection, taken, pipeline, files):
        own(connection, taken, pipeline, files)
        if pipeline == "events" and second.ident is None:
            second.start()
            until(lambda: execute(loads.admin_dsn, is_waiting) == [(True,)])

    monkeypatch.setattr(loaded_files, "own", own_and_wait)
    load_now(loads, loads.declared)
    second.join(timeout=PATIENCE_S)

    assert outcomes == ["events"]
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_file_that_an_earlier_release_has_loaded_belongs_to_its_pipeline(loads):
    """It records no address, also after the pipeline has loaded with this release."""
    loads.write("a.jsonl", lines(1))
    load_now(loads, loads.declared)
    loads.write("b.jsonl", lines(2))
    load_now(loads, loads.declared)
    execute(loads.admin_dsn, "DELETE FROM onceload.loaded_file WHERE name = 'b.jsonl'")

    with pytest.raises(LoadedByAnother, match=r"pipeline events has loaded \S*/b\.jsonl into"):
        load_now(loads, renamed(below(loads, "b*.jsonl")))

    assert loads.rows() == [1, 2]


def test_a_folder_that_was_refused_to_one_pipeline_is_free_for_the_moved_one(loads):
    """The first pipeline was refused below the folder of the second one, so it owns nothing there."""
    x, y, w = (loads.folder / name for name in "xyw")
    for number, folder in enumerate((x, y)):
        folder.mkdir()
        (folder / "f.jsonl").write_text(lines(number))
    first = edited(loads, source={"path": f"{x}/*.jsonl"})
    second = renamed(edited(loads, source={"path": f"{y}/*.jsonl"}))
    load_now(loads, first)
    load_now(loads, second)
    y.rename(w)
    x.rename(y)

    with pytest.raises(LoadedByAnother):
        load_now(loads, edited(loads, source={"path": f"{y}/*.jsonl", "moved_from": str(x)}))
    load_now(loads, renamed(edited(loads, source={"path": f"{w}/*.jsonl", "moved_from": str(y)})))

    assert loads.rows() == [0, 1]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_commit_that_was_refused_for_files_that_are_free_now_is_refused(loads, monkeypatch):
    """A rewind of the other pipeline may free them between the refusal and the look for the reason."""
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    monkeypatch.setattr(loaded_files, "_refuse", lambda *_, **__: None)

    with pytest.raises(AlreadyConsumed, match=r"a\.jsonl"):
        load_now(loads, renamed(loads.declared))

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("spelling", ["./landing", "landing/../landing", "link", "file://HERE/landing", "HERE/landing"])
def test_a_file_is_the_same_however_its_path_is_spelt(loads, spelling, monkeypatch):
    here = loads.folder.parent
    monkeypatch.chdir(here)
    (here / "link").symlink_to(loads.folder)
    loads.write("a.jsonl", lines(1))
    load_now(loads, edited(loads, source={"path": "landing/*.jsonl"}))

    path = f"{spelling.replace('HERE', str(here))}/a*.jsonl"
    with pytest.raises(LoadedByAnother):
        load_now(loads, renamed(edited(loads, source={"path": path})))

    assert loads.rows() == [1]


@pytest.mark.parametrize(
    ("folder", "address"),
    [
        ("s3://ann:secret@bucket/in", "s3://bucket/in/"),
        ("s3a://bucket//in/./x", "s3://bucket/in/x/"),
        ("s3://bucket", "s3://bucket/"),
        ("abfss://container@account.dfs.core.windows.net/in", "abfs://container@account.dfs.core.windows.net/in/"),
        ("/", "/"),
        ("~", f"{Path.home().resolve()}/"),
        ("", f"{Path.cwd().resolve()}/"),
    ],
)
def test_an_address_has_one_form_and_no_password(folder, address):
    assert address_of(folder) == address


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_copy_belongs_to_the_pipeline_that_found_it(loads):
    by_content = edited(loads, source={"identity": Identity.CONTENT})
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, by_content)
    loads.write("b.jsonl", lines(1, 2))
    load_now(loads, by_content)

    with pytest.raises(LoadedByAnother, match=r"b\.jsonl"):
        load_now(loads, renamed(below(loads, "b*.jsonl")))

    assert files_of(loads) == ["a.jsonl", "b.jsonl"]


def test_a_log_that_was_rotated_belongs_to_its_pipeline_under_both_names(logs):
    logs.write("app.log", lines(1, 2))
    load_now(logs, logs.declared)
    (logs.folder / "app.log").rename(logs.folder / "app.log.1")
    logs.write("app.log", lines(3))
    load_now(logs, logs.declared)

    assert files_of(logs) == ["app.log", "app.log.1"]
    with pytest.raises(LoadedByAnother, match=r"app\.log and another file"):
        load_now(logs, renamed(edited(logs, source={"identity": Identity.PATH})))


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_pipeline_that_is_renamed_while_its_folder_is_moved_is_refused_by_the_content_of_its_files(loads):
    by_content = {"identity": Identity.CONTENT}
    loads.write("2025/01.jsonl", lines(1, 2))
    load_now(loads, edited(loads, source={"path": f"{loads.folder}/2025/*.jsonl", **by_content}))
    (loads.folder / "2025").rename(loads.folder / "2026")
    loads.write("2026/01.jsonl", lines(1, 2, 3))
    after = renamed(edited(loads, source={"path": f"{loads.folder}/2026/*.jsonl", **by_content}))

    for refused in (load_now, Loads.look):
        with pytest.raises(LoadedByAnother, match=r"2026/01\.jsonl \(as \S*/2025/01\.jsonl, which is gone; "):
            refused(loads, after)

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_two_pipelines_load_equal_files_of_two_folders_into_one_table(loads):
    for folder, of in (("one", lambda each: each), ("two", renamed)):
        loads.write(f"{folder}/a.jsonl", lines(1))
        source = {"path": f"{loads.folder}/{folder}/*.jsonl", "identity": Identity.CONTENT}
        load_now(loads, of(edited(loads, source=source)))

    assert loads.rows() == [1, 1]


# What gives files free, and what does not.


def test_files_are_free_again_once_what_was_loaded_of_them_is_rewound(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    loads.write("b.jsonl", lines(3))
    load_now(loads, loads.declared)

    rewind(loads.declared, loads.engine, to=Position(1), dry_run=False)

    assert files_of(loads) == ["a.jsonl"]
    load_now(loads, renamed(below(loads, "b*.jsonl")))
    with pytest.raises(LoadedByAnother, match=r"pipeline events2 has loaded \S*/b\.jsonl"):
        load_now(loads, loads.declared)
    assert loads.rows() == [1, 2, 3]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_recovery_of_state_records_the_files_that_are_loaded(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    execute(loads.admin_dsn, "DELETE FROM onceload.loaded_file")
    execute(loads.admin_dsn, "DELETE FROM onceload.producer")

    recover_state(loads.engine, "events", dry_run=False)

    assert files_of(loads) == ["a.jsonl"]
    with pytest.raises(LoadedByAnother):
        load_now(loads, renamed(loads.declared))


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_files_follow_their_table_to_its_new_name(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    execute(loads.admin_dsn, "ALTER TABLE target RENAME TO moved")
    following = edited(loads, target=replace(loads.declared.target, table="moved"))
    load_now(loads, following)

    with pytest.raises(LoadedByAnother, match=r"into public\.moved"):
        load_now(loads, renamed(following))

    # The old name is free for another table.
    assert load_now(loads, renamed(loads.declared)).loaded == 2


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("ALTER TABLE own.target RENAME TO other", {"table": "other"}),
        ("ALTER SCHEMA own RENAME TO other", {"schema": "other"}),
    ],
)
def test_a_pipeline_that_is_renamed_together_with_its_table_loads_nothing_a_second_time(loads, statement, names):
    """No load under the old name has seen the new one of the table."""
    execute(loads.admin_dsn, "CREATE SCHEMA own AUTHORIZATION onceload_loader")
    before = edited(loads, target=replace(loads.declared.target, schema="own"))
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, before)
    execute(loads.admin_dsn, statement)
    after = replace(before, target=replace(before.target, **names))

    for refused in (Loads.look, load_now):
        with pytest.raises(LoadedByAnother, match=r"into (own\.other|other\.target)\."):
            refused(loads, renamed(after))

    # Its own pipeline goes on.
    assert load_now(loads, after).loaded == 0


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_pipeline_follows_its_table_also_if_another_one_has_made_a_new_table_of_the_old_name(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    execute(loads.admin_dsn, "ALTER TABLE target RENAME TO moved")
    loads.write("b.jsonl", lines(3))
    load_now(loads, renamed(below(loads, "b*.jsonl")))

    following = edited(
        loads, source={"path": f"{loads.folder}/a*.jsonl"}, target=replace(loads.declared.target, table="moved")
    )
    assert load_now(loads, following).loaded == 0

    assert files_of(loads) == ["a.jsonl"]
    assert (loads.ask("SELECT id FROM moved ORDER BY 1"), loads.rows()) == ([(1,), (2,)], [3])


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_files_of_a_restored_database_are_those_of_the_tables_with_their_names(loads):
    """A dump has the oids as numbers, and they may be those of other tables now."""
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    execute(
        loads.dsn,
        "CREATE TABLE other (LIKE target); CREATE TABLE copy AS TABLE target; DROP TABLE target;"
        " ALTER TABLE copy RENAME TO target;"
        " UPDATE onceload.loaded_table SET read_in = 0, relation = CAST(CAST('other' AS regclass) AS oid)",
    )

    with pytest.raises(LoadedByAnother, match=r"into public\.target"):
        load_now(loads, renamed(loads.declared))

    other = renamed(edited(loads, target=replace(loads.declared.target, table="other")))
    assert load_now(loads, other).loaded == 2
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_files_count_as_loaded_into_a_copy_of_their_table_that_has_taken_its_name(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    copied = "CREATE TABLE copy AS TABLE target; ALTER TABLE target RENAME TO old; ALTER TABLE copy RENAME TO target"
    execute(loads.dsn, copied)
    old = edited(loads, target=replace(loads.declared.target, table="old"))

    assert load_now(loads, loads.declared).loaded == 0

    for declared in (loads.declared, old):
        with pytest.raises(LoadedByAnother):
            load_now(loads, renamed(declared))


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_partition_and_its_table_are_one(loads):
    part = edited(loads, target=replace(loads.declared.target, table="low"))
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, part)
    attach = "ALTER TABLE target ATTACH PARTITION low FOR VALUES FROM (0) TO (100)"
    execute(loads.dsn, f"CREATE TABLE target (LIKE low) PARTITION BY RANGE (id); {attach}")

    with pytest.raises(LoadedByAnother, match=r"into public\.target\."):
        load_now(loads, renamed(loads.declared))
    loads.write("b.jsonl", lines(3))
    load_now(loads, renamed(below(loads, "b*.jsonl")))
    with pytest.raises(LoadedByAnother, match=r"b\.jsonl into public\.target \(of which public\.low is a partition\)"):
        load_now(loads, part)

    assert loads.rows() == [1, 2, 3]


def test_files_of_a_table_that_was_dropped_are_loaded_by_another_pipeline(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    execute(loads.admin_dsn, "DROP TABLE target")

    assert loads.look(renamed(loads.declared)).files == 1
    load_now(loads, renamed(loads.declared))

    assert loads.rows() == [1, 2]
    assert (files_of(loads), files_of(loads, "events2")) == ([], ["a.jsonl"])


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_new_generation_and_a_replaced_one_stay_with_their_pipeline(loads):
    file = loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    for rewrite, number in ((OnRewrite.NEW_GENERATION, 3), (OnRewrite.REPLACE, 4)):
        file.write_text(lines(number))
        load_now(loads, edited(loads, on_rewrite=rewrite))

    assert files_of(loads) == ["a.jsonl"]
    assert loads.rows() == [1, 2, 4]


# A folder that was moved.


@pytest.mark.parametrize("on_rewrite", OnRewrite)
def test_a_file_below_a_moved_folder_that_only_has_the_name_of_a_loaded_one_is_not_loaded(loads, on_rewrite):
    loads.write("2025/01.jsonl", lines(1, 2, 3))
    before = below(loads, "2025/*.jsonl", on_rewrite=on_rewrite)
    load_now(loads, before)
    loads.write("2026/01.jsonl", lines(11))
    loads.write("2026/02.jsonl", lines(12))
    with pytest.raises(EditRefused, match=r"moved_from: \S+/2025`: each file is then compared"):
        load_now(loads, below(loads, "2026/*.jsonl", on_rewrite=on_rewrite))

    after = moved(loads, "2026", on_rewrite=on_rewrite)
    reports = [load_now(loads, after) for _ in range(2)]
    # Not even once the key is removed from the file again.
    reports.append(load_now(loads, below(loads, "2026/*.jsonl", on_rewrite=on_rewrite)))

    assert [report.loaded for report in reports] == [1, 0, 0]
    notes = [[(note.name, note.needs_a_person) for note in report.notes] for report in reports]
    assert notes == [[("01.jsonl", True)]] * 3
    assert "has the name of a file that was loaded from another folder" in reports[0].notes[0].reason
    assert loads.rows() == [1, 2, 3, 12]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize(("before", "after"), [("day", "."), (".", "day")])
def test_a_path_that_is_widened_or_narrowed_is_not_moved(loads, before, after):
    loads.write("day/01.jsonl", lines(1, 2))
    paths = {".": "*/*.jsonl", "day": "day/*.jsonl"}
    load_now(loads, below(loads, paths[before]))
    loads.write("day/02.jsonl", lines(3))
    moved_from = str(loads.folder / before)
    edit = edited(loads, source={"path": f"{loads.folder}/{paths[after]}", "moved_from": moved_from})

    for declared in (edit, below(loads, paths[after])):
        with pytest.raises(EditRefused, match="One of the two folders is in the other") as refused:
            load_now(loads, declared)
        assert "set `source.moved_from" not in str(refused.value)

    # As the message says.
    report = load_now(loads, replace(edit, source=replace(edit.source, identity=Identity.CONTENT)))
    assert (report.loaded, loads.rows()) == (1, [1, 2, 3])


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_file_at_its_place_is_not_loaded_under_another_name(loads):
    """Only the addresses show that one of the folders is in the other."""
    loads.write("day/01.jsonl", lines(1, 2))
    (loads.folder.parent / "link").symlink_to(loads.folder)
    load_now(loads, below(loads, "day/*.jsonl"))
    source = {"path": f"{loads.folder.parent}/link/*/*.jsonl", "moved_from": f"{loads.folder}/day"}
    widened = edited(loads, source=source)

    for refused in (load_now, Loads.look):
        with pytest.raises(
            LoadedUnderOtherName, match=r"/day/01\.jsonl is loaded already, as 01\.jsonl\. .* would be day/01\.jsonl"
        ):
            refused(loads, widened)
    loads.write("day/01.jsonl", lines(1, 2, 3))
    report = load_now(loads, replace(widened, source=replace(widened.source, identity=Identity.CONTENT)))

    assert (report.loaded, loads.rows()) == (1, [1, 2, 3])


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_commit_is_refused_for_a_file_that_its_pipeline_has_loaded_under_another_name(loads, monkeypatch):
    loads.write("day/01.jsonl", lines(1, 2))
    (loads.folder.parent / "link").symlink_to(loads.folder)
    load_now(loads, below(loads, "day/*.jsonl"))
    monkeypatch.setattr(PostgresLedger, "refuse_files_of_others", lambda *_: None)

    source = {"path": f"{loads.folder.parent}/link/*/*.jsonl", "moved_from": f"{loads.folder}/day"}
    with pytest.raises(LoadedUnderOtherName):
        load_now(loads, edited(loads, source=source))

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_replacing_a_file_by_hand_deletes_no_rows_of_another_one_below_the_old_folder(loads):
    loads.write("2025/01.jsonl", lines(1, 2, 3))
    load_now(loads, below(loads, "2025/*.jsonl"))
    loads.write("2026/01.jsonl", lines(11))

    report = load_now(loads, moved(loads, "2026"), choice=Choice(files=("01.jsonl",), replaces=True))

    assert [note.needs_a_person for note in report.notes] == [True]
    assert loads.rows() == [1, 2, 3]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_shorter_file_below_a_folder_that_was_moved_back_deletes_no_rows(loads):
    """The one that was left behind is an earlier state of the loaded file."""
    replacing = {"on_rewrite": OnRewrite.REPLACE}
    loads.write("2025/01.jsonl", lines(1))
    load_now(loads, below(loads, "2025/*.jsonl", **replacing))
    loads.write("2026/01.jsonl", lines(1, 2))
    load_now(loads, moved(loads, "2026", **replacing))

    report = load_now(loads, moved(loads, "2025", moved_from="2026", **replacing))

    assert [note.needs_a_person for note in report.notes] == [True]
    assert loads.rows() == [1, 2]


def test_files_of_a_moved_folder_go_on_where_they_were_and_belong_to_their_pipeline(loads):
    loads.write("2025/01.jsonl", lines(1, 2))
    loads.write("2025/02.jsonl", lines(3))
    load_now(loads, below(loads, "2025/*.jsonl"))
    (loads.folder / "2025").rename(loads.folder / "2026")
    loads.write("2026/02.jsonl", lines(3, 4))

    report = load_now(loads, moved(loads, "2026"))

    assert (report.loaded, report.notes) == (1, ())
    assert loads.look(below(loads, "2026/*.jsonl")).files == 0
    with pytest.raises(LoadedByAnother, match=r"2026/01\.jsonl and another file"):
        load_now(loads, renamed(below(loads, "2026/*.jsonl")))
    # From now on, a rewrite is one.
    loads.write("2026/01.jsonl", lines(5))
    load_now(loads, below(loads, "2026/*.jsonl", on_rewrite=OnRewrite.NEW_GENERATION))
    assert loads.rows() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_files_of_a_moved_folder_that_its_pipeline_no_longer_reads_stay_its_own(loads):
    for number in (1, 2):
        loads.write(f"2025/0{number}.jsonl", lines(number))
    load_now(loads, below(loads, "2025/*.jsonl"))
    (loads.folder / "2025").rename(loads.folder / "2026")
    source = {"path": f"{loads.folder}/2026/01*.jsonl", "moved_from": f"{loads.folder}/2025"}
    load_now(loads, edited(loads, source=source))

    with pytest.raises(LoadedByAnother, match=r"pipeline events has loaded \S*/2026/02\.jsonl into"):
        load_now(loads, renamed(below(loads, "2026/02*.jsonl")))

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("folder", ["2025", "2025/day", "."])
def test_files_of_another_pipeline_below_a_moved_folder_stay_its_own(loads, folder):
    """It did not load since the move, so that only its files below the old folder are recorded."""
    loads.write("2025/day/01.jsonl", lines(1))
    loads.write("2025/day/02.jsonl", lines(2))
    load_now(loads, below(loads, "2025/**/01.jsonl"))
    pattern = {"2025": "2025/**/02.jsonl", "2025/day": "2025/day/02.jsonl", ".": "*/day/02.jsonl"}[folder]
    load_now(loads, renamed(below(loads, pattern)))
    (loads.folder / "2025").rename(loads.folder / "2026")

    source = {"path": f"{loads.folder}/2026/**/*.jsonl", "moved_from": f"{loads.folder}/2025"}
    with pytest.raises(LoadedByAnother, match=r"pipeline events2 has loaded \S*/2026/day/02\.jsonl into"):
        load_now(loads, edited(loads, source=source))

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_file_of_a_moved_folder_is_read_whole_before_it_counts_as_the_loaded_one(loads):
    """By its size and both ends, it is the same."""
    middle = "".join(line(number, note="x" * 100) for number in range(100))
    loads.write("2025/01.jsonl", middle)
    load_now(loads, below(loads, "2025/*.jsonl"))
    loads.write("2026/01.jsonl", middle.replace('"id": 50,', '"id": 99,') + line(200))

    report = load_now(loads, moved(loads, "2026"))

    assert (report.loaded, [note.needs_a_person for note in report.notes]) == (0, [True])
    assert loads.rows() == [*range(100)]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_relative_path_in_a_project_that_was_moved_leads_to_the_same_files(loads, monkeypatch):
    monkeypatch.chdir(loads.folder.parent)
    relative = edited(loads, source={"path": "landing/*.jsonl"})
    loads.write("a.jsonl", lines(1))
    load_now(loads, relative)
    elsewhere = loads.folder.parent / "elsewhere"
    elsewhere.mkdir()
    loads.folder.rename(elsewhere / "landing")
    monkeypatch.chdir(elsewhere)

    assert load_now(loads, relative).loaded == 0

    with pytest.raises(LoadedByAnother):
        load_now(loads, renamed(edited(loads, source={"path": f"{elsewhere}/landing/*.jsonl"})))
    (elsewhere / "landing" / "a.jsonl").write_text(lines(1, 2))
    assert load_now(loads, relative).loaded == 1
    assert loads.rows() == [1, 2]


@pytest.fixture
def two_folders(loads, monkeypatch):
    """The same relative path leads to other files of the same names: how to go there, and the pipeline."""
    for name, content in (("first", lines(1, 2)), ("second", lines(3, 4, 5))):
        (loads.folder.parent / name / "in").mkdir(parents=True)
        (loads.folder.parent / name / "in" / "01.jsonl").write_text(content)

    def go_to(name):
        monkeypatch.chdir(loads.folder.parent / name)

    go_to("first")
    return go_to, edited(loads, source={"path": "in/*.jsonl"}, on_rewrite=OnRewrite.REPLACE)


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_load_in_one_folder_is_refused_that_another_folder_overtakes(loads, two_folders, monkeypatch):
    """Its files would be judged, and recorded, as those of the other folder."""
    go_to, declared = two_folders
    load_now(loads, declared)
    go_to("second")

    def overtaken(*arguments, **options):
        with monkeypatch.context() as patched:
            patched.setattr(offering, "make_plan", make_plan)
            go_to("first")
            load_now(loads, declared)
            go_to("second")
        return make_plan(*arguments, **options)

    monkeypatch.setattr(offering, "make_plan", overtaken)
    with pytest.raises(DeclarationChanged, match="leads to another folder"):
        load_now(loads, declared)

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_batch_that_was_staged_in_one_folder_is_given_up_by_a_load_in_another(loads, two_folders):
    go_to, declared = two_folders
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, publishes=False)
    load(declared, settings, batch=Batch("kept"), executor=InThisProcess())
    go_to("second")
    there = load_now(loads, declared)
    go_to("first")

    with pytest.raises(NothingKept):
        publish_batch(declared, settings, batch=Batch("kept"))

    back = load_now(loads, declared)
    assert (there.loaded, back.loaded, [note.needs_a_person for note in back.notes]) == (3, 0, [True])
    assert loads.rows() == [3, 4, 5]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_person_may_replace_a_file_by_the_one_of_its_name_in_another_folder(loads, two_folders):
    go_to, declared = two_folders
    load_now(loads, declared)
    go_to("second")
    refused = load_now(loads, declared)
    choice = Choice(files=("01.jsonl",), replaces=True)

    still = load_now(loads, declared, choice=choice)
    replaced = load_now(loads, declared, choice=choice, differences_accepted=True)
    later = load_now(loads, declared)

    assert [[note.needs_a_person for note in each.notes] for each in (refused, still)] == [[True], [True]]
    assert (replaced.loaded, later.notes, loads.rows()) == (3, (), [3, 4, 5])


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("on_rewrite", list(OnRewrite))
def test_files_of_another_folder_to_which_the_same_path_leads_delete_and_repeat_no_rows(
    loads, monkeypatch, on_rewrite, is_linked
):
    """The same pipeline file, in another working directory or after a link was changed."""
    first, second, link = (loads.folder.parent / name for name in ("first", "second", "link"))
    for folder, content in ((first, lines(1, 2)), (second, lines(3, 4, 5))):
        (folder / "in").mkdir(parents=True)
        (folder / "in" / "01.jsonl").write_text(content)

    def lead_to(folder):
        link.unlink(missing_ok=True)
        link.symlink_to(folder) if is_linked else monkeypatch.chdir(folder)

    path = f"{link}/in/*.jsonl" if is_linked else "in/*.jsonl"
    declared = edited(loads, source={"path": path}, on_rewrite=on_rewrite)
    lead_to(first)
    load_now(loads, declared)
    lead_to(second)
    (second / "in" / "02.jsonl").write_text(lines(6))

    there = load_now(loads, declared)
    again = load_now(loads, declared)
    lead_to(first)
    back = load_now(loads, declared)

    assert (there.loaded, [(note.name, note.needs_a_person) for note in there.notes]) == (1, [("01.jsonl", True)])
    assert [note.needs_a_person for note in again.notes] == [True]
    assert (back.loaded, back.notes) == (0, ())
    assert loads.rows() == [1, 2, 6]
