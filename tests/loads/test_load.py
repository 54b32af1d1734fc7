"""What a load promises of files, on either way to publish."""

import gzip
import json
import os
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from sqlalchemy import Connection, text

from onceload_core.errors import CommitOutcomeUnknown, SettingRefused
from onceload_core.names import Batch, Position
from onceload_core.ports import Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger
from onceload_core.replay import replay
from onceload_core.spans import SpanSet
from onceload_jobs.batch.stage_folder import BlockWriter
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    Format,
    Identity,
    OnRewrite,
    Publish,
    QuarantineLimit,
    Target,
    UnknownFields,
    Write,
)
from onceload_jobs.publish.table_road import publish
from onceload_jobs.work import load_delivery as loading
from onceload_jobs.work.load_delivery import _commit_piece
from tests.loads.conftest import InThisProcess, WorkerKilled, line, through_a_table
from tests.servers import execute


def counts(report: Report) -> tuple[int, int, int]:
    return report.loaded, report.duplicates, report.quarantined


def test_loaded_records_are_not_loaded_again(loads):
    loads.write("a.jsonl", line(1) + line(2))

    assert counts(loads.load()) == (2, 0, 0)
    assert counts(loads.load()) == (0, 0, 0)
    assert loads.rows() == [1, 2]


def test_a_file_that_grows_goes_on_at_the_exact_byte(loads):
    path = loads.write("a.jsonl", line(1) + '{"id": 2, "amo')
    first = loads.load()
    with path.open("a") as file:
        file.write('unt": 2.5}\n' + line(3))

    assert (counts(first), counts(loads.load())) == ((1, 0, 0), (2, 0, 0))
    assert loads.rows() == [1, 2, 3]


def test_each_load_reports_a_last_line_that_waits_for_its_newline(loads):
    loads.write("a.jsonl", line(1) + '{"id": 2')

    told = [loads.load().notes for _ in range(2)]

    expected = "its last line (8 bytes) has no newline yet. It is loaded once it is complete"
    assert [[(note.reason, note.needs_a_person) for note in notes] for notes in told] == [[(expected, False)]] * 2


def test_many_small_files_are_one_commit_where_they_fit(loads):
    for number in range(50):
        loads.write(f"{number}.jsonl", line(number))

    report = loads.load()

    assert (report.loaded, report.position) == (50, 1)
    assert loads.rows() == list(range(50))


def test_a_large_file_is_cut_and_loaded_whole(loads):
    source = replace(loads.declared.source, chunk_bytes=100)
    loads.write("a.jsonl", "".join(line(number) for number in range(200)))

    report = loads.load(source=source)

    assert report.loaded == 200
    assert loads.rows() == list(range(200))
    assert len(loads.ledger.states("events").states) == 1
    (state,) = loads.ledger.states("events").states.values()
    assert state.consumed == SpanSet.of((0, (loads.folder / "a.jsonl").stat().st_size))
    assert counts(loads.load(source=source)) == (0, 0, 0)


def test_every_cut_of_a_prefix_that_took_effect_is_left_out(loads):
    """A record belongs to the byte that it starts at, wherever what was consumed before ends."""
    content = "".join(line(number) for number in range(40))
    starts = [0, *accumulate(len(each) for each in content.splitlines(keepends=True))]
    cuts = {f"{consumed}.jsonl": consumed for consumed in range(1, 1025)}
    for name in cuts:
        loads.write(name, content)
    loads.ledger.declare(loads.declared.pipeline)
    ids = loads.ledger.register("events", [(name, 1) for name in cuts])
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE onceload.producer"
            " SET consumed = int8multirange(int8range(0, CAST(split_part(name, '.', 1) AS bigint)))"
        )

    first = loads.load()

    # The rest of a record that took effect is neither a row nor a bad record.
    assert (first.quarantined, first.duplicates) == (0, 0)
    found: dict[int, list[int]] = {}
    for producer_id, number in loads.rows("_producer_id, id"):
        found.setdefault(producer_id, []).append(number)
    for name, consumed in cuts.items():
        assert found[ids[name, 1]] == [number for number in range(40) if starts[number] >= consumed], consumed
    assert counts(loads.load()) == (0, 0, 0)


def test_a_task_that_reads_more_when_it_is_tried_again_repeats_nothing(loads, monkeypatch):
    """A file that the first try could not read shifts all that comes behind it into other pieces."""
    source = replace(loads.declared.source, chunk_bytes=1000)
    for at, name in enumerate("abcde"):
        # Packed, they are small enough for one task; unpacked, three of them are a piece.
        packed = gzip.compress("".join(line(100 * at + number) for number in range(9)).encode())
        loads.write(f"{name}.jsonl.gz", packed)
    died: list[object] = []
    hidden = loads.folder / ".hidden"

    class TriedTwice(InThisProcess):
        def begins(self):
            if not died:
                self.begins_to_die()

        def begins_to_die(self):
            died.append(self)
            (loads.folder / "a.jsonl.gz").rename(hidden)
            monkeypatch.setattr(loading, "_commit_piece", dying_behind(_commit_piece))
            monkeypatch.setattr(BlockWriter, "write", dying_behind(BlockWriter.write))

        def was_killed(self):
            monkeypatch.undo()
            hidden.rename(loads.folder / "a.jsonl.gz")

    def dying_behind(take):
        def once(*arguments, **named):
            take(*arguments, **named)
            raise WorkerKilled

        return once

    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    load(replace(loads.declared, source=source), settings, batch=new_batch(), executor=TriedTwice())
    loads.load(source=source)

    assert loads.rows() == [100 * at + number for at in range(5) for number in range(9)]


def test_bad_records_are_quarantined_and_their_neighbours_loaded(loads):
    loads.write("a.jsonl", line(1) + "{broken\n" + line(2, amount="12345678901.5") + line(3))

    report = loads.load()

    assert counts(report) == (2, 0, 2)
    assert loads.rows() == [1, 3]
    assert [bytes(raw) for (raw,) in loads.ask("SELECT raw FROM onceload.quarantine ORDER BY sequence_id")] == [
        b"{broken",
        line(2, amount="12345678901.5").encode().rstrip(),
    ]


def test_values_that_only_the_server_refuses_are_quarantined_too(loads):
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE target (id bigint NOT NULL CHECK (id <> 7), amount numeric(12,2), note text,"
            " _producer_id bigint, _sequence bigint)"
        )
    loads.write("a.jsonl", "".join(line(number) for number in range(20)))

    report = loads.load()

    assert counts(report) == (19, 0, 1)
    assert 7 not in loads.rows()
    ((raw, reason),) = loads.ask("SELECT raw, reason FROM onceload.quarantine")
    assert bytes(raw) == line(7).encode().rstrip()
    assert "target_id_check" in reason


def test_a_compressed_file_that_grows_by_a_member_goes_on(loads):
    path = loads.write("a.jsonl.gz", gzip.compress((line(1) + line(2)).encode()))

    assert counts(loads.load()) == (2, 0, 0)
    assert counts(loads.load()) == (0, 0, 0)
    with path.open("ab") as file:
        file.write(gzip.compress(line(3).encode()))
    assert counts(loads.load()) == (1, 0, 0)
    assert loads.rows() == [1, 2, 3]


def test_a_truncated_upload_gives_its_whole_lines_and_the_rest_later(loads):
    whole = gzip.compress(
        os.urandom(0) + "".join(line(number, note=os.urandom(20).hex()) for number in range(300)).encode()
    )
    path = loads.write("a.jsonl.gz", whole[: len(whole) // 2])

    first = loads.load()
    path.write_bytes(whole)
    second = loads.load()

    assert first.loaded > 0
    assert any("breaks off" in note.reason for note in first.notes)
    assert first.loaded + second.loaded == 300
    assert loads.rows() == list(range(300))


def test_a_rewritten_file_stops_and_no_other_does(loads):
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    path.write_text(line(8) + line(9))
    loads.write("b.jsonl", line(3))

    report = loads.load()

    assert counts(report) == (1, 0, 0)
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("a.jsonl", True)]
    assert loads.rows() == [1, 2, 3]
    assert loads.load().position == report.position

    path.write_text(line(1) + line(2) + line(4))
    assert counts(loads.load()) == (1, 0, 0)


def test_a_rewritten_file_may_be_a_new_generation(loads):
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    path.write_text(line(8))

    assert counts(loads.load(on_rewrite=OnRewrite.NEW_GENERATION)) == (1, 0, 0)
    assert counts(loads.load(on_rewrite=OnRewrite.NEW_GENERATION)) == (0, 0, 0)
    assert loads.rows() == [1, 2, 8]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_that_is_uploaded_again_begins_a_generation_only_with_other_content(loads, suffix):
    pack = gzip.compress if suffix else bytes
    whole = "".join(map(line, range(2_000))).encode()
    path, again = loads.write(f"a.jsonl{suffix}", pack(whole)), {"on_rewrite": OnRewrite.NEW_GENERATION}
    loads.load()

    path.write_bytes(pack(whole)[: len(pack(whole)) // 2])
    report = loads.load(**again)
    assert [(note.name, note.needs_a_person) for note in report.notes] == [(path.name, True)]
    path.write_bytes(b"")
    assert not any(note.needs_a_person for note in loads.load(**again).notes)
    path.write_bytes(pack(whole))
    assert counts(loads.load(**again)) == (0, 0, 0)

    path.write_bytes(pack(line(8).encode() + whole[:20_000]))
    assert loads.load(**again).loaded > 0


def test_a_long_header_makes_no_beginning_of_the_loaded_file(loads):
    names = [f"column_{number}_of_a_wide_file" for number in range(200)]
    header, csv = ",".join(["id", *names]) + "\n", replace(loads.declared.source, format=Format.CSV)
    source = replace(csv, path=str(loads.folder / "*.csv"))
    path = loads.write("a.csv", header + "1\n2\n".replace("\n", "," * len(names) + "\n"))
    again = {"source": source, "columns": (parse_column("id", "bigint"),), "on_rewrite": OnRewrite.NEW_GENERATION}
    loads.load(**again)

    path.write_text(header + "3" + "," * len(names) + "\n")

    assert counts(loads.load(**again)) == (1, 0, 0)


def test_a_rewritten_file_may_replace_what_was_loaded_of_it(loads):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("pieces that commit themselves cannot replace anything at once")
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.write("b.jsonl", line(3))
    loads.load()
    path.write_text(line(8))

    assert counts(loads.load(on_rewrite=OnRewrite.REPLACE)) == (1, 0, 0)
    assert counts(loads.load(on_rewrite=OnRewrite.REPLACE)) == (0, 0, 0)
    assert loads.rows() == [3, 8]
    assert replay({}, loads.ledger.entries("events", after=Position(0))) == loads.ledger.states("events").states


def test_too_many_bad_records_stop_the_batch(loads):
    from onceload_core.errors import TooManyQuarantined

    loads.write("a.jsonl", line(1) + "{\n{\n")

    with pytest.raises(TooManyQuarantined, match="2 of 3 records are bad, and quarantined_max allows 1 records"):
        loads.load(quarantine_limit=QuarantineLimit(records=1))

    assert loads.ask("SELECT * FROM onceload.ledger") == []
    assert counts(loads.load()) == (1, 0, 2)


def test_a_last_line_counts_when_the_file_is_sealed(loads):
    source = replace(loads.declared.source, sealed_after_s=0)
    loads.write("a.jsonl", line(1) + line(2).rstrip())

    assert counts(loads.load(source=source)) == (2, 0, 0)
    assert counts(loads.load(source=source)) == (0, 0, 0)
    (loads.folder / "a.jsonl").write_text(line(1) + line(2).rstrip() + "   \n")
    report = loads.load(source=source)

    assert (report.loaded, report.notes[0].needs_a_person) == (0, True)


def test_exotic_columns_arrive_as_declared(loads):
    columns = {"id": "uuid", "tags": "varchar(3)[]", "seen": "timestamptz[]", "more": "jsonb", "ids": "uuid[]"}
    from onceload_jobs.pipeline.columns import parse_column

    loads.write(
        "a.jsonl",
        '{"id":"6f1c7a52-93a8-4d0e-8e0f-0f3b0a5b9c11","tags":["a",null],"seen":["2026-01-01T00:00:00+02:00"],'
        '"more":{"x":1.10},"ids":["6f1c7a52-93a8-4d0e-8e0f-0f3b0a5b9c11"]}\n'
        '{"id":"6f1c7a52-93a8-4d0e-8e0f-0f3b0a5b9c12","tags":["long"]}\n',
    )

    report = loads.load(columns=tuple(parse_column(*each) for each in columns.items()))

    assert counts(report) == (1, 0, 1)
    assert loads.ask(
        "SELECT CAST(id AS text), tags, CAST(seen AS text), CAST(more AS text), CAST(ids AS text) FROM target"
    ) == [
        (
            "6f1c7a52-93a8-4d0e-8e0f-0f3b0a5b9c11",
            ["a", None],
            '{"2025-12-31 22:00:00+00"}',
            '{"x": 1.10}',
            "{6f1c7a52-93a8-4d0e-8e0f-0f3b0a5b9c11}",
        )
    ]


@pytest.mark.parametrize("publish", ["staged"], indirect=False)
def test_merge_keeps_the_last_of_each_key(loads):
    from onceload_jobs.pipeline.declared import Publish

    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    path = loads.write("a.jsonl", line(1, "1.00") + line(2, "2.00") + line(1, "3.00"))

    loads.load(target=target, publish=Publish.STAGED)
    with path.open("a") as file:
        file.write(line(2, "5.00") + line(4, "4.00"))
    loads.load(target=target, publish=Publish.STAGED)

    assert [(key, str(amount)) for key, amount in loads.rows("id, amount")] == [(1, "3.00"), (2, "5.00"), (4, "4.00")]


def test_csv_and_parquet_are_read_too(loads):
    import pyarrow as pa
    import pyarrow.parquet as pq

    csv = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV)
    loads.write("a.csv", "note,id,amount\nhello,1,\n,2,1.50\n")
    assert counts(loads.load(source=csv)) == (2, 0, 0)
    with (loads.folder / "a.csv").open("a") as file:
        file.write("more,3,\n")
    assert counts(loads.load(source=csv)) == (1, 0, 0)
    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    table = pa.table({"id": list(range(10, 20)), "amount": pa.nulls(10), "note": ["p"] * 10})
    pq.write_table(table, loads.folder / "a.parquet", row_group_size=3)
    other = {"source": parquet, "pipeline": replace(loads.declared.pipeline, name="of parquet")}
    assert counts(loads.load(**other)) == (10, 0, 0)
    assert counts(loads.load(**other)) == (0, 0, 0)
    assert loads.rows() == [1, 2, 3, *range(10, 20)]


def test_undeclared_fields_get_columns_in_the_same_commit(loads):
    loads.write("a.jsonl", '{"id": 1, "age": 7, "more": {"x": 1.10}}\n{"id": 2, "name": "b"}\n')
    first = loads.load(unknown_fields=UnknownFields.ADD)
    loads.write("b.jsonl", '{"id": 3, "age": 8}\n{"id": 4, "age": "old", "later": true}\n')
    second = loads.load(unknown_fields=UnknownFields.ADD)

    assert (counts(first), counts(second)) == ((2, 0, 0), (1, 0, 1))
    assert loads.ask("SELECT id, age, name, CAST(more AS text) FROM target ORDER BY id") == [
        (1, 7, None, '{"x": 1.10}'),
        (2, None, "b", None),
        (3, 8, None, None),
    ]


def test_undeclared_fields_may_be_refused(loads):
    loads.write("a.jsonl", '{"id": 1, "age": 7}\n{"id": 2}\n')

    assert counts(loads.load(unknown_fields=UnknownFields.FAIL)) == (1, 0, 1)
    assert "age" in loads.ask("SELECT reason FROM onceload.quarantine")[0][0]


def test_the_same_content_under_another_name_is_found_where_that_is_asked_for(loads):
    """A copy, a log that was rotated away and had grown meanwhile, and another that only begins alike."""
    source = replace(loads.declared.source, identity=Identity.CONTENT)
    log = loads.write("app.jsonl", "".join(line(number) for number in range(300)) + "{bad\n")
    loads.load(source=source)
    loads.write("copy.jsonl", log.read_bytes())
    log.rename(loads.folder / "app.1.jsonl")
    with (loads.folder / "app.1.jsonl").open("a") as file:
        file.write(line(300))
    loads.write("other.jsonl", log_like := "".join(line(number) for number in range(250)) + line(999) * 60)

    report = loads.load(source=source)

    assert (report.loaded, report.duplicates) == (1 + log_like.count("\n"), 2 * 301)
    assert counts(loads.load(source=source)) == (0, 0, 0)
    assert loads.rows() == sorted([*range(301), *range(250), *[999] * 60])


def test_a_compressed_copy_is_found_too(loads):
    source = replace(loads.declared.source, identity=Identity.CONTENT)
    packed = gzip.compress("".join(line(number) for number in range(300)).encode())
    loads.write("a.jsonl.gz", packed)
    loads.load(source=source)
    loads.write("b.jsonl.gz", packed + gzip.compress(line(300).encode()))

    report = loads.load(source=source)

    assert (report.loaded, report.duplicates) == (1, 300)
    assert counts(loads.load(source=source)) == (0, 0, 0)
    assert loads.rows() == list(range(301))


def test_any_name_is_just_a_name(loads):
    name = 'x"; DROP TABLE target; -- :a %s %(b)s {}'
    columns = tuple(parse_column(*each) for each in {"id": "bigint", name: "varchar(3)[]", "50%": "text"}.items())
    target = Target(schema=name, table=name)
    loads.write("a.jsonl", json.dumps({"id": 1, name: ["a"], "50%": "b"}) + "\n")
    with pytest.raises(SettingRefused, match=r'CREATE SCHEMA "x""; DROP .* AUTHORIZATION "onceload_loader"'):
        loads.load(columns=columns, target=target)
    database = loads.admin_dsn.rpartition("/")[2].partition("?")[0]
    execute(loads.admin_dsn, f"GRANT CREATE ON DATABASE {database} TO onceload_loader")

    report = loads.load(columns=columns, target=target)

    assert counts(report) == (1, 0, 0)
    assert loads.ask("SELECT count(*) FROM pg_class WHERE relname LIKE 'x\"; DROP%' AND relkind = 'r'") == [(1,)]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_stage_that_a_crash_empties_before_its_commit_is_staged_again(loads, monkeypatch):
    """What a crash of the server does to unlogged tables, after all pieces were counted."""
    loads.declared = through_a_table(loads.declared)
    loads.write("a.jsonl", "".join(line(number) for number in range(20)))
    crashes: list[object] = []

    def publish_after_a_crash(engine, ledger, job, stage, parts, **more):
        if not crashes:
            crashes.append(stage)
            with engine.begin() as connection:
                for table in (stage.rows, stage.proof):
                    connection.execute(text(f"DELETE FROM {table}"))
        publish(engine, ledger, job, stage, parts, **more)

    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.publish", publish_after_a_crash)

    report = loads.load()

    assert crashes
    assert (report.loaded, loads.rows()) == (20, list(range(20)))


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_commit_without_answer_is_not_tried_again_for_a_file_without_records(loads, monkeypatch):
    commits: list[Batch] = []

    class Unanswered(PostgresLedger):
        def commit(self, commit: Commit[Connection], **begun: Any) -> Position:
            commits.append(commit.batch)
            position = super().commit(commit, **begun)
            if len(commits) == 1:
                raise CommitOutcomeUnknown("events", commit.batch, "the line went dead")
            return position

    monkeypatch.setattr("onceload_jobs.work.load_delivery.PostgresLedger", Unanswered)
    loads.write("a.jsonl.gz", gzip.compress(line(1).encode()))
    loads.write("b.jsonl.gz", gzip.compress(b""))

    report = loads.load()

    assert len(commits) == 1
    assert (report.loaded, loads.rows()) == (1, [1])
    assert loads.load().loaded == 0
