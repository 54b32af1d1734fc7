"""Drafts of files that a test writes."""

import re
from pathlib import Path

from onceload.draft.draft import draft
from onceload.pipeline_file import parse_text
from onceload_jobs.pipeline.declared import Declared


def draft_of(path: Path, content: str | bytes) -> str:
    """The draft of one file."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return draft(str(path)).text


def declared_of(path: Path, content: str | bytes) -> Declared:
    return parse_text(draft_of(path, content), name="draft")


def columns_of(path: Path, content: str | bytes) -> dict[str, str]:
    return {each.name: str(each.type) + " not null" * each.not_null for each in declared_of(path, content).columns}


def with_all_paths(text: str) -> str:
    """The draft with each column that it offers."""
    return re.sub(r"(?m)^  # (?=.*: \{type: .*, path: .*\})", "  ", text)
