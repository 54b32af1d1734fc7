import subprocess

import pytest

from tests import words
from tests.words import PAGE, Rules

TABLE = """
| not used | instead | fine |
| --- | --- | --- |
| `grok/groks` | understand | |
| `yore` | the past | `yore apart` |
| `is/are hither.` | is here | |
| `Lo and` | see | |
"""
RULES = Rules(TABLE)


def found(text, suffix):
    return list(RULES.broken_in(text, suffix))


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        pytest.param("Then grok it.\n", ".md", id="a sentence"),
        pytest.param("| when | Grok it |\n", ".md", id="a cell"),
        pytest.param("x = 1  # grok it\n", ".py", id="a comment"),
        pytest.param('def f():\n    """Grok it."""\n', ".py", id="a docstring"),
        pytest.param('raise Error(f"{x}: grok it")\n', ".py", id="a message"),
        pytest.param('raise Error(\n    "please "\n    f"grok {x}"\n)\n', ".py", id="a message in parts"),
        pytest.param("SQL = '''SELECT 1; -- grok it\n'''\n", ".py", id="a comment of SQL in a string"),
        pytest.param("def test_they_grok_it(): ...\n", ".py", id="the name of a test"),
        pytest.param('pytest.param(1, id="they grok it")\n', ".py", id="the id of a case"),
        pytest.param("SELECT 1 -- grok it\n", ".sql", id="SQL"),
        pytest.param("key: value # grok it\n", ".yaml", id="a comment of YAML"),
        pytest.param('summary: "please grok it"\n', ".yaml", id="a text in YAML"),
        pytest.param('{"description": "Grok it."}\n', ".json", id="a text in JSON"),
        pytest.param("page = '<p class=\"x\">{{ n }} to grok</p>'\n", ".py", id="HTML"),
        pytest.param("check: ## Grok it\n", "", id="a Makefile"),
    ],
)
def test_a_word_is_found_in(text, suffix):
    (broken,) = found(f"\n{text}", suffix)

    line = 2 + text[: text.lower().index("grok")].count("\n")
    assert broken.lower() == f"{line}: 'grok': understand"


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        pytest.param("```\ngrok it\n```\n", ".md", id="a block of code"),
        pytest.param("Call `grok it` now.\n", ".md", id="code in a sentence"),
        pytest.param("Postgres says \"a yore\", not 'x'.\n", ".md", id="quoted text"),
        pytest.param("grok = yore + self.yore\ndef grok(yore): ...\n", ".py", id="names"),
        pytest.param('x = {"grok": get("yore")}\n', ".py", id="a key"),
        pytest.param('code = "yore = x and y.yore"\n', ".py", id="code in a string"),
        pytest.param('# Postgres says "grok it".\n', ".py", id="text of Postgres in a comment"),
        pytest.param("x = 'say \"grok it\" now'\n", ".py", id="text of Postgres in a message"),
        pytest.param('SQL = "SELECT grok FROM yore"\n', ".py", id="SQL in a string"),
        pytest.param("SELECT grok FROM yore\n", ".sql", id="SQL"),
        pytest.param("grok: x\n", ".yaml", id="a key of YAML"),
        pytest.param("They are yore apart, nor re-yore.\n", ".md", id="where it is fine"),
        pytest.param("It is hither and thither; lo and behold.\n", ".md", id="what only looks like it"),
    ],
)
def test_a_word_is_not_looked_for_in(text, suffix):
    assert found(text, suffix) == []


def test_an_entry_may_end_with_its_clause_begin_a_sentence_and_cross_lines():
    text = "# All files are\n# hither. Lo\n# and behold, in yore.\n"

    assert found(text, ".py") == [
        "1: 'are hither': is here",
        "2: 'Lo and': see",
        "3: 'yore': the past",
    ]


def test_the_page_has_an_entry_and_a_replacement_in_each_row():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]

    assert len(rows) > 20
    assert all(row.count("|") == 4 and row.split("|")[2].strip() for row in rows)


def test_the_command_prints_each_word_with_its_file_and_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "PAGE", tmp_path / "words.md")
    (tmp_path / "words.md").write_text(TABLE)
    (tmp_path / "page.md").write_text("Good.\nIn yore.\n")
    for arguments in (["init", "-q"], ["add", "page.md", "words.md"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)

    assert words.main() == 1
    assert capsys.readouterr().out == "page.md:2: 'yore': the past\n"
    (tmp_path / "page.md").write_text("Good.\n")
    assert words.main() == 0
