"""Read the sample of each format. Its name says what a file should be, and its content what it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from onceload.draft.dialect import guess_dialect, has_quoted_newlines, observe_with_null, sample_csv
from onceload.draft.documents import are_documents, as_lines, sample_document
from onceload.draft.files import Found, NoDraft, named_format, refused
from onceload.draft.observe import Observed, is_json_record, lines_in, looks_like_json, observe_json
from onceload.draft.sample import Content, Sampled, parts_of, read_content
from onceload.draft.typed import observe_typed, sample_typed, typed_format
from onceload.terminal import counted
from onceload_core.errors import OnceloadError
from onceload_jobs.files.addresses import Unreadable, shown
from onceload_jobs.files.compression import Incomplete
from onceload_jobs.files.listing import Listed
from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.pipeline.declared import CsvOptions, Format

S = TypeVar("S")
T = TypeVar("T")
#: If no name says that files are CSV, this share of a file must look like it.
_SHARE_MIN = 0.9
_NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The records that were read of a few files."""

    format: Format
    files: tuple[Sampled, ...]
    observed: Observed
    csv: CsvOptions = field(default_factory=CsvOptions)
    notes: tuple[str, ...] = ()


def read_sample(pattern: str, found: Found) -> Sample:
    """Read a few files; those that cannot be read are noted, unless none can."""
    named, chosen = named_format(pattern, found.files), found.chosen()
    found_format = named or _common_format(chosen)
    if found_format and found_format.is_typed:
        files, notes = _each(chosen, partial(sample_typed, found_format))
        observed = observe_typed(found_format, files)
        notes = notes if observed.records else (*notes, "no file that was read has a row: each type is from the schema")
        return _not_empty(Sample(format=found_format, files=tuple(files), observed=observed, notes=notes))
    if named in (Format.JSONL, None) and are_documents(chosen):
        files, notes = _each(chosen, sample_document)
        observed = observe_json(as_lines(files))
        return _not_empty(Sample(format=Format.JSON, files=tuple(files), observed=observed, notes=notes))
    contents, notes = _each(chosen, read_content)
    jsons = [content for content in contents if looks_like_json(content.beginning)]
    if len(jsons) == len(contents) or named is Format.JSONL:
        return _json(contents, named, notes)
    if jsons:
        raise refused(pattern, "files of CSV and of JSON lines", "files of one format. Draft each with its own pattern")
    return _csv(pattern, contents, named, notes)


def _common_format(chosen: Sequence[Listed]) -> Format | None:
    """The format that the bytes of all files give them, if their values have types."""
    found = set(map(typed_format, chosen))
    return found.pop() if len(found) == 1 else None


def _each(items: Sequence[S], read: Callable[[S], T]) -> tuple[list[T], tuple[str, ...]]:
    results, failures = list[T](), list[OnceloadError]()
    for item in items:
        try:
            results.append(read(item))
        except OnceloadError as error:
            failures.append(error)
    if failures and not results:
        raise _for_a_draft(failures[0])
    return results, tuple(
        f"{shown(each.url)}: {each.reason}" if isinstance(each, NoDraft) else str(each) for each in failures
    )


def _for_a_draft(error: OnceloadError) -> OnceloadError:
    if isinstance(error, Unreadable):
        return NoDraft(
            error.url, error.reason, "Check that it exists and that you may read it, and run the same command again"
        )
    if isinstance(error, Incomplete):
        reason = f"its compressed data ends early, after {error.end:,} uncompressed bytes"
        return NoDraft(error.url, reason, "Run the same command again when the file is complete")
    return error


def _json(contents: Sequence[Content], named: Format | None, notes: tuple[str, ...]) -> Sample:
    files, refusals = _each(contents, _sample_json)
    misnamed = ("the names of the files say CSV, but they hold JSON lines",) if named is Format.CSV else ()
    observed, notes = observe_json(files), (*notes, *refusals, *misnamed)
    return _not_empty(Sample(format=Format.JSONL, files=tuple(files), observed=observed, notes=notes))


def _sample_json(content: Content) -> Sampled:
    if content.beginning.strip() and not looks_like_json(content.beginning):
        is_array_here = content.beginning.lstrip().startswith(b"[")
        found = "it is one JSON array" if is_array_here else "most of its lines are not JSON objects"
        raise FileRefused(content.listed.url, "one JSON object on each line", found, _CONVERT)
    parts = tuple(part for part in parts_of(content) if not part.is_tail or any(map(is_json_record, lines_in([part]))))
    return Sampled(listed=content.listed, parts=parts, is_whole=content.is_whole)


_CONVERT = (
    "If each file is one document, declare format: json. Or write one object on each line: jq -c '.[]' converts an "
    "array, and jq -c . a single document"
)


def _csv(pattern: str, contents: Sequence[Content], named: Format | None, notes: tuple[str, ...]) -> Sample:
    dialect = guess_dialect(contents[0])
    if named is None and (dialect.width == 1 or dialect.share < _SHARE_MIN):
        found = "neither its name nor its content says which format it has"
        fix = (
            "If it is CSV, give it a name that ends in .csv. If its columns have fixed positions, write a pipeline "
            "file with format: fixed"
        )
        raise FileRefused(contents[0].listed.url, "JSON lines, CSV, Parquet, ORC or Avro", found, fix)
    files, refusals = _each(contents, partial(sample_csv, dialect=dialect))
    if dialect.options.quote and not dialect.options.multiline and has_quoted_newlines(files, dialect.options):
        dialect = replace(dialect, options=replace(dialect.options, multiline=True))
        files, refusals = _each(contents, partial(sample_csv, dialect=dialect))
    _check_headers(pattern, files, width=dialect.width)
    options, observed = observe_with_null(files, dialect.options)
    sample = Sample(format=Format.CSV, files=tuple(files), observed=observed, csv=options, notes=(*notes, *refusals))
    return _not_empty(sample)


def _check_headers(pattern: str, files: Sequence[Sampled], *, width: int) -> None:
    """Refuse a header that is not that of the records, and files with different ones."""
    first = files[0]
    if first.header == ("",):
        fix = "Remove the empty lines above the header"
        raise FileRefused(first.listed.url, "a name for each field in its first line", "its first line is empty", fix)
    if len(first.header) != width:
        found = f"its first line has {counted(len(first.header), 'field')}, and most lines have {width}"
        fix = "Remove lines above the header, or give each field a name"
        raise FileRefused(first.listed.url, "a name for each field in its first line", found, fix)
    for other in files[1:]:
        if first.header and other.header and not set(first.header) & set(other.header):
            found = " and ".join(
                f"{file.listed.name} with the header {', '.join(map(repr, file.header[:_NAMES_SHOWN]))}"
                for file in (first, other)
            )
            raise refused(pattern, found, "files with common columns. Draft each kind with its own pattern")


def _not_empty(sample: Sample) -> Sample:
    """Without a record there is nothing to guess from."""
    if sample.observed.records or any(seen.stored for seen in sample.observed.fields.values()):
        return sample
    url = sample.files[0].listed.url
    options = sample.csv if sample.format is Format.CSV else None
    if not sample.format.is_whole and any(lines_in([part for each in sample.files for part in each.parts], options)):
        raise FileRefused(url, f"records of {sample.format}", "none of its lines is a valid record", "Fix its lines")
    raise NoDraft(url, "it has no complete record yet")
