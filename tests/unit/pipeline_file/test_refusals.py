"""Each value that cannot be meant is refused with its line, and with the fix."""

from pathlib import Path

import pytest

from onceload.pipeline_file import PipelineFileRefused, read_pipeline
from tests.unit.pipeline_file.files import PLAIN, plain, problems_of


def refusal(folder: Path, content: str | bytes, **values: str) -> str:
    """The only problem of a file."""
    (problem,) = problems_of(folder, content, **values)
    return problem


def source(key: str) -> str:
    return plain(("format: csv", f"format: csv\n  {key}"))


def option(key: str) -> str:
    return plain(("header: true", key))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (plain(("format: csv", "fromat: csv")), "4: source.fromat: unknown key; did you mean format?"),
        (plain(("publish: staged", "publihs: direct")), "16: publihs: unknown key; did you mean publish?"),
        (plain(added="<<: {pipeline: x}"), "17: <<: unknown key; merge keys are not supported, write the keys out"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path, content, expected):
    assert expected in problems_of(tmp_path, content)


def test_an_unknown_key_that_is_like_no_other_is_refused_with_all_of_them(tmp_path):
    assert refusal(tmp_path, plain(("write: append", "zzz: 1"))) == (
        "15: target.zzz: unknown key; known keys: table, write, key, deleted, newer_file, lineage"
    )


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ("pipeline: events\n", "1: pipeline: is missing; add `pipeline: events`"),
        ("  path: in/*.csv\n", "2: source.path: is missing; add `path: in/*.jsonl`"),
        ("  format: csv\n", "2: source.format: is missing; add `format: jsonl`"),
        ("  table: public.events\n", "13: target.table: is missing; add `table: public.events`"),
    ],
)
def test_a_key_that_is_missing_is_asked_for(tmp_path, gone, expected):
    assert refusal(tmp_path, plain((gone, ""))) == expected


def test_columns_that_are_missing_are_asked_for(tmp_path):
    content = "pipeline: a\nsource: {path: a, format: csv}\ntarget: {table: a}\n"

    expected = "columns: expected at least one column; add it below, such as `id: bigint not null`"
    assert refusal(tmp_path, content) == f"1: {expected}"
    assert refusal(tmp_path, content + "columns:\n") == f"4: {expected}"


@pytest.mark.parametrize(
    ("declared", "meant"),
    [
        ("string", "text"),
        ("STRING not null", "text"),
        ("String[]", "text"),
        ("varchar2(30)", "text"),
        ("float", "double precision"),
        ("datetime", "timestamptz"),
        ("json", "jsonb"),
        ("decimal", "numeric(12,2)"),
        ("bignit", "bigint"),
        ("timestmptz not null", "timestamptz"),
    ],
)
def test_a_type_of_another_language_or_a_misspelled_one_is_refused_with_the_one_that_was_meant(
    tmp_path, declared, meant
):
    assert refusal(tmp_path, plain(("device: text", f"device: {declared}"))).endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("declared", ["numeric", "numeric(99)", "text(3)", "point in the plane"])
def test_no_type_is_suggested_where_the_type_is_known_or_like_no_other(tmp_path, declared):
    assert "did you mean" not in refusal(tmp_path, plain(("device: text", f"device: {declared}")))


def test_a_repeated_key_is_refused_where_it_is_repeated(tmp_path):
    assert refusal(tmp_path, plain(("seq: bigint", "seq: bigint\n  id: text"))) == (
        "11: columns.id: this key appears twice; remove one of them"
    )


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("no", 'no, which YAML reads as a boolean; text needs quotes: "no"'),
        ("On", 'On, which YAML reads as a boolean; text needs quotes: "On"'),
        ("", 'nothing; the empty text is ""'),
        ("NULL", 'NULL, which YAML reads as nothing; text needs quotes: "NULL"'),
        ("2026-11-21", '2026-11-21, which YAML reads as a date; text needs quotes: "2026-11-21"'),
        ("17", '17, which YAML reads as a number; text needs quotes: "17"'),
        ("1e3", '1e3, which YAML reads as a number; text needs quotes: "1e3"'),
        ("1.5", '1.5, which YAML reads as a number; text needs quotes: "1.5"'),
        ("!!python/name:os.system x", 'x, which YAML reads as a type of its own; text needs quotes: "x"'),
        ("[a]", "a list"),
        ("{{ ds }}", "a mapping; text that starts with { needs quotes"),
    ],
)
def test_values_that_yaml_does_not_read_as_text_are_refused_with_a_hint_to_quote_them(tmp_path, written, found):
    assert refusal(tmp_path, plain(("in/*.csv", written))) == f"3: source.path: expected text, found {found}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (plain(("pipeline: events", 'pipeline: ""')), "1: pipeline: expected a printable name of 1 to 200 characters"),
        (plain(("in/*.csv", '" "')), "3: source.path: expected text that is not empty, found ' '"),
        (plain(("in/*.csv", '"a\\0"')), "3: source.path: expected text without the character NUL"),
        (plain(("in/*.csv", "|\n    in/*.csv")), "3: source.path: expected a path on one line, found 'in/*.csv\\n'"),
        (
            plain(("in/*.csv", "in/**.csv")),
            "3: source.path: expected `**` only as a whole part of the path, as in a/**/b",
        ),
        (
            plain(("in/*.csv", "in/..")),
            "3: source.path: expected a pattern of files, such as folder/*.jsonl, found in/..",
        ),
        (source("identity: inode"), "5: source.identity: expected one of path, content, found 'inode'"),
        (source("sealed: soon"), "5: source.sealed: expected never, always, or a duration with its unit"),
        (source("sealed: 5"), "5: source.sealed: expected never, always, or a duration with its unit"),
        (source("chunk_bytes: 0"), "5: source.chunk_bytes: expected a size of 1 to 1073741824 bytes, found 0"),
        (source("chunk_bytes: 2GiB"), "5: source.chunk_bytes: expected a size of 1 to 1073741824 bytes"),
        (source("chunk_bytes: 1_000"), "5: source.chunk_bytes: expected a size such as 32MB, 1MiB or 4096"),
        (source("chunk_bytes: 32M"), "5: source.chunk_bytes: expected a size such as 32MB, 1MiB or 4096"),
        (source("record_bytes_max: 257MiB"), "5: source.record_bytes_max: expected a size of 1 to 268435456 bytes"),
        (option("header: maybe"), "6: source.options.header: expected true or false, found 'maybe'"),
        (option("delimiter: ;;"), "6: source.options.delimiter: expected one character of one byte"),
        (option("delimiter: |"), "6: source.options.delimiter: expected one character of one byte"),
        (option("delimiter: é"), "6: source.options.delimiter: expected one character of one byte"),
        (option('delimiter: "\\n"'), "6: source.options.delimiter: expected one character of one byte"),
        (option("quote: ~"), "6: source.options.quote: expected text, found ~, which YAML reads as nothing"),
        (option("escape: ''"), "6: source.options.escape: expected one character of one byte"),
        (option("null:"), '6: source.options.null: expected text, found nothing; the empty text is ""'),
        (option("multiline: 1"), "6: source.options.multiline: expected true or false, found 1"),
        (plain(("device: text", "device: varchar2")), "9: columns.device: expected one of text, varchar,"),
        (plain(("device: text", "device: 5")), "9: columns.device: expected text, found 5"),
        (plain(("device: text", f"device: varchar({'9' * 5_000})")), "9: columns.device: expected a Postgres type"),
        (plain(("device: text", "'': text")), "9: columns.: expected a column name of 1 to 63 bytes"),
        (plain(("device: text", f"{'é' * 32}: text")), f"9: columns.{'é' * 32}: expected a column name of 1 to 63"),
        (plain(("device: text", '"a\\0": text')), "9: columns.a\\x00: expected a column name of 1 to 63 bytes"),
        (plain(("device: text", "_producer_id: text")), "9: columns._producer_id: names that begin with _producer_id"),
        (plain(("device: text", "_sequence: text")), "9: columns._sequence: names that begin with _producer_id"),
        (plain(("device: text", "_message: text")), "9: columns._message: _message is reserved by"),
        (plain(("device: text", "_position: text")), "9: columns._position: _position is reserved by"),
        (plain(("device: text", "[a]: text")), "9: expected a key, found a list"),
        (plain(added="unknown_fields: drop"), "17: unknown_fields: expected one of ignore, fail, add, found 'drop'"),
        (plain(added="producer: {name: device}"), "17: producer.sequence: is missing; add `sequence: <column>`"),
        (
            plain(added=f"producer: {{name: {'a' * 64}, sequence: seq}}"),
            "17: producer.name: expected a column name of at",
        ),
        (plain(added="producer: device"), "17: producer: expected keys with values below it, found 'device'"),
        (plain(added="producer: {name: device, sequence: seq, order: no}"), "17: producer.order: expected one of"),
        (plain(added="message_id: {columns: [id]}"), "17: message_id.keep: is missing; add `keep: 30d`"),
        (plain(added="message_id: {columns: [id], keep: 30}"), "17: message_id.keep: expected a duration with its"),
        (plain(added="message_id: {columns: [id], keep: 12h}"), "17: message_id.keep: expected whole days"),
        (plain(added="message_id: {columns: [], keep: 1d}"), "17: message_id.columns: expected at least one name"),
        (
            plain(added=f"message_id: {{columns: {[f'c{number}' for number in range(101)]}, keep: 1d}}"),
            "17: message_id.columns: expected at most 100 names",
        ),
        (plain(added="message_id: {columns: id, keep: 1d}"), "17: message_id.columns: expected a list, such as [id]"),
        (plain(added="message_id: {columns: [id, id], keep: 1d}"), "17: message_id.columns: expected each name once"),
        (plain(added="transform: ''"), "17: transform: expected text that is not empty, found ''"),
        (plain(("public.events", "my-table")), "14: target.table: expected schema.table or table"),
        (plain(("public.events", "a.b.c")), "14: target.table: expected schema.table or table"),
        (plain(("public.events", "Events")), "14: target.table: expected lower case"),
        (plain(("public.events", "a" * 64)), "14: target.table: expected names of at most 63 bytes"),
        (plain(("public.events", "onceload.ledger")), "14: target.table: expected a schema of your own"),
        (plain(("public.events", "pg_catalog.a")), "14: target.table: expected a schema of your own"),
        (plain(("public.events", "onceload_stage.a")), "14: target.table: expected a schema of your own"),
        (plain(("write: append", "write: upsert")), "15: target.write: expected one of append, merge, found 'upsert'"),
        (plain(("write: append", "key:")), "15: target.key: expected a list, such as [id], found nothing"),
        (plain(("write: append", "lineage: 0")), "15: target.lineage: expected true or false"),
        (plain(("publish: staged", "publish: later")), "16: publish: expected one of staged, direct"),
        (plain(added="delivery: {mode: fast}"), "17: delivery.mode: expected one of session, shared, key_shared"),
        (plain(added="delivery: {mode: session}"), "17: delivery.mode: mode session needs a fixed number of sessions"),
        (plain(added="delivery: {sessions: 0}"), "17: delivery.sessions: expected an integer in plain digits"),
        (plain(added="delivery: {ack_deadline: 0s}"), "17: delivery.ack_deadline: expected"),
        (plain(added="delivery: {deliveries_max: 0}"), "17: delivery.deliveries_max: expected an integer"),
        (plain(added="delivery: {open_max: 100001}"), "17: delivery.open_max: expected an integer"),
        (plain(added="on_rewrite: ignore"), "17: on_rewrite: expected one of stop, new_generation, replace"),
        (plain(added="quality: {keep: 1w}"), "17: quality.keep: expected a duration with its unit"),
        (
            plain(added="quality: {quarantined_max: 0.1}"),
            "17: quality.quarantined_max: expected a percentage such as 0.1%",
        ),
        (
            plain(added="quality: {quarantined_max: 101%}"),
            "17: quality.quarantined_max: expected a percentage such as 0.1%",
        ),
        (
            plain(added="quality: {quarantined_max: -1}"),
            "17: quality.quarantined_max: expected a percentage such as 0.1%",
        ),
        (plain(added="guarantee: maybe"), "17: guarantee: expected one of exactly_once, at_least_once"),
        (plain(added="snapshot: {every_commits: 0}"), "17: snapshot.every_commits: expected an integer in plain"),
        (plain(added="snapshot: {every: 120}"), "17: snapshot.every: expected a duration with its unit"),
        (plain(added="snapshot: {kept: 0}"), "17: snapshot.kept: expected an integer in plain digits, 1 to"),
        (plain(added="schedule: hourly"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: '61 * * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: '*/0 * * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: 'abc * * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: '0 0 * * xyz'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: 'mon * * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: '0 0 30 2 *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: '* * * * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: 'R * * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="schedule: '0 h(1-5) * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added=f"schedule: '{'0-59,' * 10_000}0 * * * *'"), "17: schedule: expected five cron fields in range"),
        (plain(added="limits: {producers_max: 0}"), "17: limits.producers_max: expected an integer in plain"),
        (plain(added="limits: {islands_max: none}"), "17: limits.islands_max: expected an integer in plain"),
        (plain(added="limits: {forget_idle_after: 0s}"), "17: limits.forget_idle_after: expected a duration with its"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_line(tmp_path, content, expected):
    assert refusal(tmp_path, content).startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "",
            "1: the file is empty; start with a key, such as `pipeline: <name>`",
        ),
        (
            "# only words\n",
            "1: the file is empty; start with a key, such as `pipeline: <name>`",
        ),
        ("# words\n- a\n", "2: expected keys with values, such as `pipeline: events`, found a list"),
        ("events", "1: expected keys with values, such as `pipeline: events`, found 'events'"),
        (b"a: 1\nb: \xff\n", "2: expected UTF-8, found the byte 0xff; save the file as UTF-8"),
        (PLAIN.encode("utf-16"), "1: expected UTF-8, found the byte 0xff; save the file as UTF-8"),
        ("a: 1\nb: \x01\n", "2: expected printable text, found control characters are not allowed; remove it"),
        (b"#" * (2**20 + 1), "1: the file is larger than 1048576 bytes; a pipeline file is about a page"),
    ],
)
def test_text_that_is_not_a_pipeline_file_is_refused_as_a_whole(tmp_path, content, expected):
    assert refusal(tmp_path, content) == expected


@pytest.mark.parametrize(
    ("content", "line", "fix"),
    [
        (plain(("  path:", "\tpath:")), 3, "indent with spaces, not with tabs"),
        (plain(added="---\npipeline: more\n"), 17, "a file contains one pipeline"),
        (plain(added="schedule: */5 * * * *"), 17, "needs quotes"),
        (plain(("in/*.csv", "{{ ds }}/*.csv")), 3, "needs quotes"),
        (plain(("in/*.csv", "'in/*.csv")), 3, "needs quotes, and quotes must be closed"),
        (plain(("in/*.csv", "in: *.csv")), 3, "needs quotes"),
        (option("delimiter: ||"), 6, "needs quotes"),
        (plain(added="transform: *nothing"), 17, "needs quotes"),
        (plain(added="key: [a"), 17, "needs quotes"),
    ],
)
def test_text_that_is_not_yaml_is_refused_where_it_begins(tmp_path, content, line, fix):
    problem = refusal(tmp_path, content)

    assert problem.startswith(f"{line}: invalid YAML: ")
    assert fix in problem


def test_a_billion_laughs_are_not_laughed(tmp_path):
    lines = ["a0: &a0 [lol, lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))]

    problems = problems_of(tmp_path, plain(("device: text", "device: *a11"), added="").replace(
        "pipeline: events\n", "\n".join([*lines, "pipeline: events\n"])
    ))  # fmt: skip

    assert "21: columns.device: expected text, found a list" in problems
    assert sum("unknown key" in problem for problem in problems) == len(lines)


def test_a_list_inside_itself_has_an_end(tmp_path):
    assert refusal(tmp_path, plain(("write: append", "key: &key [*key]"))).startswith("15: target.key: expected text")


@pytest.mark.parametrize("content", ["[" * 100_000, "a: " + "{b: " * 5_000, "- " * 300_000])
def test_a_file_that_is_too_deep_or_too_large_is_refused_without_reading_it_all(tmp_path, content):
    assert refusal(tmp_path, content).startswith("1: expected at most 20000 values in 20 levels")


def test_a_long_text_that_many_aliases_lead_to_is_looked_at_briefly(tmp_path):
    """Ten thousand times a megabyte would take minutes, were it read each time."""
    columns = "\n".join(f"  c{n}: *long" for n in range(9_000))

    problems = problems_of(tmp_path, plain(("device: text", f"device: &long 1{'1' * 500_000}e3\n{columns}")))

    assert problems[0].startswith("7: columns: expected at most 1597 columns")


def test_a_hundred_problems_are_enough(tmp_path):
    problems = problems_of(tmp_path, plain(added="\n".join(f"zz{n}: 1" for n in range(5_000))))

    assert len(problems) == 101
    assert problems[-1].endswith(" more problems")


def test_every_problem_is_found_in_one_go_and_in_the_order_of_the_file(tmp_path):
    problems = problems_of(
        tmp_path,
        plain(("format: csv", "format: xml"), ("device: text", "device: txt"), ("write: append", "wirte: merge"),
              added="snapshot: {kept: 0}\nguarantee: maybe\n"),
    )  # fmt: skip

    assert [problem.partition(":")[0] for problem in problems] == ["4", "9", "15", "17", "18"]


def test_a_problem_that_was_reported_once_is_not_repeated_as_a_contradiction(tmp_path):
    content = plain(("write: append", "write: upsert\n  key: [id]"), ("seq: bigint", "seq: bigit"))

    problems = problems_of(tmp_path, content + "producer: {name: device, sequence: seq}\n")

    assert [problem.split(": ")[1] for problem in problems] == ["columns.seq", "target.write"]


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        ("{{ ds }}/a", {}, "a value for ds, found none; add --set ds=2026-11-21"),
        ("{{ b }}/{{ds}}", {}, "a value for b, ds, found none; add --set b=... --set ds=2026-11-21"),
        (
            "{{ ds | upper }}",
            {"ds": "a"},
            "placeholders that are plain names, such as {{ ds }}, found '{{ ds | upper }}'",
        ),
        ("{{ ds", {"ds": "a"}, "placeholders that are plain names, such as {{ ds }}, found '{{ ds'"),
        ("{{ ds }}/a", {"ds": "a", "dss": "b"}, "--set for its placeholders only (ds), found 'dss'"),
        ("{{ b }}/{{ds}}", {"da": "a"}, "--set for its placeholders only (b, ds), found 'da'"),
        ("a", {"ds": "a"}, "no --set, as it has no placeholder, found 'ds'"),
    ],
)
def test_placeholders_and_values_that_do_not_fit_each_other_are_refused(tmp_path, path, values, expected):
    assert refusal(tmp_path, plain(("in/*.csv", f'"{path}"')), **values) == f"3: source.path: expected {expected}"


@pytest.mark.parametrize(
    "value",
    ["", " ", "*", "a?", "[ab]", "{a,b}", "..", "a/../b", "/etc", "\\etc", "s3://b", "zip::a", "a\nb", "{{ ds }}"],
)
def test_a_value_that_would_lead_away_from_the_path_is_refused(tmp_path, value):
    problem = refusal(tmp_path, plain(("in/*.csv", '"in/{{ ds }}/*"')), ds=value)

    assert problem.startswith("3: source.path: expected a value for ds without wildcards")
    assert problem.endswith("; set another with --set ds=...")


@pytest.mark.parametrize("name", ["nowhere.yaml", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name):
    with pytest.raises(PipelineFileRefused, match="1: the file cannot be read: "):
        read_pipeline(tmp_path / name)
