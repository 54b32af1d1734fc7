"""The pipeline file in the commands that messages name."""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from onceload_core.commands import PIPELINE_FILE

#: Where people keep pipeline files, seen from where they run commands.
FOLDERS = (Path(), Path("pipelines"))
_FILES_MAX = 1_000
_NAME = re.compile(r"^pipeline:[ \t]*(?P<quote>['\"]?)(?P<name>.*?)(?P=quote)[ \t]*(?:#.*)?$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)")


def named(file: Path, given: Sequence[str] = ()) -> str:
    """A pipeline file as arguments of a command, with the values of its placeholders, or words that stand for them."""
    known = {each.partition("=")[0] for each in given}
    lacking = (name for name in dict.fromkeys(_PLACEHOLDER.findall(_path_in(file))) if name not in known)
    values = (*given, *(f"{name}=VALUE" for name in lacking))
    return shlex.join([str(file), *(part for each in values for part in ("--set", each))])


def with_file(text: str, file: Path) -> str:
    """A message whose commands name this pipeline file."""
    return text.replace(PIPELINE_FILE, named(file)) if PIPELINE_FILE in text else text


def named_by_pipeline(pipeline: str, *, folders: Iterable[Path] = FOLDERS) -> str:
    """The file of a pipeline, if one is found here; otherwise a word that stands for it."""
    found = [path for folder in folders for path in _files_in(folder) if _name_in(path) == pipeline]
    return named(found[0]) if len(found) == 1 else PIPELINE_FILE


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for suffix in ("yaml", "yml") for path in folder.glob(f"[!.]*.{suffix}"))[:_FILES_MAX]


def _name_in(path: Path) -> str | None:
    found = _NAME.search(_text_of(path))
    return found["name"] if found else None


def _path_in(file: Path) -> str:
    """The path of its source, as far as it can be read."""
    try:
        return str(yaml.load(_text_of(file), Loader=yaml.BaseLoader)["source"]["path"])  # noqa: S506 - texts only.
    except (yaml.YAMLError, KeyError, TypeError):
        return ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return ""
