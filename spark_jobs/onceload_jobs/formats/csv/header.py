"""The header of a CSV file."""

from dataclasses import replace

from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.reading import open_stream
from onceload_jobs.formats.chunks import FileRefused, refuse_lacking
from onceload_jobs.formats.csv.dialect import RecordEnds, split_record
from onceload_jobs.formats.lines import BOM
from onceload_jobs.formats.records import RecordRefused
from onceload_jobs.formats.signatures import check_text
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import CsvOptions, MissingColumns

_HEADER_BYTES_MAX = 2**20
_HEADER_STEP_BYTES = 64 * 2**10


def read_header(url: str, options: CsvOptions, *, sealed: bool) -> tuple[str, ...] | None:
    """The field names of a file, read from its header line; None while that line may still grow."""
    first = _first_record(url, options)
    check_text(url, first)
    if first and not first.endswith(b"\n") and not sealed:
        return None
    try:
        return split_header(first, options) if first else ()
    except (UnicodeDecodeError, RecordRefused) as error:
        reason = "it is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _header_refused(url, f"its header line cannot be read: {reason}") from error


def _first_record(url: str, options: CsvOptions) -> bytes:
    ends, begun = RecordEnds(options, starts_file=True), b""
    with open_stream(url) as stream:
        while len(begun) < _HEADER_BYTES_MAX:
            with errors_naming(url):
                block = stream.read(_HEADER_STEP_BYTES)
            found = ends.newlines(block)
            if len(found) or not block:
                return begun + block[: int(found[0]) + 1 if len(found) else None]
            begun += block
    raise _header_refused(url, f"its header line does not end within its first {len(begun)} bytes")


def _header_refused(url: str, found: str) -> FileRefused:
    expected = "a header line that names its columns"
    return FileRefused(url, expected, found, "Fix that line, or set source.options to the format of the file")


def split_header(first_record: bytes, options: CsvOptions) -> tuple[str, ...]:
    """The field names in the first record of a file."""
    line = first_record.removeprefix(BOM).removesuffix(b"\n").removesuffix(b"\r")
    return tuple(name or "" for name in split_record(line.decode(), replace(options, null="")))


def read_checked_header(
    url: str, columns: tuple[Column, ...], options: CsvOptions, *, sealed: bool
) -> tuple[str, ...] | None:
    """The field names of a file, which is refused if they do not include the declared columns."""
    header = read_header(url, options, sealed=sealed)
    if header:
        check_header(url, header, columns, options)
    return header


def check_header(url: str, header: tuple[str, ...], columns: tuple[Column, ...], options: CsvOptions) -> None:
    missing = [column for column in columns if column.name not in header]
    may_miss = options.missing_columns is MissingColumns.IGNORE and len(missing) < len(columns)
    lacking = [column.name for column in missing if column.not_null or not may_miss]
    refuse_lacking(url, lacking, names=header, place="header line", fix=_FIX_HEADER)


_FIX_HEADER = (
    "Fix that line, or the columns or delimiter in the pipeline file, or set missing_columns: ignore to load missing "
    "nullable columns as null"
)
