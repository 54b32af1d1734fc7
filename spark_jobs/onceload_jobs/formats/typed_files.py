"""Files whose values have types, such as Parquet: how they are refused, and which of their columns are read."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.formats.chunks import FileRefused, refuse_lacking
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields


def damaged(url: str, why: str, *, kind: str) -> FileRefused:
    found = f"it is damaged or truncated: {why}"
    return FileRefused(url, f"a complete {kind} file", found, "Replace it with a complete copy")


def unsupported(url: str, what: str, *, kind: str) -> FileRefused:
    found = f"it uses {what}, which is not supported"
    expected = f"{'a' if kind == 'Parquet' else 'an'} {kind} file that Onceload can read"
    return FileRefused(url, expected, found, "Rewrite the file without it")


@contextmanager
def decoding(url: str, *, kind: str) -> Iterator[None]:
    """Distinguish a file that is damaged, or uses an unsupported feature, from a store that fails."""
    with errors_naming(url), not_too_deep(url, kind=kind):
        try:
            yield
        except pa.ArrowNotImplementedError as error:
            raise unsupported(url, f"a feature of {kind} ({_line(error)})", kind=kind) from error
        except (pa.ArrowException, OSError, UnicodeError) as error:
            # Errors about content have no errno, unlike those of the system or a store.
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise
            raise damaged(url, _line(error), kind=kind) from error


@contextmanager
def not_too_deep(url: str, *, kind: str) -> Iterator[None]:
    """Refuse a file whose values are nested more deeply than Python can follow."""
    try:
        yield
    except RecursionError as error:
        raise unsupported(url, "values that are nested too deeply", kind=kind) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def check_columns(url: str, columns: tuple[Column, ...], *, names: Sequence[str], has_rows: bool) -> None:
    """Refuse a file that lacks declared columns, unless it is empty."""
    lacking = [column.name for column in columns if column.name not in names] if names or has_rows else []
    refuse_lacking(url, lacking, names=names, place="schema", fix=_FIX_COLUMNS)


_FIX_COLUMNS = (
    "Fix the columns in the pipeline file. Load older files without a column by a pipeline file of their own that does "
    "not declare it"
)


def refuse_extensions(url: str, schema: pa.Schema, names: Collection[str]) -> None:
    """Refuse columns of types that Arrow stores as another type."""
    for field in schema:
        if field.name in names and (extension := find_extension(field)):
            expected = f"columns of plain types, {' or '.join(_KNOWN_EXTENSIONS)}"
            found = f"the column {field.name!r} has the extension type {extension!r}, whose values Onceload cannot read"
            raise FileRefused(url, expected, found, _FIX_EXTENSION)


_FIX_EXTENSION = (
    "Write the values as they should be loaded, for example as text, or remove the column from the pipeline file, with "
    "unknown_fields: ignore"
)
#: A text of JSON and the bytes of a UUID mean the same as the type that stores them.
_KNOWN_EXTENSIONS = ("arrow.json", "arrow.uuid")
#: Where the type is not registered in this process, its name is a note of the field.
_EXTENSION_NAME = b"ARROW:extension:name"


def find_extension(field: pa.Field) -> str | None:
    """The extension type of a field, or of a field inside it, unless its values are known."""
    found = field.type.extension_name if isinstance(field.type, pa.BaseExtensionType) else ""
    found = found or (field.metadata or {}).get(_EXTENSION_NAME, b"").decode(errors="backslashreplace")
    if found:
        return None if found in _KNOWN_EXTENSIONS else found
    if pa.types.is_dictionary(field.type):
        return find_extension(pa.field("", field.type.value_type))
    inside = (field.type.field(at) for at in range(field.type.num_fields))
    return next(filter(None, map(find_extension, inside)), None)


def choose_columns(
    found: Sequence[str], *, url: str, names: Collection[str], unknown_fields: UnknownFields
) -> tuple[list[str], tuple[str, ...]]:
    """Which of the columns of a file are read, and which of them are not declared."""
    undeclared = tuple(name for name in found if name not in names)
    # A record that is bad because of its fields is kept with all of them.
    wanted = [name for name in found if name in names or unknown_fields is not UnknownFields.IGNORE]
    if twice := [name for name, count in Counter(wanted).items() if count > 1]:
        which = f"it has several columns called {', '.join(map(repr, twice))}"
        raise FileRefused(url, "a different name for each column", which, "Rewrite the file with other names")
    return wanted, undeclared
