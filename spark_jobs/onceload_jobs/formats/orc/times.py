"""Times of ORC: of any day, to the nanosecond.

A time is stored as two integers: seconds since 2015 in the time zone of its writer, and nanoseconds. Arrow converts
both to one number of nanoseconds, which reaches from 1677 to 2262 only. So it is asked for the seconds as a column of
integers, and for the nanoseconds with zero for all seconds.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from onceload_jobs.formats.casts import mask_of
from onceload_jobs.formats.chunks import RowGroup
from onceload_jobs.formats.orc.arrow import read_columns, read_schema
from onceload_jobs.formats.orc.footers import damaged, file_of_stripe
from onceload_jobs.formats.orc.stripes import StripeFooter, footer_of_stripe, without_seconds
from onceload_jobs.formats.plain_values import half_even, lists
from onceload_jobs.formats.records import Indices

#: The time zones of writers whose clock shows UTC.
_ZERO = ("UTC", "GMT", "Etc/UTC")
#: The start of 2015, from which the seconds count.
EPOCH = datetime(2015, 1, 1, tzinfo=UTC)
_SECOND = 10**6
#: More seconds than this do not fit into microseconds.
_SECONDS_MAX = 2**63 // _SECOND - 1
#: Above this, a time before 1970 was stored with its second rounded up (towards 1970).
_BEGUN_NS = 999_999
_Arrays: TypeAlias = tuple[pa.Array, pa.Array]


def read_times(raw: bytes, group: RowGroup, names: list[str], *, url: str) -> list[pa.Array]:
    """Columns that are times, or have times inside their values."""
    schema = read_schema(file_of_stripe(group, raw))
    with _described(url):
        footer = footer_of_stripe(group, raw, url=url)
    seconds = read_columns(file_of_stripe(group, raw, times_as_seconds=True), names)
    values = max(map(_values, seconds.columns))
    with _described(url):
        changed, stripe = without_seconds(group, raw, footer, values=values)
    nanoseconds = read_columns(file_of_stripe(group, changed, stripe), names)
    return [
        _with_times(schema.field(name).type, (seconds.column(name), nanoseconds.column(name)), footer) for name in names
    ]


@contextmanager
def _described(url: str) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, zlib.error, zstandard.ZstdError) as error:
        raise damaged(url, f"the footer of a stripe cannot be read ({error})") from error


def _values(array: pa.Array) -> int:
    """The most values that are inside an array."""
    if pa.types.is_list(array.type):
        return _values(array.flatten())
    if pa.types.is_map(array.type):
        return max(_values(array.keys), _values(array.items))
    if pa.types.is_struct(array.type):
        return max([len(array), *map(_values, array.flatten())])
    return len(array)


def _with_times(arrow: pa.DataType, read: _Arrays, footer: StripeFooter) -> pa.Array:
    """The values that were read as seconds and as nanoseconds; all others were read twice."""
    values, fine = read
    if pa.types.is_timestamp(arrow):
        return _times(values, fine, None if arrow.tz else _zone(footer), arrow.tz)
    if pa.types.is_list(arrow):
        return lists(values, _with_times(arrow.value_type, (values.flatten(), fine.flatten()), footer))
    if pa.types.is_struct(arrow):
        fields = zip(arrow, values.flatten(), fine.flatten(), strict=True)
        found = [_with_times(field.type, (each, other), footer) for field, each, other in fields]
        return pa.StructArray.from_arrays(found, [field.name for field in arrow], mask=values.is_null())
    if pa.types.is_map(arrow):
        keys = _with_times(arrow.key_type, (values.keys, fine.keys), footer)
        items = _with_times(arrow.item_type, (values.items, fine.items), footer)
        return pa.MapArray.from_arrays(values.offsets, keys, items, mask=values.is_null())
    return values


def _zone(footer: StripeFooter) -> ZoneInfo | None:
    if not footer.zone:
        raise pa.ArrowNotImplementedError("times of a writer that did not store its time zone, as before 2015")
    try:
        return None if footer.zone in _ZERO else ZoneInfo(footer.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise pa.ArrowNotImplementedError(f"times of the unknown time zone {footer.zone!r}") from error


def _shown_by_clock(moments: Indices, zone: ZoneInfo) -> Indices:
    """Refuse times before a zone had an official time, because its writers may have taken the later one."""
    if _local(int(moments.min(initial=_LATE_S)), zone).tzname() == "LMT":
        raise pa.ArrowNotImplementedError(f"times before the time zone {zone.key!r} was defined")
    try:
        in_zone = pa.array(moments).cast(pa.timestamp("s", zone.key))
        shown: Indices = pc.local_timestamp(in_zone).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise pa.ArrowNotImplementedError(f"times of a time zone that Arrow does not know, {zone.key!r}") from error
    # Arrow ignores daylight saving time from 2038 on.
    late = moments >= _LATE_S
    found, places = np.unique(moments[late], return_inverse=True)
    offsets = [_local(moment, zone).utcoffset() or timedelta() for moment in found.tolist()]
    shown = shown.copy()
    shown[late] = moments[late] + np.array([int(each.total_seconds()) for each in offsets], np.int64)[places]
    return shown


def _local(moment: int, zone: ZoneInfo) -> datetime:
    """A moment in this zone, or the nearest that Python has."""
    return datetime.fromtimestamp(min(max(moment, _FIRST_S), _LAST_S), UTC).astimezone(zone)


_LATE_S, _FIRST_S, _LAST_S = (
    int(datetime(year, month, 2, tzinfo=UTC).timestamp()) for year, month in ((2037, 1), (1, 1), (9999, 12))
)


def _times(seconds: pa.Array, nanoseconds: pa.Array, zone: ZoneInfo | None, shown_in: str | None) -> pa.Array:
    """Microseconds, rounded half to even; a time without a zone is what the clock of its writer showed."""
    epoch = int(EPOCH.timestamp())
    offset = (EPOCH.astimezone(zone).utcoffset() if zone else None) or timedelta()
    whole = seconds.fill_null(0).to_numpy() + (epoch - int(offset.total_seconds()))
    # Some writers round seconds before 1970 up: subtract one.
    rest = nanoseconds.cast(pa.int64()).fill_null(0).to_numpy() - epoch * 10**9
    whole = whole - ((whole < 0) & (rest > _BEGUN_NS))
    if zone is not None:
        whole = _shown_by_clock(whole, zone)
    rounded = whole * _SECOND + half_even(rest)
    # The last microsecond values are beyond every calendar.
    rounded[(whole > _SECONDS_MAX) | (whole < -_SECONDS_MAX)] = np.iinfo(np.int64).max
    return pa.array(rounded, mask=mask_of(seconds.is_null())).cast(pa.timestamp("us", shown_in))
