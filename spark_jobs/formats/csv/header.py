"""The header of a CSV file."""

from dataclasses import replace

from spark_jobs.files.addresses import told
from spark_jobs.files.reading import open_stream
from spark_jobs.formats.csv.dialect import RecordEnds, split_record
from spark_jobs.formats.lines import BOM
from spark_jobs.formats.records import FileRefused, RecordRefused
from spark_jobs.formats.signatures import check_text
from spark_jobs.pipeline.columns import Column
from spark_jobs.pipeline.declared import CsvOptions, MissingColumns

_HEADER_BYTES_MAX = 2**20
_HEADER_STEP_BYTES = 64 * 2**10


def read_header(url: str, options: CsvOptions, *, sealed: bool) -> tuple[str, ...] | None:
    """The names of a file's fields, which later parts of it do not show; none while its first record may go on."""
    first = _first_record(url, options)
    check_text(url, first)
    if first and not first.endswith(b"\n") and not sealed:
        return None
    try:
        return split_header(first, options) if first else ()
    except (UnicodeDecodeError, RecordRefused) as error:
        reason = "it is no valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _header_refused(url, f"that line cannot be read: {reason}") from error


def _first_record(url: str, options: CsvOptions) -> bytes:
    ends, begun = RecordEnds(options, starts_file=True), b""
    with open_stream(url) as stream:
        while len(begun) < _HEADER_BYTES_MAX:
            with told(url):
                block = stream.read(_HEADER_STEP_BYTES)
            found = ends.newlines(block)
            if len(found) or not block:
                return begun + block[: int(found[0]) + 1 if len(found) else None]
            begun += block
    raise _header_refused(url, f"that line has no end in its first {len(begun)} bytes")


def _header_refused(url: str, found: str) -> FileRefused:
    expected = "begin with a line that names its columns"
    return FileRefused(url, expected, found, "mend that line, or set source.options to how the file is written")


def split_header(first_record: bytes, options: CsvOptions) -> tuple[str, ...]:
    """The names of the fields, from a file's first record."""
    line = first_record.removeprefix(BOM).removesuffix(b"\n").removesuffix(b"\r")
    return tuple(name or "" for name in split_record(line.decode(), replace(options, null="")))


def check_header(url: str, header: tuple[str, ...], columns: tuple[Column, ...], options: CsvOptions) -> None:
    """Refuse a file whose first line shows that it is not of these columns: all its values would be null."""
    missing = [column for column in columns if column.name not in header]
    may_miss = options.missing_columns is MissingColumns.IGNORE and len(missing) < len(columns)
    lacking = [column.name for column in missing if column.not_null or not may_miss]
    if lacking:
        names = ", ".join(map(repr, header[:_NAMES_SHOWN])) + (", ..." if len(header) > _NAMES_SHOWN else "")
        raise FileRefused(
            url,
            f"name the declared columns in its first line, among them {', '.join(lacking[:_NAMES_SHOWN])}",
            f"that line names {names}",
            "mend that line or the delimiter, or set missing_columns: ignore, which leaves nullable ones null",
        )


_NAMES_SHOWN = 5
