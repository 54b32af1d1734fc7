"""The page of all keys of a pipeline file, made from its JSON Schema."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from handbook.code import ROOT
from handbook.markdown import page

SCHEMA = ROOT / "onceload" / "pipeline.schema.json"
Schema: TypeAlias = Mapping[str, Any]


def keys_page() -> str:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    entries = (_entry(key, node, is_required=required) for key, node, required in all_keys(schema))
    return page(
        "Keys of the pipeline file",
        "How to use them: [Write a pipeline](../how-to/write-a-pipeline.md). The JSON Schema that "
        "this page is made from is `onceload/pipeline.schema.json`: editors complete and check YAML with it. "
        "`onceload validate FILE` checks a file.",
        *entries,
    )


def all_keys(schema: Schema, above: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Every key with the keys above it, its part of the schema, and whether it is required."""
    for part in (schema, *schema.get("anyOf", ())):
        for name, node in part.get("properties", {}).items():
            key = f"{above}{name}"
            yield key, node, name in part.get("required", ())
            yield from all_keys(node, f"{key}.")
            if isinstance(named_freely := node.get("additionalProperties"), dict):
                yield from all_keys(named_freely, f"{key}.NAME.")


def _entry(key: str, node: Schema, *, is_required: bool) -> str:
    level = "##" + "#" * key.count(".")
    facts = ["Required."] if is_required else []
    if choices := node.get("enum"):
        facts.append(f"One of: {', '.join(f'`{each}`' for each in choices if each is not None)}.")
    if node.get("default") not in (None, [], ""):
        facts.append(f"Default: {_written(node['default'])}.")
    lines = [f"{level} {key}", node["description"], " ".join(facts)]
    if examples := node.get("examples"):
        lines.append(f"Example: {' or '.join(map(_written, examples))}.")
    return "\n\n".join(line for line in lines if line)


def _written(value: object) -> str:
    """A value as it is written in YAML."""
    if isinstance(value, dict):
        return "`{" + ", ".join(f"{name}: {each}" for name, each in value.items()) + "}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"
