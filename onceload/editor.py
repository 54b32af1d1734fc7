"""The JSON Schema of pipeline files, and where editors find it.

The YAML extension of VS Code reads `yaml.schemas` in `.vscode/settings.json`: paths of schemas, each with its files.
Other editors with a YAML language server read the first line of a file, `# yaml-language-server: ...`.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from onceload_core.errors import SettingRefused

_FOLDER = Path(".vscode")
_NAME = "onceload.schema.json"
_KEY = "yaml.schemas"
_OURS = f"./{_FOLDER}/{_NAME}"
#: The layouts that can be written back as they were read.
_INDENTS = (4, 2, "\t")


@dataclass(frozen=True, kw_only=True)
class Offered:
    """The files that were written for editors."""

    schema: str
    settings: str
    #: The entry for settings that only their owner can change: they have comments or a layout of their own.
    to_add: str | None


def schema_text() -> str:
    """The JSON Schema of pipeline files."""
    return files(__package__).joinpath("pipeline.schema.json").read_text(encoding="utf-8")


def offer(folder: Path, *, pattern: str) -> Offered:
    """Write the schema below a folder, and name it in the settings of its editor for files that match the pattern."""
    settings = folder / _FOLDER / "settings.json"
    schema = settings.with_name(_NAME)
    try:
        before = settings.read_text(encoding="utf-8") if settings.exists() else ""
        after = _with_schema(before, pattern=pattern)
        schema.parent.mkdir(exist_ok=True)
        schema.write_text(schema_text(), encoding="utf-8")
        if after not in (None, before):
            settings.write_text(after, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        found = getattr(error, "strerror", None) or str(error)
        raise SettingRefused(str(settings), found, "a folder and a file that can be read and written") from error
    to_add = json.dumps({_KEY: {_OURS: [pattern]}})[1:-1] if after is None else None
    return Offered(schema=str(schema), settings=str(settings), to_add=to_add)


def _with_schema(settings: str, *, pattern: str) -> str | None:
    """The settings with our schema; None if they cannot be changed without changing more than that."""
    if not settings.strip():
        return json.dumps({_KEY: {_OURS: [pattern]}}, indent=4) + "\n"
    try:
        document = json.loads(settings)
    except ValueError:
        return None
    indent = next((each for each in _INDENTS if _written(document, each).strip() == settings.strip()), None)
    schemas = document.setdefault(_KEY, {}) if isinstance(document, dict) else None
    if not isinstance(schemas, dict):
        return None
    patterns = schemas.get(_OURS, [])
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if pattern in patterns:
        return settings
    schemas[_OURS] = [*patterns, pattern]
    return None if indent is None else _written(document, indent) + "\n"


def _written(document: object, indent: int | str) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=False)
