"""Detect files that are not UTF-8 text in lines by their first bytes, regardless of their names."""

from onceload_jobs.files.footers import ORC
from onceload_jobs.files.reading import read_at
from onceload_jobs.formats.chunks import FileRefused

_LOOK_BYTES = 64 * 2**10
_UNPACK = "Unpack it, or compress it with gzip or zstd"
_CONVERT = "Convert it to UTF-8"
_EXPECTED = "text in UTF-8"
#: The first bytes of an Avro file.
AVRO = b"Obj\x01"
#: Long enough that no text starts with one by chance.
_SIGNATURES = (
    (b"\x1f\x8b\x08", "it is compressed with gzip", "Give it a name that ends in .gz, or unpack it"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd", "Give it a name that ends in .zst, or unpack it"),
    (b"BZh91AY&SY", "it is compressed with bzip2", _UNPACK),
    (b"\xfd7zXZ\0", "it is compressed with xz", _UNPACK),
    (b"\x04\x22\x4d\x18", "it is compressed with lz4", _UNPACK),
    (b"PK\x03\x04", "it is a zip archive", _UNPACK),
    (b"PAR1\x15", "it is a Parquet file", "Declare it with format: parquet in a pipeline of its own"),
    (AVRO, "it is an Avro file", "Declare it with format: avro in a pipeline of its own"),
    (b"\xff\xfe", "it is text in UTF-16 or UTF-32", _CONVERT),
    (b"\xfe\xff", "it is text in UTF-16", _CONVERT),
    (b"\0\0\xfe\xff", "it is text in UTF-32", _CONVERT),
)


def check_text(url: str, begins: bytes) -> None:
    """Refuse a file that does not begin like text; without newlines, `begins` must hold a whole maximum record."""
    check_signature(url, begins)
    if _ends_in_returns(begins):
        fix = "Convert it, for example with tr '\\r' '\\n'"
        raise FileRefused(url, "lines that end with newlines", "its lines end in carriage returns alone", fix)


def check_signature(url: str, begins: bytes) -> None:
    """Refuse a file whose first bytes are those of another format or encoding."""
    for signature, found, fix in _SIGNATURES:
        if begins.startswith(signature):
            raise FileRefused(url, _EXPECTED, found, fix)
    # A text may begin with the same letters, but no text has bytes of zero.
    if begins.startswith(ORC) and b"\0" in begins:
        fix = "Declare it with format: orc in a pipeline of its own"
        raise FileRefused(url, _EXPECTED, "it is an ORC file", fix)


def check_plain_text(url: str, *, record_bytes_max: int) -> None:
    """Check the beginning of a file that is not compressed."""
    begins = read_at(url, offset=0, size=_LOOK_BYTES)
    if _ends_in_returns(begins) and len(begins) == _LOOK_BYTES:
        begins = read_at(url, offset=0, size=record_bytes_max)
    check_text(url, begins)


def _ends_in_returns(begins: bytes) -> bool:
    # The last byte may be the first of a CR LF pair.
    return b"\n" not in begins and b"\r" in begins[:-1]
