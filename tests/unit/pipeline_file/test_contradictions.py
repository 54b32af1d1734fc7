"""What a file says that is right by itself, and cannot be meant together."""

import pytest

from tests.unit.pipeline_file.files import plain, problems_of

DIRECT = ("publish: staged", "publish: direct")
MERGE = ("write: append", "write: merge\n  key: [id]")
PRODUCER = "producer: {name: device, sequence: seq}"


@pytest.mark.parametrize(
    ("content", "line", "place", "fix"),
    [
        (plain(DIRECT, MERGE), 15, "target.write", "set publish: staged, or set write: append"),
        (plain(DIRECT, added=PRODUCER), 17, "producer", "set publish: staged, or remove producer"),
        (plain(DIRECT, added="transform: SELECT 1"), 17, "transform", "set publish: staged, or remove transform"),
        (plain(added="unknown_fields: add\ntransform: SELECT 1"), 17, "unknown_fields", "set ignore or fail"),
        (plain(("write: append", "write: merge")), 15, "target.write", "add key: [<columns>]"),
        (plain(("write: append", "key: [id]")), 15, "target.key", "set write: merge, or remove key"),
        (plain(("write: append", "deleted: gone")), 15, "target.deleted", "set write: merge, or remove deleted"),
        (
            plain(("write: append", "newer_file: by_time")),
            15,
            "target.newer_file",
            "set write: merge, or remove newer_file",
        ),
        (
            plain(("write: append", "write: merge\n  key: [id]\n  newer_file: by_time"), added=PRODUCER),
            17,
            "target.newer_file",
            "the records say where they come from; remove newer_file",
        ),
        (
            plain(("format: csv", "format: csv\n  identity: content"), MERGE),
            16,
            "target.write",
            "add newer_file: by_time (the one modified last) to target",
        ),
        (plain(MERGE, added="on_rewrite: replace"), 18, "on_rewrite", "set stop or new_generation"),
        (
            plain(("format: csv", "format: csv\n  identity: content"), added="on_rewrite: replace"),
            18,
            "on_rewrite",
            "a row may belong to several files",
        ),
        (plain(added=f"on_rewrite: replace\n{PRODUCER}"), 17, "on_rewrite", "the producers that records name"),
        (
            plain(added="on_rewrite: replace\nmessage_id: {columns: [id], keep: 1d}"),
            17,
            "on_rewrite",
            "its business id was seen",
        ),
        (
            plain(("write: append", "lineage: false"), added="on_rewrite: replace"),
            17,
            "on_rewrite",
            "lineage is false",
        ),
        (plain(added="producer: {name: devise, sequence: seq}"), 17, "producer.name", "did you mean device?"),
        (plain(added="producer: {name: device, sequence: n}"), 17, "producer.sequence", "declare it under columns"),
        (plain(added="producer: {name: id, sequence: amount}"), 17, "producer.sequence", "declare it as bigint"),
        (plain(("seq: bigint", "seq: bigint[]"), added=PRODUCER), 17, "producer.sequence", "declare it as bigint"),
        (plain(added="message_id: {columns: [ids], keep: 1d}"), 17, "message_id.columns", "did you mean id?"),
        (
            plain(added="message_id: {columns: [x], keep: 1d}\ntransform: SELECT 1"),
            17,
            "message_id.columns",
            "declare it under columns",
        ),
        (plain(("write: append", "write: merge\n  key: [x]")), 16, "target.key", "declare it under columns"),
        (plain(("write: append", "write: merge\n  key: [id]\n  deleted: x")), 17, "target.deleted", "declare it"),
        (
            plain(("write: append", "write: merge\n  key: [id]\n  deleted: seq")),
            17,
            "target.deleted",
            "declare it as boolean",
        ),
        (
            plain(("write: append", "write: merge\n  key: [id]\n  lineage: false"), added=PRODUCER),
            17,
            "target.lineage",
            "set order: ordered, or set lineage: true",
        ),
        (
            plain(
                ("write: append", "write: merge\n  key: [x]\n  deleted: y"), added=f"{PRODUCER}\ntransform: SELECT 1"
            ),
            17,
            "target.deleted",
            "set order: ordered, or remove deleted",
        ),
        (
            plain(("format: csv", "format: jsonl")),
            5,
            "source.options",
            "found header with format: jsonl; remove it, or set format: csv",
        ),
        (
            plain(("format: csv\n  options:\n    header: true", "format: parquet\n  sealed: never")),
            5,
            "source.sealed",
            "remove the key",
        ),
        (
            plain(("header: true", "quote: ''\n    multiline: true")),
            7,
            "source.options.multiline",
            "set quote, or set multiline: false",
        ),
        (plain(added="limits: {forget_idle_after: 1d}"), 17, "limits.forget_idle_after", "remove it, or add producer"),
        (plain(("header: true", "delimiter: '\"'")), 5, "source.options.quote", "set different characters"),
        (plain(("header: true", "escape: ','")), 6, "source.options.escape", "set different characters"),
        (plain(("header: true", "escape: '\"'")), 6, "source.options.escape", "or remove escape"),
    ],
)
def test_a_contradiction_is_refused_with_its_line_and_the_fix(tmp_path, content, line, place, fix):
    (problem,) = problems_of(tmp_path, content)

    assert problem.startswith(f"{line}: {place}: ")
    assert fix in problem


def test_every_contradiction_is_found_also_at_one_place(tmp_path):
    problems = problems_of(tmp_path, plain(DIRECT, ("write: append", "write: merge"), added="unknown_fields: fail"))

    assert [problem.partition(", ")[0] for problem in problems] == [
        "15: target.write: merge needs the last row of each key",
        "15: target.write: merge finds rows by a key",
    ]


def test_every_column_that_is_not_declared_is_named(tmp_path):
    problems = problems_of(tmp_path, plain(("write: append", "write: merge\n  key: [id, x, y]")))

    assert [problem.partition(";")[0] for problem in problems] == [
        "16: target.key: no column is called 'x'",
        "16: target.key: no column is called 'y'",
    ]


def test_a_name_that_no_terminal_can_print_is_shown_by_its_code(tmp_path):
    content = plain(("device: text", '"\\e[2Jdevice": text'), added=PRODUCER)

    (problem,) = problems_of(tmp_path, content)

    assert problem == r"17: producer.name: no column is called 'device'; did you mean \x1b[2Jdevice?"


def test_a_run_on_arrival_is_of_no_day(tmp_path):
    content = plain(("in/*.csv", "'in/{{ ds }}.csv'"), added="schedule: on_arrival")

    (problem,) = problems_of(tmp_path, content, ds="2026-11-21")

    assert problem.startswith("17: schedule: a run on arrival belongs to no day")
    assert "wildcards" in problem
