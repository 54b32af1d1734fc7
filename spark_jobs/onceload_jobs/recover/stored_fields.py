"""The fields of quarantined records, and why a record without a field that is declared now cannot be retried.

A record is stored as it was read: a CSV record without the names of its fields, which are in the header of its file,
and a Parquet row with the columns that were declared then.
"""

from collections.abc import Iterator, Mapping, Sequence

from onceload_core.names import ProducerId
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.quarantine import KeptRecord, Refusal
from onceload_jobs.files.fingerprints import Fingerprint, Resemblance, compare
from onceload_jobs.files.listing import Listed, list_files
from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.csv.header import read_checked_header
from onceload_jobs.formats.jsonl.fields import fields_of
from onceload_jobs.formats.records import RecordRefused, ValueRefused
from onceload_jobs.pipeline.declared import Declared, Format


def headers_of(
    declared: Declared, ledger: PostgresLedger, records: Sequence[KeptRecord]
) -> Mapping[ProducerId, tuple[str, ...] | Refusal]:
    """The fields of each CSV file, in order, or why its records cannot be retried."""
    producer_ids = {each.producer_id for each in records}
    if declared.source.format is not Format.CSV:
        return {}
    if not declared.source.csv.header:
        return dict.fromkeys(producer_ids, declared.column_names)
    there = {
        producer_id: _header(declared, listed) for producer_id, listed in _unchanged_files(declared, ledger, records)
    }
    return dict.fromkeys(producer_ids, _GONE) | there


_GONE = Refusal(reason="its file is gone or was rewritten, so the columns of its values are unknown")


def _unchanged_files(
    declared: Declared, ledger: PostgresLedger, records: Sequence[KeptRecord]
) -> Iterator[tuple[ProducerId, Listed]]:
    """The files that still begin with their loaded content."""
    source = declared.source
    listed = {each.name: each for each in list_files(source.path, root=source.root).files}
    known = ledger.find(declared.name, sorted({each.file for each in records}))
    for name, (producer_id, knowledge) in known.items():
        state = knowledge.state
        if name not in listed or state.fingerprint is None:
            continue
        fingerprint = Fingerprint.from_bytes(state.fingerprint)
        found = compare(listed[name], fingerprint, consumed_end=state.consumed.end)
        if found in (Resemblance.SAME, Resemblance.GROWN):
            yield knowledge.shared.producer_id if knowledge.shared else producer_id, listed[name]


def _header(declared: Declared, listed: Listed) -> tuple[str, ...] | Refusal:
    """A file that a load would refuse is refused here too, in the same words."""
    try:
        return read_checked_header(listed.url, declared.columns, declared.source.csv, sealed=True) or ()
    except FileRefused as refused:
        return Refusal(reason=f"{refused.found}; expected {refused.expected}. {refused.fix}")


def find_lacking(declared: Declared, text: bytes) -> Refusal | None:
    """Why a Parquet row cannot be retried: it was stored without a column that is declared now."""
    try:
        stored, _ = fields_of(text.decode())
    except (UnicodeDecodeError, RecordRefused, ValueRefused):
        # Reading it gives the reason.
        return None
    lacking = [name for name in declared.column_names if name not in stored]
    return Refusal(reason=_LACKING.format(", ".join(map(repr, lacking)))) if lacking else None


_LACKING = (
    "the record was stored without a value for {}, a column that is declared now. Load its file again with "
    "`--only FILE --replace` and discard the record, or add the value with `onceload quarantine export` and retry "
    "`--from` that file"
)
