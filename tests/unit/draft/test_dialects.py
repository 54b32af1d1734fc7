"""How a CSV file is written: found in its first records."""

import gzip

import pytest

from onceload.draft.draft import draft
from onceload_jobs.pipeline.declared import CsvOptions, MissingColumns
from tests.unit.draft.drafts import columns_of, declared_of, draft_of


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\n1,2\n", {}),
        ("a;b\n1,5;2,5\n", {"delimiter": ";"}),
        ("1,5;2,5\n3,5;4,5\n", {"delimiter": ";", "header": False}),
        ("a,b\n" + "1,x|y\n" * 9 + "3,4,x|y\n", {}),
        ("a\tb\n1,2\t3\n", {"delimiter": "\t"}),
        ("a|b\n1|2\n", {"delimiter": "|"}),
        ("a\n1\n2\n", {}),
        ("a\nx, y\nz\n", {"delimiter": "\t"}),
        (",a\n0,x\n1,y\n", {}),
        ("1,x\n2,y\n", {"header": False}),
        ("x,y\nx,z\n", {"header": False}),
        ("a,b\n'x, y',1\n'z',2\n", {"quote": "'"}),
        ('a,b\n5" pipe,1\nx,2\n', {"quote": ""}),
        ('a,b\n"x \\" y",1\n"z",2\n', {"escape": "\\"}),
        ('a,b\n"x\ny",1\n"z",2\n', {"multiline": True}),
        ('a,b\n"x",1\n"z,2\n"x",3\n"y",4\n"z",5\n', {}),
        ("a,b\n1,NA\n2,3\n", {"null": "NA"}),
        ("a,b\n1,\\N\n2,x\n", {"null": "\\N"}),
        ("a,b\nNULL,x\ny,\n", {}),
        ("\ufeffa,b\n1,2\n", {}),
    ],
)
def test_the_options_of_a_file(tmp_path, content, expected):
    declared = declared_of(tmp_path / "x.csv", content)

    assert declared.source.csv == CsvOptions(**expected)


def test_a_first_newline_in_quotes_may_come_late(tmp_path):
    rows = "".join(f'{number},"x"\n' for number in range(20_000))

    assert declared_of(tmp_path / "x.csv", f'a,b\n{rows}1,"x\n\ny,z"\n').source.csv == CsvOptions(multiline=True)
    assert declared_of(tmp_path / "x.csv", f'a,b\n{rows}1,"x\n2,"x"\n').source.csv == CsvOptions()


def test_a_last_line_without_a_newline_counts(tmp_path):
    declared = declared_of(tmp_path / "x.csv", "a,b\n1,2\n3,4")

    assert declared.source.sealed_after_s == 0


def test_a_last_line_that_is_cut_off_does_not_count(tmp_path):
    declared = declared_of(tmp_path / "x.csv", "a,b\n1,2\n3")

    assert declared.source.sealed_after_s is None


def test_a_column_that_some_files_lack_is_null_there(tmp_path):
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv.gz").write_bytes(gzip.compress(b"c,a\n3,4\n"))

    found = draft(str(tmp_path / "*.csv*"))

    assert (found.records, found.quarantined) == (2, 0)
    assert f"missing_columns: {MissingColumns.IGNORE}\n" in found.text
    assert found.text.count("# not every file has this column: it is null there\n") == 2


def test_a_name_that_several_fields_have_is_left_out(tmp_path):
    draft = draft_of(tmp_path / "x.csv", "a,b,b,,_sequence\n1,2,3,4,5\n")

    assert '# not loaded: the field "b", because several fields of a record have this name' in draft
    assert '# not loaded: the field "", because it has no name' in draft
    assert '# not loaded: the field "_sequence", because its name is reserved' in draft
    assert columns_of(tmp_path / "x.csv", "a,b,b,,_sequence\n1,2,3,4,5\n") == {"a": "bigint"}


def test_a_file_of_another_name_is_recognised_by_its_content(tmp_path):
    assert 'delimiter: "|"' in draft_of(tmp_path / "x.dat", "a|b\n1|2\n")
    assert "format: jsonl" in draft_of(tmp_path / "y.dat", '{"a": 1}\n')
    assert "# the names of the files say CSV, but they hold JSON lines" in draft_of(tmp_path / "z.csv", '{"a": 1}\n')


def test_decimals_with_a_comma_are_texts_with_a_comment(tmp_path):
    draft = draft_of(tmp_path / "x.csv", "id;price\n1;1.234,50\n2;3,00\n")

    assert "# decimals with a comma, which no numeric type accepts: convert them in a transform\n  price: text" in draft
