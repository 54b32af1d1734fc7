"""Name a pipeline and its table after its files."""

import posixpath
import re

from onceload.draft.files import base_of
from onceload.yaml_values import NAME_BYTES_MAX
from onceload_jobs.files.addresses import split_address

_OTHERWISE = "records"
#: Names of files that say nothing about their records.
_EMPTY_WORDS = frozenset({"part", "data", "file", "files", "export", "output", "json", "csv", "parquet"})
_WILD = re.compile(r"\*+|\?|\[[^\]]*\]")


def topic_of(pattern: str) -> str:
    """A word for the records: from the name of the file, or else of the nearest folder that has one."""
    *folders, last = posixpath.normpath(split_address(pattern)[1]).split("/")
    candidates = (base_of(last), *reversed(folders))
    return next(filter(None, map(_topic, candidates)), _OTHERWISE)


def _topic(name: str) -> str:
    """An unquoted name for Postgres: letters, digits and underscores, without dates and running numbers."""
    words = re.sub(r"[\W_]+", "_", _WILD.sub("_", name).lower()).strip("_").split("_")
    kept = [word for word in words if word and not word.isdigit()]
    if not set(kept) - _EMPTY_WORDS or not kept[0][0].isalpha():
        return ""
    return "_".join(kept).encode()[:NAME_BYTES_MAX].decode(errors="ignore").rstrip("_")
