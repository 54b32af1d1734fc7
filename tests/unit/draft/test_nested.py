"""Fields inside objects: a draft offers each as a column of its own, on a line that only has to be uncommented."""

import json

import pytest

from onceload.draft.nested import FIELDS_MAX
from onceload.pipeline_file import parse_text
from tests.unit.draft.drafts import draft_of, with_all_paths


def offered(path, *records):
    """The lines that a draft offers, without their indentation."""
    text = draft_of(path / "orders.jsonl", "".join(f"{record}\n" for record in records))
    parse_text(with_all_paths(text), name="draft")
    return [line.removeprefix("  # ") for line in text.splitlines() if "path: " in line and "#" in line]


def test_an_object_is_jsonb_and_its_fields_are_offered_with_their_types(tmp_path):
    record = {"id": 1, "customer": {"name": "Ada", "address": {"city": "Köln", "since": "2026-11-20"}}, "total": 1}

    text = draft_of(tmp_path / "orders.jsonl", json.dumps(record) + "\n")

    assert (
        "  customer: jsonb\n"
        "  # To load fields of it as columns, with or without the column itself, uncomment their lines:\n"
        "  # name: {type: text, path: customer.name}\n"
        "  # city: {type: text, path: customer.address.city}\n"
        "  # since: {type: date, path: customer.address.since}\n"
        "  total: bigint\n"
    ) in text
    columns = parse_text(with_all_paths(text), name="draft").columns
    assert [(each.name, ".".join(each.steps)) for each in columns] == [
        ("id", "id"),
        ("customer", "customer"),
        ("name", "customer.name"),
        ("city", "customer.address.city"),
        ("since", "customer.address.since"),
        ("total", "total"),
    ]


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        # A type with a comma needs quotes, and the values of all records count.
        (['{"a": {"b": 1}}', '{"a": {"b": 2.5}}'], ['b: {type: "numeric(12,2)", path: a.b}']),
        # Fields with the same name are distinguished by their paths.
        (
            ['{"id": 1, "a": {"id": 2, "n": 3}, "b": {"n": 4}}'],
            [
                "a_id: {type: bigint, path: a.id}",
                "a_n: {type: bigint, path: a.n}",
                "b_n: {type: bigint, path: b.n}",
            ],
        ),
        # Names that a plain path cannot have.
        (
            ['{"a": {"b.c": {"d e": 1}, "null": true}}'],
            [
                '"d e": {type: bigint, path: ["a", "b.c", "d e"]}  # in SQL, write its name in double quotes',
                '"null": {type: boolean, path: a.null}',
            ],
        ),
        # An array, an empty object, and a field that is not always an object are whole values.
        (['{"a": {"b": [{"c": 1}], "d": {}}}'], ["b: {type: jsonb, path: a.b}", "d: {type: jsonb, path: a.d}"]),
        (
            ['{"a": {"b": {"c": 1}}}', '{"a": {"b": 5}}'],
            ["b: {type: jsonb, path: a.b}  # mixed: objects (1), integers (1)"],
        ),
        (['{"a": {"b": 1}}', '{"a": null}', "{}"], ["b: {type: bigint, path: a.b}"]),
        # A record with another value on the path would go to quarantine.
        (['{"a": {"b": 1}}', '{"a": [1]}'], []),
        (['{"a": {"b": 1}}', '{"a": "none"}'], []),
        # So would one that has the name twice.
        (['{"a": {"b": 1, "b": 2, "c": 3}}'] * 2 + ['{"a": {"c": 3}}'], ["c: {type: bigint, path: a.c}"]),
        # Names that no path or no column can have.
        (
            ['{"a": {"": 1, " ": 2, "\\u0085": 3, "_sequence": 4}}'],
            ["a__sequence: {type: bigint, path: a._sequence}"],
        ),
        ([json.dumps({"a": {"x" * 64: 1, "ctid": 2}})], ["a_ctid: {type: bigint, path: a.ctid}"]),
        # An object that no jsonb accepts.
        (['{"n": 1, "a": {"b": NaN}}', '{"n": 2}'], []),
    ],
)
def test_the_lines_that_a_draft_offers(tmp_path, records, lines):
    try:
        assert offered(tmp_path, *records) == lines
    finally:
        (tmp_path / "orders.jsonl").unlink()


def test_a_deep_object_is_a_whole_value(tmp_path):
    record: dict[str, object] = {"leaf": 1}
    for number in range(9, 0, -1):
        record = {f"l{number}": record}

    assert offered(tmp_path, json.dumps(record)) == ["l6: {type: jsonb, path: l1.l2.l3.l4.l5.l6}"]


def test_only_some_keys_of_a_map_are_offered(tmp_path):
    record = {"a": {f"key_{number}": number for number in range(500)}}

    text = draft_of(tmp_path / "orders.jsonl", json.dumps(record) + "\n")

    assert text.count("path: a.key_") == FIELDS_MAX
    assert "  # It has more fields. Add them in the same way.\n" in text


def test_arrays_of_objects_in_one_document_are_offered_too(tmp_path):
    text = draft_of(tmp_path / "orders.json", json.dumps([{"a": {"b": 1}}, {"a": {"b": 2}}]))

    assert "  format: json\n" in text
    assert "  # b: {type: bigint, path: a.b}\n" in text


def test_a_column_of_csv_has_no_paths(tmp_path):
    text = draft_of(tmp_path / "a.csv", 'id,v\n1,"{""a"": 1}"\n2,"{""a"": 2}"\n')

    assert "  v: jsonb\n" in text
    assert "{type: " not in text
