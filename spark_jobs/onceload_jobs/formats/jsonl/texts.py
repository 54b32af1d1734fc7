"""The texts of raw JSON values, which are cast like those of every other format."""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_jobs.formats.jsonl.slices import RawValues, counts_between, texts_from
from onceload_jobs.formats.records import Mask
from onceload_jobs.formats.values import WRITTEN_BARE
from onceload_jobs.pipeline.columns import ColumnType, Kind

_QUOTE = ord('"')
_text_of = msgspec.json.Decoder(str).decode


def texts_of(raw: RawValues, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    """The text of each value, and the values that have none."""
    if column_type.kind is Kind.JSONB:
        return raw.texts(raw.nulls), np.zeros(len(raw.nulls), np.bool_)
    is_string = raw.firsts == _QUOTE
    refused = (raw.firsts == ord("{")) | (raw.firsts == ord("["))
    if column_type.kind not in WRITTEN_BARE:
        refused |= ~is_string & ~raw.nulls
    texts = _without_quotes(raw, raw.nulls | refused) if is_string.any() else raw.texts(raw.nulls | refused)
    escaped = is_string & (raw.counts(b"\\") > 0)
    if escaped.any():
        bounds = zip(raw.offsets[:-1][escaped].tolist(), raw.offsets[1:][escaped].tolist(), strict=True)
        written = pa.array([_text_of(raw.block[start:end]) for start, end in bounds], pa.string())
        texts = pc.replace_with_mask(texts, pa.array(escaped), written)
    return texts, refused


def _without_quotes(raw: RawValues, nulls: Mask) -> pa.Array:
    """The texts of strings without escapes, in which a quote cannot occur."""
    quotes = raw.octets == _QUOTE
    before = np.concatenate([[0], np.cumsum(counts_between(raw.offsets, quotes))])
    return texts_from(raw.octets[~quotes].tobytes(), raw.offsets - before, nulls)
