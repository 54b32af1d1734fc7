"""The schema of pipeline files, where editors find it."""

import json

import pytest

from onceload import cli
from onceload.editor import offer, schema_text

SETTINGS = ".vscode/settings.json"
ENTRY = {"./.vscode/onceload.schema.json": ["pipelines/*.yaml"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".vscode").mkdir()
    return tmp_path


def test_the_schema_is_printed(capsys):
    assert cli.main(["schema"], {}) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Onceload pipeline"


def test_an_editor_without_settings_gets_them(folder, capsys):
    (folder / ".vscode").rmdir()

    assert [cli.main(["schema", "--editor"], {}) for _ in range(2)] == [0, 0]

    assert json.loads((folder / SETTINGS).read_text()) == {"yaml.schemas": ENTRY}
    assert (folder / ".vscode/onceload.schema.json").read_text() == schema_text()
    assert f"# yaml-language-server: $schema={folder}/.vscode/onceload.schema.json" in capsys.readouterr().err


@pytest.mark.parametrize("indent", [2, 4, "\t"])
def test_settings_keep_everything_else_and_their_layout(folder, indent):
    schemas: dict[str, object] = {"a.json": "a.yaml", "./.vscode/onceload.schema.json": "b.yaml"}
    before = {"editor.rulers": [80], "yaml.schemas": schemas}
    (folder / SETTINGS).write_text(json.dumps(before, indent=indent) + "\n")

    offer(folder, pattern="é.yaml")

    schemas["./.vscode/onceload.schema.json"] = ["b.yaml", "é.yaml"]
    assert (folder / SETTINGS).read_text() == json.dumps(before, indent=indent, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("mine", ['{\n    // mine\n    "a": 1,\n}\n', '{"a":1}', "[]", '{\n    "yaml.schemas": 1\n}'])
def test_settings_that_cannot_be_kept_otherwise_are_left_to_their_owner(folder, capsys, mine):
    (folder / SETTINGS).write_text(mine)

    assert cli.main(["schema", "--editor", "p.yaml"], {}) == 4

    assert (folder / SETTINGS).read_text() == mine
    assert '"yaml.schemas": {"./.vscode/onceload.schema.json": ["p.yaml"]}' in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_sentence(folder, capsys):
    (folder / ".vscode").rmdir()
    (folder / ".vscode").touch()

    assert cli.main(["schema", "--editor"], {}) == 2
    assert "settings.json: found File exists. Nothing was changed." in capsys.readouterr().err
