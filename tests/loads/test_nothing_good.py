"""What becomes of files of which every record is bad, where the pipeline file sets no limit."""

import gzip
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload.commands.reports import print_report
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import ExitCode
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.quarantine import Selection, choose
from onceload_jobs.executor.executor import Died, Outcome
from onceload_jobs.files.notes import code_of
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    CsvOptions,
    Format,
    OnRewrite,
    Publish,
    QuarantineLimit,
    Target,
    UnknownFields,
    Write,
)
from onceload_jobs.read.bad_records import NOTHING_GOOD_MIN
from onceload_jobs.recover.retry import retry
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.test_load import counts

pytestmark = pytest.mark.usually_staged

ALL = QuarantineLimit(share=1)
MERGE: dict[str, Any] = {
    "publish": Publish.STAGED,
    "target": Target(schema="public", table="target", write=Write.MERGE, key=("id",)),
}


def bad(number: int) -> str:
    return line(number, f"{number};50")


def bad_lines(count: int = NOTHING_GOOD_MIN, *, first: int = 1) -> str:
    return "".join(bad(number) for number in range(first, first + count))


def refused(report: Any) -> list[str]:
    return [note.name for note in report.notes if note.needs_a_person]


def is_untouched(loads: Loads, name: str) -> bool:
    """Whether nothing of a file is consumed or in quarantine."""
    receipts = loads.ask(f"SELECT * FROM onceload.ledger_span WHERE producer = '{name}'")
    return not receipts and not loads.ask("SELECT * FROM onceload.quarantine")


def test_a_file_without_a_good_record_is_refused_and_the_others_load(loads):
    loads.write("a.jsonl", bad_lines())
    loads.write("b.jsonl", line(100))

    report = loads.load()

    assert (counts(report), refused(report)) == ((1, 0, 0), ["a.jsonl"])
    (note,) = report.notes
    assert f"all {NOTHING_GOOD_MIN} records read from it are bad; {NOTHING_GOOD_MIN} of them" in note.reason
    assert "line 1 (byte 0): amount: '1;50' is not a valid numeric(12,2)" in note.reason
    assert "None of them was loaded or quarantined" in note.reason
    assert "quality.quarantined_max" in note.reason
    assert (code_of(report.notes), is_untouched(loads, "a.jsonl")) == (ExitCode.NEEDS_A_PERSON, True)

    assert refused(loads.load()) == ["a.jsonl"]
    loads.write("a.jsonl", bad_lines().replace(";", "."))
    assert counts(loads.load()) == (NOTHING_GOOD_MIN, 0, 0)


@pytest.mark.parametrize("content", [bad_lines(NOTHING_GOOD_MIN - 1), bad_lines() + line(100)])
def test_few_bad_records_and_those_beside_a_good_one_go_to_quarantine(loads, content):
    loads.write("a.jsonl", content)

    report = loads.load()

    assert (report.quarantined, report.notes) == (content.count(";50"), ())


@pytest.mark.parametrize("files", [1, 3])
def test_bad_records_that_are_read_in_small_pieces_need_a_person_once_they_are_many(loads, files):
    """Each piece has too few of them to be refused."""
    for number in range(files):
        loads.write(f"{number}.jsonl", bad_lines(12 // files, first=10 * number))
    loads.write("good.jsonl", line(100))
    source = replace(loads.declared.source, chunk_bytes=100)

    report = loads.load(source=source)

    assert (counts(report), code_of(report.notes)) == ((1, 0, 12), ExitCode.NEEDS_A_PERSON)
    assert refused(report) == [f"{number}.jsonl" for number in range(files)]
    assert f"all {12 // files} records that this load read from it are bad" in report.notes[0].reason
    assert loads.load(source=source).notes == ()


def test_a_later_call_of_the_batch_reports_bad_files_until_their_records_are_settled(loads):
    """The first call may have been killed after its commit."""
    loads.write("a.jsonl", bad_lines(12))
    source = replace(loads.declared.source, chunk_bytes=100)
    loads.load(batch="b", source=source)

    assert [refused(loads.load(batch=batch, source=source)) for batch in ("b", "c")] == [["a.jsonl"], []]

    loads.ask("UPDATE onceload.quarantine SET state = 'discarded', settled_position = position + 1 RETURNING 1")
    assert refused(loads.load(batch="b", source=source)) == []


def test_a_good_record_of_the_same_load_speaks_for_the_bad_ones_of_its_file(loads):
    loads.write("a.jsonl", bad_lines(12) + line(100))

    report = loads.load(source=replace(loads.declared.source, chunk_bytes=100))

    assert (counts(report), report.notes) == ((1, 0, 12), ())


@pytest.mark.parametrize("limit", [ALL, QuarantineLimit(records=NOTHING_GOOD_MIN)])
def test_a_declared_limit_takes_the_place_of_the_default(loads, limit):
    loads.write("a.jsonl", bad_lines())
    loads.load()

    assert counts(loads.load(quarantine_limit=limit)) == (0, 0, NOTHING_GOOD_MIN)


def test_files_of_one_record_each_are_judged_together(loads):
    for number in range(NOTHING_GOOD_MIN):
        loads.write(f"{number}.jsonl", bad(number))

    report = loads.load()

    assert (counts(report), len(refused(report))) == ((0, 0, 0), NOTHING_GOOD_MIN)
    assert "the only record read from it is bad, and so are all 10 records of the files" in report.notes[0].reason
    loads.write("good.jsonl", line(100))
    assert (counts(loads.load()), loads.load().notes) == ((1, 0, NOTHING_GOOD_MIN), ())


def test_many_refused_files_are_read_twice_and_not_once_for_each(loads, monkeypatch):
    from onceload_jobs.read import new_content as loading
    from onceload_jobs.read.rows import read_adding

    reads: list[int] = []

    def counted(*args: Any, **more: Any) -> Any:
        reads.append(len(args[2]))
        return read_adding(*args, **more)

    monkeypatch.setattr(loading, "read_adding", counted)
    for number in range(5):
        loads.write(f"{number}.jsonl", bad_lines())
    loads.write("good.jsonl", line(100))

    assert len(refused(loads.load())) == 5
    assert reads == [6, 1]


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED, Mode.ORDERED])
def test_a_chunk_without_a_good_record_waits_and_what_is_around_it_loads(loads, mode):
    """With the hole closed later, by hand: no record is loaded twice or lost."""
    good, later = line(1) * 20, line(2) * 20
    loads.write("a.jsonl", good + bad_lines(20) + later)
    source = replace(loads.declared.source, chunk_bytes=len(good) // 2)
    changes: dict[str, Any] = {"source": source, "delivery": Rules(mode=mode)}

    first, second = loads.load(**changes), loads.load(**changes)
    closed = loads.load(**changes, quarantine_limit=ALL)

    if loads.declared.publish is Publish.STAGED and mode is Mode.ORDERED:
        # In an ordered batch, the records behind it wait with it.
        assert first.loaded == 20
        assert (closed.loaded, loads.rows()) == (20, [1] * 20 + [2] * 20)
    assert refused(first) == refused(second) != []
    assert set(refused(first)) == {"a.jsonl"}
    assert first.loaded + second.loaded + closed.loaded == 40
    assert first.quarantined + second.quarantined + closed.quarantined == 20
    assert loads.rows() == [1] * 20 + [2] * 20
    assert loads.load(**changes).notes == ()


def test_records_behind_a_refused_chunk_do_not_overtake_it_in_a_merge(loads):
    good, later = line(1) * 20, line(2) * 20
    loads.write("a.jsonl", good + bad_lines(20) + later)
    changes = MERGE | {"source": replace(loads.declared.source, chunk_bytes=len(good) // 2)}

    first = loads.load(**changes)

    assert set(refused(first)) == {"a.jsonl"}
    assert loads.rows() == [1]
    loads.load(**changes, quarantine_limit=ALL)
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_old_rows_stay_where_the_new_file_has_no_good_record(loads, suffix):
    pack = gzip.compress if suffix else bytes
    path = loads.write(f"a.jsonl{suffix}", pack(line(1).encode()))
    staged: dict[str, Any] = {"publish": Publish.STAGED, "on_rewrite": OnRewrite.REPLACE}
    loads.load(**staged)
    path.write_bytes(pack(bad_lines().encode()))

    for _ in range(2):
        report = loads.load(**staged)
        assert (counts(report), refused(report)) == ((0, 0, 0), [path.name])

    assert loads.rows() == [1]
    path.write_bytes(pack((line(5) * 2).encode()))
    loads.load(**staged)
    assert loads.rows() == [5, 5]


def test_a_packed_file_stops_at_a_piece_without_a_good_record(loads):
    content = line(1) * 20 + bad_lines(40) + line(2)
    loads.write("a.jsonl.gz", gzip.compress(content.encode()))
    changes = {"source": replace(loads.declared.source, chunk_bytes=len(line(1) * 20))}

    report = loads.load(**changes)

    assert (report.loaded, refused(report)) == (20, ["a.jsonl.gz"])
    assert counts(loads.load(**changes)) == (0, 0, 0)
    assert counts(loads.load(**changes, quarantine_limit=ALL)) == (1, 0, 40)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_refused_file_is_noted_also_if_the_worker_died_before_it_reported_it(loads, suffix):
    died: list[object] = []

    class DiesInTheEnd(InThisProcess):
        def _called(self, function: Any, item: Any) -> Outcome:
            outcome = super()._called(function, item)
            if died:
                return outcome
            died.append(item)
            return Died("its process was killed")

    content = (line(1) * 20 + bad_lines(40)).encode()
    path = loads.write(f"a.jsonl{suffix}", gzip.compress(content) if suffix else content)
    declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=len(line(1) * 20)))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)

    report = load(declared, settings, batch=new_batch(), executor=DiesInTheEnd())

    assert (report.loaded, [note.name for note in report.notes]) == (20, [path.name])


def test_csv_and_parquet_are_refused_alike(loads):
    csv = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV, csv=CsvOptions())
    loads.write("a.csv", "id,amount,note\n" + "1,1;50,x\n" * NOTHING_GOOD_MIN)
    (note,) = loads.load(source=csv).notes
    assert (note.name, note.needs_a_person) == ("a.csv", True)
    assert "line 2 (byte 15): amount: '1;50'" in note.reason

    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    others = {name: pa.nulls(NOTHING_GOOD_MIN) for name in ("amount", "note")}
    pq.write_table(pa.table({"id": ["x"] * NOTHING_GOOD_MIN, **others}), loads.folder / "a.parquet")
    (note,) = loads.load(source=parquet).notes
    assert (note.name, note.needs_a_person) == ("a.parquet", True)
    assert "row 0: id: 'x' is not a valid bigint" in note.reason


@pytest.mark.parametrize("publish", [Publish.STAGED], indirect=True)
@pytest.mark.parametrize("unknown_fields", UnknownFields)
def test_a_file_of_json_lines_of_another_kind_is_refused_and_replaces_no_row(loads, unknown_fields):
    loads.declared = replace(
        loads.declared,
        columns=tuple(parse_column(name, "bigint") for name in ("id", "price")),
        on_rewrite=OnRewrite.REPLACE,
        unknown_fields=unknown_fields,
    )
    loads.write("a.jsonl", '{"id": 1, "price": 5}\n{"id": 2}\n{"price": null}\n')
    loads.load()
    loads.write("a.jsonl", '{"uid": 7, "cost": 8}\n' * NOTHING_GOOD_MIN)

    report = loads.load()

    assert (counts(report), refused(report)) == ((0, 0, 0), ["a.jsonl"])
    assert "line 1 (byte 0): the record has none of the declared fields" in report.notes[0].reason
    assert loads.rows("id, price") == [(1, 5), (2, None), (None, None)]
    assert loads.ask("SELECT count(*) FROM information_schema.columns WHERE column_name IN ('uid', 'cost')") == [(0,)]


@pytest.mark.parametrize("unknown_fields", UnknownFields)
def test_records_with_none_of_the_declared_fields_are_not_loaded_verified_or_retried(loads, unknown_fields):
    loads.declared = replace(
        loads.declared,
        columns=(parse_column("id", "bigint"), parse_column("note", "text")),
        unknown_fields=unknown_fields,
    )
    loads.write("a.jsonl", '{"id": 1}\n{"uid": 2}\n{}\n{"note": null}\n')

    assert counts(loads.load()) == (2, 0, 2)
    assert verify(loads.declared, loads.engine, deep=True).differences == ()
    asked = choose(loads.engine, Selection(pipeline="events")).held
    again = retry(loads.engine, loads.ledger, loads.declared, asked, batch=new_batch())
    assert (again.retried, {each.reason for each in again.still_bad.values()}) == (
        0,
        {"the record has none of the declared fields"},
    )
    assert loads.rows("id, note") == [(1, None), (None, None)]


def test_a_file_of_which_the_server_refuses_every_row_is_refused(loads):
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE target (id bigint CHECK (id > 0), amount numeric(12,2), note text,"
            " _producer_id bigint, _sequence bigint)"
        )
    loads.write("a.jsonl", "".join(line(-number) for number in range(1, NOTHING_GOOD_MIN + 1)))
    loads.write("b.jsonl", line(5))

    report = loads.load()

    assert (counts(report), refused(report)) == ((1, 0, 0), ["a.jsonl"])
    assert "target_id_check" in report.notes[0].reason


@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize(("content", "which"), [(bad_lines(2), "every record"), (bad_lines(2) + line(3), "2 records")])
def test_a_load_says_that_records_went_to_quarantine(loads, capsys, content, which):
    loads.write("a.jsonl", content)

    print_report(loads.load())

    assert f"{which} of this load went to quarantine. Run `onceload quarantine list" in capsys.readouterr().err
