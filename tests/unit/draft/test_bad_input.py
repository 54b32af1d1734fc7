"""Files that no draft can be made of, or that are partly broken: the message, the exit code, and nothing on stdout."""

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from onceload import cli
from onceload.draft import files, sample
from onceload.draft.draft import draft
from onceload.draft.names import topic_of
from onceload_jobs.files import reading
from tests.unit.draft.drafts import columns_of, draft_of

LINE = '{"a": 1}\n'
UNPRIVILEGED = 65534


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("file", "pattern", "refusal"),
    [
        (("a.jsonl", LINE), "b*.jsonl", (2, "found no file. Nothing was changed. Expected a pattern")),
        (("a.jsonl", LINE), "b/*.jsonl", (2, "found no folder")),
        (("a/b.jsonl", LINE), "a", (2, "found a folder. Nothing was changed. Expected '{}/a/*.jsonl'")),
        (("a/b/c.jsonl", LINE), "a", (2, "Expected a pattern of the files in it, such as '{}/a/**/*.jsonl'")),
        (("a/b/c.jsonl", LINE), "a/*", (2, "found only folders. Nothing was changed. Expected a pattern")),
        (("a[1].jsonl", LINE), "a[1].jsonl", (2, "a file whose name has wildcards in it")),
        (("a.jsonl", LINE), "{{ ds }}.jsonl", (2, "a pattern of files without {{ placeholders }}")),
        (("a.jsonl", ""), "*.jsonl", (1, "it is empty, so no types can be guessed")),
        (("a.jsonl", " \n\n"), "*.jsonl", (1, "it has no complete record yet. No draft was written")),
        (("a.jsonl", '{"a": 1'), "*.jsonl", (1, "it has no complete record yet")),
        (("a.csv", "a,b\n"), "*.csv", (1, "it has no complete record yet")),
        (
            ("a.csv", "# of 2026\na,b\n" + "1,2\n" * 9),
            "*.csv",
            (4, "its first line has 1 field, and most lines have"),
        ),
        (("a.csv.gz", gzip.compress(b"")), "*.gz", (1, "it has no complete record yet")),
        (("a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 9)[:12]), "*.gz", (1, "its compressed data ends early, after")),
        (("a.csv.gz", b"a,b\n1,2\n"), "*.gz", (4, "is damaged after 0 unpacked bytes")),
        (("a.jsonl", gzip.compress(LINE.encode())), "*", (4, "Give it a name that ends in .gz")),
        (("a.jsonl", bytes(range(256)) * 9), "*", (4, "it is a binary file")),
        (("a.csv", "ä;b\nü;1\n".encode("latin-1")), "*", (4, "another encoding; expected text in UTF-8")),
        (("a.csv", ("ä;b\n" + "x;1\n" * 99).encode("latin-1")), "*", (4, "Convert it with iconv -f ENCODING")),
        (("a.jsonl", LINE.encode("utf-16")), "*", (4, "it is text in UTF-16 or UTF-32")),
        (("a.csv", ("名,年\n" + "表,1\n" * 99).encode("shift_jis")), "*", (4, "Convert it with iconv -f ENCODING")),
        (("a.ndjson", '[1, "a"]\n[2, "b"]\n'), "*", (4, "its records are arrays, not objects")),
        (("a.json", '[[1, "a"], [2, "b"]]'), "*", (4, "its records are arrays, not objects")),
        (("a.json", "[1, 2]"), "*", (4, "its records are single values, not objects")),
        (("a.json", '[{"a": 1}]\n[{"a": 2}]'), "*", (4, "there is more text after its array: '[{\"a\": 2}]'")),
        (("a.csv", "\na,b\n1,2\n"), "*", (4, "its first line is empty")),
        (("a.csv", "\na\n1\n"), "*", (4, "its first line is empty")),
        (("a.json", '[{"a": 1'), "*", (1, "it has no complete record in its first 8 bytes")),
        (("a.json", "[]"), "*", (1, "it has no complete record in its first 2 bytes")),
        (("a.json", '{\n  "a": 1,\n  "b": 2\n'), "*", (4, "jq -c . a single document")),
        (("a.json", '{\n  "a": 1\n}\n{\n  "a": 2\n}\n'), "*", (4, "jq -c . a single document")),
        (("a.jsonl", "{a}\n{b}\n"), "*", (4, "none of its lines is a valid record")),
        (("a.jsonl", "{}\n{}\n"), "*", (2, "no field that can be a column (the records are empty)")),
        (("a.jsonl", '{"_sequence": 1}\n'), "*", (2, "'_sequence': its name is reserved. Rename it in the source")),
        (("a.jsonl", '{"a": "\\u0000"}\n'), "*", (4, "with at least one record that can be loaded")),
        (("a.txt", "some words\nof a text\n"), "*", (4, "neither its name nor its content says which format it has")),
        (
            ("a.txt", "00001Ada   12.50\n00002Ben    5.00\n"),
            "*",
            (4, "write a pipeline file with format: fixed"),
        ),
        (("a.parquet", b"PAR1 or not"), "*", (4, "it does not end with a Parquet footer")),
        (("a.parquet.gz", gzip.compress(b"PAR1")), "*", (4, "Decompress it")),
    ],
)
def test_what_cannot_be_drafted_is_refused(tmp_path, capsys, file, pattern, refusal):
    written(tmp_path, *file)
    code, said = refusal

    assert cli.main(["draft", str(tmp_path / pattern)], {}) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said.replace("{}", str(tmp_path)) in shown.err
    assert "Traceback" not in shown.err


def test_a_folder_of_several_formats_is_refused_with_a_pattern_for_each(tmp_path, capsys):
    for name in ("a.jsonl", "b.csv", "c.csv", "_SUCCESS"):
        written(tmp_path, name, "x")

    assert cli.main(["draft", f"{tmp_path}/*"], {}) == 2
    said = capsys.readouterr().err
    assert "files of several formats (2 csv, 1 of unknown format, 1 jsonl)" in said
    assert f"such as '{tmp_path}/*.csv' or '{tmp_path}/*.jsonl'. Draft a pipeline file for each format" in said


def test_files_without_a_common_column_are_refused(tmp_path, capsys):
    written(tmp_path, "a.csv", "id,name\n1,x\n")
    written(tmp_path, "b.csv", "7,y\n8,z\n")

    assert cli.main(["draft", f"{tmp_path}/*"], {}) == 2
    assert "a.csv with the header 'id', 'name' and b.csv with the header '7', 'y'" in capsys.readouterr().err


def test_a_pattern_that_the_shell_has_expanded_is_refused(capsys):
    assert cli.main(["draft", "a.jsonl", "b.jsonl"], {}) == 2
    assert "put it in quotes" in capsys.readouterr().err


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read every file."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(UNPRIVILEGED)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users may enter, unlike the temporary folders of a test."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_that_cannot_be_entered_is_named(shared, capsys):
    (shared / "closed").mkdir(mode=0o700)
    written(shared / "closed", "a.jsonl", LINE)
    with unprivileged():
        assert cli.main(["draft", f"{shared}/closed/*.jsonl"], {}) == 2
    said = capsys.readouterr()
    assert (said.out, "Permission denied" in said.err, "Error" in said.err) == ("", True, False)


def test_files_without_permission_are_refused_or_noted(shared, capsys):
    # The other user may have no right to read modules that are imported late.
    assert cli.main(["draft", str(written(shared, "open.jsonl", LINE))], {}) == 0
    (shared / "open.jsonl").unlink()
    capsys.readouterr()
    written(shared, "secret.jsonl", LINE).chmod(0)
    with unprivileged():
        assert cli.main(["draft", f"{shared}/*.jsonl"], {}) == 1
    said = capsys.readouterr()
    assert (said.out, "secret.jsonl: Permission denied. No draft was written." in said.err) == ("", True)

    written(shared, "open.jsonl", LINE)
    with unprivileged():
        found = draft(f"{shared}/*.jsonl")
    assert found.records == 1
    assert "Permission denied" in found.notes[0]


def test_a_broken_line_is_noted_with_its_reason_and_its_place(tmp_path):
    text = draft_of(tmp_path / "a.jsonl", LINE * 2 + "{broken\n" + LINE + '{"a": "\\ud800"}\n')

    start = "# 1 of 5 records will go to quarantine, such as a.jsonl from byte"
    assert f"{start} 18 (line 3): invalid JSON at character 1\n" in text
    assert f"{start} 35 (line 5): column 'a': an unpaired surrogate is not a character\n" in text
    assert "  a: bigint\n" in text


def test_a_broken_file_among_others_is_noted(tmp_path):
    written(tmp_path, "a.jsonl", LINE)
    written(tmp_path, "b.jsonl", b"\0\1\2")
    written(tmp_path, "c.jsonl", "")

    text = draft(str(tmp_path / "*.jsonl")).text

    assert "# Drafted by onceload draft from 1 record of 1 file, out of 2.\n" in text
    assert f"# {tmp_path}/b.jsonl was refused: it contains bytes that never occur in text" in text
    assert "# 1 of the files are empty" in text


def test_only_a_bounded_part_of_a_huge_file_is_read(tmp_path, monkeypatch):
    read = list[int]()

    def counting(url: str, *, offset: int, size: int) -> bytes:
        read.append(size)
        return reading.read_at(url, offset=offset, size=size)

    monkeypatch.setattr(sample, "read_at", counting)
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.write(b'{"n": 1, "a": 1}\n' * 1_000)
        file.seek(2**33)
        file.write(b'\n{"n": 2, "b": 1}\n')
        file.seek(2**34)
        file.write(b'\n{"n": 3, "c": 1.5}\n')

    found = draft(str(path))

    assert sum(read) == 3 * sample.PIECE_BYTES
    assert "  c: numeric(12,2)\n" in found.text
    assert "(a part of the records)" in found.text


@pytest.mark.parametrize("quoted_newlines", [False, True])
def test_records_are_whole_wherever_a_piece_of_a_file_begins(tmp_path, quoted_newlines):
    value = '"a\n""b"""' if quoted_newlines else "a"
    rows = "".join(f"{number},{value},{'x' * (number % 97)}\n" for number in range(30_000))

    found = draft(str(written(tmp_path, "a.csv", f"id,v,w\n{rows}")))

    assert found.quarantined == 0
    assert found.records > 4_000
    assert "a part of the records" in found.text


def test_a_few_of_many_files_are_read_and_the_first_and_the_last_are_among_them(tmp_path):
    for number in range(50):
        written(tmp_path, f"{number:02}.jsonl", f'{{"f{number:02}": 1}}\n')

    found = draft(str(tmp_path / "*.jsonl"))

    assert found.source == "5 records of 5 files, out of 50"
    assert len(found.text.split("columns:\n")[1].split("target:")[0].splitlines()) == files.FILES_MAX
    assert "f00" in found.text
    assert "f49" in found.text


def test_lines_of_some_megabytes_are_read(tmp_path):
    line = json.dumps({"a": "x" * 3_000_000}) + "\n"

    assert columns_of(tmp_path / "a.jsonl", line * 3) == {"a": "text"}
    assert columns_of(tmp_path / "a.jsonl.gz", gzip.compress(line.encode() * 3)) == {"a": "text"}


def test_more_columns_than_a_table_or_a_row_can_have_are_reported(tmp_path):
    text = draft_of(tmp_path / "a.jsonl", json.dumps({f"c{number}": number for number in range(1_620)}) + "\n")

    assert "\n# the draft has 1,597 columns. A row must fit into 8 kB." in text
    assert "\n# 23 fields left out, because a table has at most 1,597 columns\n" in text
    assert '  c1596: bigint\n  # not loaded: the field "c1597", because a table has at most 1,597 columns\n' in text
    assert "  # not loaded: 3 more fields\n" in text


def test_a_first_line_without_an_end_is_refused(tmp_path, capsys):
    written(tmp_path, "a.jsonl", b'{"a": "' + b"x" * 2**25)

    assert cli.main(["draft", f"{tmp_path}/a.jsonl"], {}) == 4
    assert "its first line does not end within 16,777,216 bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "a: text\npipeline: stolen",
        'x"\n# ',
        "\u2028pipeline: stolen",
        "{a: b}",
        "&a *b !c",
        "~",
        "null",
        "- a",
        "?",
        "'",
        "\\",
        "\x85\ufeff\x7f",
        "%YAML 1.1",
        "---",
        "${HOME}",
    ],
)
def test_no_name_of_the_data_adds_a_key_or_ends_a_comment(tmp_path, name):
    lines = json.dumps({name: 1, "n": 1, f"_sequence{name}": 1, name * 70: 1}) + "\n"

    text = draft_of(tmp_path / "a.jsonl", lines)

    assert list(yaml.safe_load(text)) == ["pipeline", "source", "columns", "target"]
    assert set(yaml.safe_load(text)["columns"]) == {name, "n"}
    assert columns_of(tmp_path / "a.jsonl", lines) == {name: "bigint", "n": "bigint"}
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("landing/orders/*.jsonl", "orders"),
        ("landing/orders/**/*.jsonl.gz", "orders"),
        ("landing/Web Orders/2026/part-*.parquet", "web_orders"),
        ("orders-2026-11-20.csv", "orders"),
        ("in/*-shop.orders-v2.csv.zst", "shop_orders_v2"),
        ("s3://bucket/clicks/*", "clicks"),
        ("/data/2026/11/*.csv", "records"),
        ("*.csv", "records"),
        ("Bestellungen für Köln.csv", "bestellungen_für_köln"),
        ("user.csv", "user"),
        (f"{'ä' * 50}.csv", "ä" * 31),
        ('a"b; DROP TABLE c.csv', "a_b_drop_table_c"),
    ],
)
def test_the_pipeline_is_named_after_its_file_or_folder(pattern, topic):
    assert topic_of(pattern) == topic
