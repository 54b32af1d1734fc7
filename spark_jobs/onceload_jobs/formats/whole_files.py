"""Files that are written once: what identifies each, and the row groups in which it is read."""

from dataclasses import dataclass

from onceload_jobs.files.fingerprints import Fingerprint, read_whole
from onceload_jobs.files.reading import look_at
from onceload_jobs.formats.chunks import RowGroup
from onceload_jobs.formats.json.documents import read_documents
from onceload_jobs.formats.orc import footers as orc
from onceload_jobs.formats.parquet import footers as parquet
from onceload_jobs.formats.typed_files import check_columns
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Format


@dataclass(frozen=True, kw_only=True)
class WholeFile:
    fingerprint: Fingerprint
    #: All of its rows, in order.
    row_groups: tuple[RowGroup, ...]
    #: The names of its columns, if its schema has them.
    names: tuple[str, ...] = ()


#: The places of their records are found by reading them to the end, and not in a footer.
_WITHOUT_FOOTER = (Format.JSON, Format.AVRO)


def read_whole_file(of_format: Format, url: str, *, size: int, columns: tuple[Column, ...] = ()) -> WholeFile:
    """Find the rows of a file; refuse one that is not complete, or that lacks one of the columns."""
    # Edges do not show what changed between them. So the places of records are read again in every other version.
    version = look_at(url).version if of_format in _WITHOUT_FOOTER else None
    fingerprint, tail = read_whole(url, size=size)
    match of_format:
        case Format.JSON:
            return WholeFile(fingerprint=fingerprint, row_groups=read_documents(url, fingerprint, version))
        case Format.ORC:
            names, groups = orc.read_names(tail, url=url), orc.read_row_groups(tail, url=url, size=size)
        case Format.AVRO:
            # Its library is an extra.
            from onceload_jobs.formats.avro.rows import read_names_and_groups

            names, groups = read_names_and_groups(url, fingerprint, version)
        case _:
            names, groups = parquet.read_names(tail, url=url), parquet.read_row_groups(tail, url=url, size=size)
    check_columns(url, columns, names=names, has_rows=bool(groups))
    return WholeFile(fingerprint=fingerprint, row_groups=groups, names=names)
