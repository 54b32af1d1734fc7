"""The schema for editors says the same as the reader."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from onceload_jobs.pipeline.columns import _KINDS, Kind
from onceload_jobs.pipeline.declared import FixedOptions
from tests.unit.pipeline_file.files import PLAIN, ROOT, SAMPLES, WHOLE, plain, problems_of, read

SCHEMA: dict[str, Any] = json.loads((ROOT / "onceload/pipeline.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)


def sections(schema: dict[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every mapping of the file whose keys are ours."""
    if "properties" in schema:
        yield where, schema
        for key, below in schema["properties"].items():
            yield from sections(below, (*where, key))


SECTIONS = dict(sections(SCHEMA))


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("where", SECTIONS, ids=".".join)
def test_the_reader_and_the_schema_know_the_same_keys(tmp_path, where):
    content = yaml.safe_load(WHOLE)
    # A null among the keys is the option of that name.
    content["source"]["options"]["null"] = content["source"]["options"].pop(None)
    section = content
    for key in where:
        section = section[key]
    section["zzzzzzzz"] = 1

    (problem,) = problems_of(tmp_path, yaml.safe_dump(content), ds="a", region="b")

    known = problem.partition("known keys: ")[2].split(", ")
    assert sorted(known) == sorted(SECTIONS[where]["properties"])
    assert SECTIONS[where]["additionalProperties"] is False


@pytest.mark.parametrize("where", SECTIONS, ids=".".join)
def test_every_key_is_described(where):
    assert all(len(each["description"]) > 10 for each in SECTIONS[where]["properties"].values())


@pytest.mark.parametrize("where", SECTIONS, ids=".".join)
def test_a_default_of_the_schema_is_the_one_of_the_reader(tmp_path, where):
    defaults = {key: each["default"] for key, each in SECTIONS[where]["properties"].items() if "default" in each}
    # Only fixed width has this one.
    assert defaults.pop("short_lines", FixedOptions.short_lines) == FixedOptions.short_lines
    content = yaml.safe_load(PLAIN)
    content["source"]["options"] = {}
    content |= {
        "producer": {"name": "device", "sequence": "seq"},
        "message_id": {"columns": ["id"], "keep": "1d"},
    }
    without = read(tmp_path, yaml.safe_dump(content))
    section = content
    for key in where:
        section = section.setdefault(key, {})

    section.update(defaults)

    assert read(tmp_path, yaml.safe_dump(content)) == without


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_fit_the_schema_and_name_it(path):
    content = path.read_text()

    VALIDATOR.validate(yaml.safe_load(content))
    assert content.startswith("# yaml-language-server: $schema=../onceload/pipeline.schema.json\n")


@pytest.mark.parametrize("name", _KINDS)
def test_the_schema_knows_each_type_and_its_other_names(tmp_path, name):
    measure = "(12, 2)" if _KINDS[name] is Kind.NUMERIC else ""
    for declared in (f"{name}{measure}", f"{name}{measure} not null", f"{name}{measure}[]".upper()):
        content = plain(("device: text", f'device: "{declared}"'))

        read(tmp_path, content)
        assert VALIDATOR.is_valid(yaml.safe_load(content)), declared


@pytest.mark.parametrize(
    "declared", ["bignit", "string", "numeric", "numeric(39,2)", "varchar(0)", "text(3)", "text null", "int[", ""]
)
def test_the_schema_and_the_reader_refuse_the_same_types(tmp_path, declared):
    content = plain(("device: text", f'device: "{declared}"'))

    assert problems_of(tmp_path, content)
    assert not VALIDATOR.is_valid(yaml.safe_load(content))


def test_an_editor_offers_each_type_with_and_without_not_null():
    offered, *_ = SCHEMA["properties"]["columns"]["additionalProperties"]["anyOf"]

    names = [each.partition("(")[0] for each in offered["enum"]]
    assert set(names) >= set(Kind) - {Kind.VARCHAR}
    assert all(f"{each} not null" in offered["enum"] for each in offered["enum"] if not each.endswith("null"))


@pytest.mark.parametrize(
    ("added", "fits"),
    [
        ("delivery: {mode: session}", False),
        ("delivery: {mode: session, sessions: 4}", True),
        ("delivery: {mode: key_shared, ack_deadline: 10m, deliveries_max: 1, open_max: 100000}", True),
        ("delivery: {open_max: 0}", False),
        ("delivery:", True),
        ("quality: {suite: ''}", False),
        ("quality: {keep: 2h}", True),
        ("quality: {keep: 2}", False),
        ("snapshot: {every_commits: 2147483647, every: 0s, kept: 2147483647}", True),
        ("snapshot: {every_commits: 2147483648}", False),
        ("snapshot: {kept: 0}", False),
        (
            "limits: {producers_max: 9223372036854775807, islands_max: 2147483647}",
            True,
        ),
        ("limits: {producers_max: 9223372036854775808}", False),
        ("limits: {islands_max: 2147483648}", False),
        ("limits: {forget_idle_after: 1 s}\nproducer: {name: device, sequence: seq}", True),
        ("limits: {forget_idle_after: 1w}", False),
        ("quality: {quarantined_max: 0.05%}", True),
        ("quality: {quarantined_max: 0.05}", False),
        ("quality: {quarantined_max: -1}", False),
        ("message_id: {columns: [], keep: 1d}", False),
        ("message_id: {columns: [id]}", False),
        ("producer: {name: device}", False),
        ("on_rewrite: new_generation", True),
        ("guarantee: null", True),
        ("unknown_fields: null", False),
        ("transform: ''", False),
        ("schedule: null", True),
    ],
)
def test_the_schema_and_the_reader_agree_about_bounds(tmp_path, added, fits):
    content = plain(added=added)

    assert VALIDATOR.is_valid(yaml.safe_load(content)) is fits
    if fits:
        read(tmp_path, content)
    else:
        assert problems_of(tmp_path, content)
