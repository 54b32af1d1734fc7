"""A pipeline as a mapping or a dataclass, written as the YAML that the reader of pipeline files checks."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml

from onceload_core.errors import SettingRefused

_EXPECTED = "texts, numbers, true or false, None, and lists and mappings of them, as in a pipeline file"


def as_yaml(description: object) -> bytes:
    """The description as a pipeline file; None in a dataclass means that the key is left out."""
    if is_dataclass(description) and not isinstance(description, type):
        description = _without_none(asdict(description))
    if not isinstance(description, Mapping):
        found = f"a value of type {type(description).__name__}"
        raise SettingRefused("the description of a pipeline", found, "a mapping or a dataclass")
    try:
        written = yaml.dump(_plain(description), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    except RecursionError:
        raise SettingRefused("the description of a pipeline", "a mapping that contains itself", _EXPECTED) from None
    return str(written).encode()


def _without_none(value: Any) -> Any:  # noqa: ANN401 - any part of a description.
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


def _plain(value: object) -> object:
    """Equal values of the types that YAML has."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str | PurePath):
        return _text(str(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    found = f"a value of type {type(value).__name__}"
    raise SettingRefused("the description of a pipeline", found, _EXPECTED)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise SettingRefused("the description of a pipeline", f"the key {key!r}", "keys that are texts")
    return _text(key)


def _text(text: str) -> str:
    if text != text.encode(errors="replace").decode():
        raise SettingRefused("the description of a pipeline", f"{text!r:.80}, which is not UTF-8", _EXPECTED)
    # The dumper does not know classes made of str.
    return str(text)


class _Dumper(yaml.SafeDumper):
    """Writes every text in quotes, so that none is read as a number or as true."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - as the dumper above it has it.
        return True


def _quoted(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')


_Dumper.add_representer(str, _quoted)
