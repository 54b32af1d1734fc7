"""Columns that are read from inside objects: how a pipeline file declares them, and what is refused."""

import json

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from onceload_jobs.pipeline.columns import ColumnType, Kind
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from tests.unit.pipeline_file.files import ROOT, plain, problems_of, read

LINES = (("  path: in/*.csv\n  format: csv\n  options:\n    header: true\n", "  path: in/*.jsonl\n  format: jsonl\n"),)
VALIDATOR = Draft202012Validator(json.loads((ROOT / "onceload/pipeline.schema.json").read_text()))


def with_device(declared: str, *more: tuple[str, str], added: str = "") -> str:
    return plain(*LINES, ("device: text", f"device: {declared}"), *more, added=added)


@pytest.mark.parametrize(
    ("declared", "path"),
    [
        ("{type: text, path: customer.address.city}", ("customer", "address", "city")),
        ("{type: text not null, path: [customer, postal.code]}", ("customer", "postal.code")),
        ("{type: text, path: Device}", ("Device",)),
        ("{type: text}", ()),
    ],
)
def test_a_column_may_name_the_path_of_its_field(tmp_path, declared, path):
    content = with_device(declared)

    (found,) = (each for each in read(tmp_path, content).columns if each.name == "device")
    assert (found.path, found.steps) == (path, path or ("device",))
    assert (found.type, found.not_null) == (ColumnType(kind=Kind.TEXT), "not null" in declared)
    VALIDATOR.validate(yaml.safe_load(content))


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("{path: a.b}", "columns.device.type: is missing; add `type: text`"),
        ("{type: text, path: a..b}", "columns.device.path: expected 1 to 20 names joined by dots, or, if a name has"),
        ("{type: text, path: []}", "columns.device.path: expected 1 to 20 names"),
        ("{type: text, path: 5}", "columns.device.path: expected text, found 5"),
        ("{type: string, path: a.b}", "columns.device.type: expected one of text"),
        ("{type: text, paht: a.b}", "columns.device.paht: unknown key; did you mean path?"),
    ],
)
def test_a_column_that_is_declared_wrong_is_refused(tmp_path, declared, expected):
    content = with_device(declared)

    assert any(expected in problem for problem in problems_of(tmp_path, content))
    assert not VALIDATOR.is_valid(yaml.safe_load(content))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            plain(("device: text", "device: {type: text, path: a.b}")),
            "but the format is csv; remove path",
        ),
        (with_device("{type: text, path: seq}"), "device is already read from seq; remove one of the two"),
        (
            with_device("{type: text, path: a.x}", ("seq: bigint", "seq: {type: bigint, path: a.x}")),
            "from a.x;",
        ),
        (
            with_device("{type: text, path: gone.device}"),
            "its path leads through gone, but gone is boolean, which cannot hold an object; declare gone as jsonb",
        ),
    ],
)
def test_paths_that_contradict_the_rest_of_the_file_are_refused(tmp_path, content, expected):
    (problem,) = problems_of(tmp_path, content)

    assert expected in problem


def test_a_column_may_hold_an_object_that_others_are_read_from(tmp_path):
    read(tmp_path, with_device("{type: text, path: gone.device}", ("gone: boolean", "gone: jsonb")))


def test_another_path_is_another_version_and_for_an_id_another_meaning(tmp_path):
    """As another type of the column is."""
    texts = [
        pipeline_with_declaration(read(tmp_path, with_device(declared, added=added))).declaration
        for added in ("", "message_id: {columns: [device], keep: 1d}\n")
        for declared in ("text", "{type: text, path: a.b}", "{type: text, path: [a.b]}")
    ]

    assert len({each.rest["columns"] for each in texts[:3]}) == 3
    assert len({each.terms["message_id"] for each in texts[:3]}) == 1
    assert len({each.terms["message_id"] for each in texts[3:]}) == 3
