"""Sample files of one JSON array, by the whole records at its beginning, and files of one JSON object."""

from collections.abc import Sequence
from dataclasses import replace

from onceload.draft.files import NoDraft
from onceload.draft.observe import is_json_record
from onceload.draft.sample import PIECE_BYTES, Sampled
from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import open_stream
from onceload_jobs.formats.chunks import FileRefused, Part
from onceload_jobs.formats.json.documents import EXPECTED as DOCUMENT
from onceload_jobs.formats.json.tokens import Tokens
from onceload_jobs.formats.lines import BOM

_SAMPLE_BYTES = 3 * PIECE_BYTES
_LOOK_BYTES = 1024


def are_documents(files: Sequence[Listed]) -> bool:
    """Whether each file is a JSON array or a single object.

    An object on one line counts only if another file is certainly not JSON lines.
    """
    of_one_line = [each for each in files if not _is_document(each)]
    return len(of_one_line) < len(files) and all(map(_is_of_one_object, of_one_line))


def _is_document(listed: Listed) -> bool:
    """Whether a file is an array or an object on several lines. Errors are reported later, by sampling."""
    try:
        begins = _beginning(listed, _LOOK_BYTES)
    except OnceloadError:
        return False
    return _inside(begins) is not None or (_may_be_object(begins) and _is_of_one_object(listed))


def _is_of_one_object(listed: Listed) -> bool:
    try:
        return _is_object(_beginning(listed, _SAMPLE_BYTES))
    except OnceloadError:
        return False


def _may_be_object(begins: bytes) -> bool:
    """Whether it may be an object on several lines. A file of one line is JSON lines."""
    first, newline, _ = begins.strip().partition(b"\n")
    return bool(newline) and first.startswith(b"{") and not _is_object(first)


def _is_object(raw: bytes) -> bool:
    try:
        return is_json_record(raw.decode().strip())
    except UnicodeDecodeError:
        return False


def sample_document(listed: Listed) -> Sampled:
    """The records that end within the beginning of a file."""
    raw = _beginning(listed, _SAMPLE_BYTES)
    inside = _inside(raw)
    elements, rest = _elements(inside) if inside is not None else ([raw.strip()], b"")
    if not elements and not rest:
        raise NoDraft(listed.url, f"it has no complete record in its first {len(raw):,} bytes")
    _check(listed.url, elements, rest or b"")
    joined = b",".join(elements)
    part = Part(producer_id=ProducerId(0), first=0, end=len(joined), raw=joined)
    return Sampled(listed=listed, parts=(part,), is_whole=rest is not None and len(raw) < _SAMPLE_BYTES)


def _check(url: str, elements: Sequence[bytes], rest: bytes) -> None:
    """Refuse what a load refuses: arrays as records, and more than one document."""
    if not any(each.startswith(b"{") for each in elements):
        is_of_arrays = rest.startswith(b"[") or any(each.startswith(b"[") for each in elements)
        found = "its records are arrays, not objects" if is_of_arrays else "its records are single values, not objects"
        fix = "Write each record as an object with a name for each value, or as a line of CSV"
        raise FileRefused(url, DOCUMENT, found, fix)
    if rest:
        found = f"there is more text after its array: {rest[:_REST_SHOWN].decode(errors='backslashreplace')!r}"
        fix = "Write the records of all arrays as one array, or one on each line (jq -c '.[]')"
        raise FileRefused(url, DOCUMENT, found, fix)


_REST_SHOWN = 20


def _elements(inside: bytes) -> tuple[list[bytes], bytes | None]:
    """The whole elements of an array, and what follows behind it; None if it does not end."""
    structure = Tokens().feed(inside)
    closed = structure.positions[structure.depths < 0][:1].tolist()
    ends = [each for each in structure.commas(depth=0).tolist() if not closed or each < closed[0]] + closed
    starts = [0, *(end + 1 for end in ends)]
    found = [element for start, end in zip(starts, ends, strict=False) if (element := inside[start:end].strip())]
    return found, inside[closed[0] + 1 :].strip() if closed else None


def as_lines(files: Sequence[Sampled]) -> list[Sampled]:
    """The same records with one on each line: in JSON, no string has a newline."""
    return [replace(file, parts=tuple(map(_as_lines, file.parts))) for file in files]


def _as_lines(part: Part) -> Part:
    raw = part.raw.replace(b"\n", b" ")
    commas = Tokens().feed(raw).commas(depth=0)
    lines = bytearray(raw)
    for comma in commas.tolist():
        lines[comma] = ord("\n")
    return replace(part, raw=bytes(lines))


def _beginning(listed: Listed, size: int) -> bytes:
    with errors_naming(listed.url), open_stream(listed.url) as stream:
        return stream.read(size).removeprefix(BOM)


def _inside(raw: bytes) -> bytes | None:
    """What follows the opening bracket."""
    begins = raw.lstrip()
    return begins[1:] if begins.startswith(b"[") else None
