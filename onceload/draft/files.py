"""Find the files of a pattern, choose a few of them, and recognise their format."""

import os
import posixpath
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from onceload.placeholders import find_placeholders
from onceload_core.errors import CallAgain, NotFound, SettingRefused
from onceload_jobs.files.addresses import local_path, shown
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.listing import Listed, Listing, list_files
from onceload_jobs.pipeline.declared import Format

FILES_MAX = 5
_FORMATS: Mapping[str, Format] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json", ".jl"), Format.JSONL),
    **dict.fromkeys((".csv", ".tsv", ".psv", ".tab"), Format.CSV),
    **dict.fromkeys((".parquet", ".pq"), Format.PARQUET),
    ".orc": Format.ORC,
    ".avro": Format.AVRO,
}
#: How many entries of a folder are enough to suggest a pattern for it.
_LOOKED_AT = 1_000
_NOTES_MAX = 5


@dataclass(frozen=True, kw_only=True)
class Found:
    """The files of a pattern that have content."""

    files: tuple[Listed, ...]
    #: Files that a load would leave out as well, and why.
    notes: tuple[str, ...]

    def chosen(self) -> list[Listed]:
        """A few files, spread over all of them."""
        if len(self.files) <= FILES_MAX:
            return list(self.files)
        last = len(self.files) - 1
        return [self.files[last * number // (FILES_MAX - 1)] for number in range(FILES_MAX)]


@dataclass(eq=False)
class NoDraft(CallAgain):
    """No sample could be read, so no pipeline file was drafted."""

    url: str
    reason: str
    fix: str = "Run the same command again when there are records"

    def __str__(self) -> str:
        return f"{shown(self.url)}: {self.reason}. No draft was written. {self.fix}."


def refused(pattern: str, found: str, expected: str) -> SettingRefused:
    return SettingRefused(f"onceload draft {shlex.quote(pattern)}", found, expected)


def find_files(pattern: str) -> Found:
    """The files of a pattern; raises if there is nothing to read."""
    if not pattern.strip() or not pattern.isprintable() or find_placeholders(pattern):
        raise refused(pattern, "no plain pattern", "a pattern of files without {{ placeholders }}")
    folder = local_path(pattern)
    # os.path, because pathlib raises where a folder above cannot be entered.
    if folder and os.path.isdir(Path(folder).expanduser()):  # noqa: PTH112
        raise refused(pattern, "a folder", _pattern_for(Path(folder).expanduser()))
    try:
        listing = list_files(pattern)
    except NotFound as error:
        raise refused(pattern, f"no folder {error.name!r}", "a pattern of files that exist") from error
    notes = (*listing.unreadable, *listing.refused, *listing.misnamed)
    if not listing.files:
        raise _nothing_found(pattern, listing)
    files = tuple(file for file in listing.files if file.size)
    if not files:
        which = "it is" if len(listing.files) == 1 else f"all {len(listing.files)} files are"
        raise NoDraft(pattern, f"{which} empty, so no types can be guessed")
    empty = len(listing.files) - len(files)
    skipped = [f"{name!r}: {why}" for name, why in notes[:_NOTES_MAX]]
    if len(notes) > _NOTES_MAX:
        skipped.append(f"{len(notes) - _NOTES_MAX:,} more files cannot be read")
    return Found(files=files, notes=(*skipped, *([f"{empty:,} of the files are empty"] if empty else [])))


def _nothing_found(pattern: str, listing: Listing) -> Exception:
    if listing.unreadable:
        name, why = listing.unreadable[0]
        return NoDraft(
            pattern, f"{name!r}: {why}", "Get permission to read it (see `ls -l`), and run the same command again"
        )
    if others := (*listing.refused, *listing.misnamed):
        return refused(pattern, "only {!r}: {}".format(*others[0]), "a pattern of files that can be read")
    if listing.folders:
        deeper = posixpath.join(pattern, "*")
        return refused(pattern, "only folders", f"a pattern of files in them, such as {shlex.quote(deeper)}")
    if (path := local_path(pattern)) and os.path.isfile(Path(path).expanduser()):  # noqa: PTH113
        return refused(pattern, "a file whose name has wildcards in it", "each [ written as [[], * as [*], ? as [?]")
    return refused(pattern, "no file", "a pattern of files that exist (names that begin with a dot do not match)")


def _pattern_for(folder: Path) -> str:
    """A pattern for the files of a folder, by the endings of the first of them."""
    try:
        with os.scandir(folder) as entries:
            endings = Counter(_ending(entry.name) for entry in islice(entries, _LOOKED_AT) if _is_named_as_data(entry))
    except OSError:
        endings = Counter()
    return " or ".join(shlex.quote(f"{folder}/*{ending}") for ending in sorted(endings)) or (
        f"a pattern of the files in it, such as {shlex.quote(f'{folder}/**/*.jsonl')}"
    )


def _is_named_as_data(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and format_by_name(entry.name) is not None and not entry.is_dir()


def format_by_name(name: str) -> Format | None:
    return _FORMATS.get(posixpath.splitext(_unpacked_name(name))[1].lower())


def _unpacked_name(name: str) -> str:
    return posixpath.splitext(name)[0] if is_compressed(name) else name


def base_of(name: str) -> str:
    """A name without the endings that say its format and compression."""
    return posixpath.splitext(_unpacked_name(name))[0]


def _ending(name: str) -> str:
    return name[len(base_of(name)) :]


def named_format(pattern: str, files: Sequence[Listed]) -> Format | None:
    """The format that all names give, or None if they give none; refuse several formats."""
    counts = Counter(format_by_name(file.name) for file in files)
    if len(counts) == 1:
        return next(iter(counts))
    shown = ", ".join(f"{count:,} {_shown(each)}" for each, count in counts.most_common())
    endings = Counter(_ending(file.name) for file in files if format_by_name(file.name))
    folder = posixpath.dirname(pattern)
    choices = " or ".join(shlex.quote(posixpath.join(folder, f"*{ending}")) for ending, _ in endings.most_common(3))
    expected = f"files of one format, such as {choices}. Draft a pipeline file for each format"
    raise refused(pattern, f"files of several formats ({shown})", expected)


def _shown(of_format: Format | None) -> str:
    return of_format or "of unknown format"
