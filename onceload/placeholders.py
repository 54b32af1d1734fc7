"""The path of a source: the placeholders in it, and what fills them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from onceload.yaml_values import not_what, some_text
from onceload_core.errors import SettingRefused
from onceload_jobs.files.listing import root_of

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
#: The placeholders that Airflow fills for each run.
GIVEN = ("ds", "ds_nodash", "ts_nodash", "data_interval_start", "data_interval_end")
_EXAMPLES = {"ds": "2026-11-21"}


@dataclass(frozen=True)
class Values:
    """The values of placeholders: the file must use every given one; it may ignore the offered ones."""

    given: Mapping[str, str]
    offered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FilledPath:
    path: str
    #: The folder that file names are relative to, and the path before it was filled; only with placeholders.
    root: str | None = None
    pattern: str | None = None


def find_placeholders(pattern: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(pattern)))


def path_pattern(node: yaml.Node, *, values: Values) -> FilledPath:
    """Fill the placeholders once, and find the folder that file names are relative to.

    Placeholders inside values are not filled.
    """
    pattern = some_text(node)
    if not pattern.isprintable():
        raise not_what(node, "a path on one line")
    if "{{" in (rest := _PLACEHOLDER.sub("", pattern)) or "}}" in rest:
        raise not_what(node, "placeholders that are plain names, such as {{ ds }}")
    asked = find_placeholders(pattern)
    if unknown := [name for name in values.given if name not in asked]:
        expected = (
            f"--set for its placeholders only ({', '.join(asked)})" if asked else "no --set, as it has no placeholder"
        )
        raise SettingRefused("value", ", ".join(map(repr, unknown)), expected)
    filled = {**values.offered, **values.given}
    if missing := [name for name in asked if name not in filled]:
        fix = " ".join(f"--set {name}={_EXAMPLES.get(name, '...')}" for name in missing)
        raise SettingRefused("value", f"none; add {fix}", f"a value for {', '.join(missing)}")
    for name in asked:
        _check_value(name, filled[name])
    # For the root, a placeholder counts as a wildcard.
    root = root_of(_PLACEHOLDER.sub("?", pattern)) if asked else None
    path = _PLACEHOLDER.sub(lambda match: filled[match[1]], pattern)
    # Refuse here what listing would refuse, because here the line is known.
    root_of(path, root=root)
    return FilledPath(path=path, root=root, pattern=pattern if asked else None)


def _check_value(name: str, value: str) -> None:
    # A value is a part of the path: it must neither widen the path nor leave it.
    leads_away = value.startswith(("/", "\\")) or any(part in value for part in ("..", "://", "::"))
    if not value.strip() or not value.isprintable() or leads_away or set(value) & set("*?[]{}"):
        expected = f"a value for {name} without wildcards, `..` or a leading /"
        raise SettingRefused("value", f"{value!r}; set another with --set {name}=...", expected)
