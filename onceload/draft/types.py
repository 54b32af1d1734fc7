"""The type of a column: the narrowest one that accepts every value that was seen, with room for larger ones."""

from collections import Counter
from dataclasses import dataclass, field, replace

from onceload.draft.values import BOOLEAN_WORDS, Value, Written
from onceload_jobs.pipeline.columns import PRECISION_MAX, ColumnType, Kind

_TEXT, _JSONB, _DOUBLE = (ColumnType(kind=kind) for kind in (Kind.TEXT, Kind.JSONB, Kind.DOUBLE))
_NESTED = {Written.OBJECT, Written.ARRAY}
_TEXTS = {Written.TEXT, Written.WORD, Written.QUOTED_DECIMAL, Written.COMMA_DECIMAL}
_EXACT = {Written.INTEGER, Written.LARGE_INTEGER, Written.DECIMAL}
_NUMBERS = {*_EXACT, Written.EXPONENT, Written.NOT_FINITE}
_MOMENTS = {Written.DATE, Written.TIMESTAMP, Written.TIMESTAMPTZ}
#: For values that are all written in one of these ways.
_KINDS: tuple[tuple[set[Written], Kind], ...] = (
    ({Written.BOOLEAN}, Kind.BOOLEAN),
    ({Written.INTEGER}, Kind.BIGINT),
    ({Written.UUID}, Kind.UUID),
    ({Written.DATE}, Kind.DATE),
    ({Written.DATE, Written.TIMESTAMP}, Kind.TIMESTAMP),
    (_MOMENTS, Kind.TIMESTAMPTZ),
)
#: The digits of money: most columns need no more before and no fewer after the point.
_WHOLE_DIGITS, _FRACTION_DIGITS = 10, 2
#: Later numbers may be a hundred times as large.
_SPARE_WHOLE_DIGITS = 2
#: More digits than these are those of a binary float, and others of its values may have even more.
MANY_FRACTION_DIGITS = 9
_SPARE_FRACTION_DIGITS = 4
_WORDS_MAX = 3


@dataclass(kw_only=True)
class Seen:
    """All values of one field in the sample."""

    written: Counter[Written] = field(default_factory=Counter)
    #: How many records name the field twice.
    twice: int = 0
    #: The most digits of a number before and after its point.
    whole: int = 0
    fraction: int = 0
    #: How many digits after the point decimals in quotes have.
    quoted_fractions: set[int] = field(default_factory=set)
    is_double: bool = True
    #: Different values, and a few of them in lower case.
    distinct: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    #: The types that the schemas of files declare for it, and whether all of them require it.
    stored: set[ColumnType] = field(default_factory=set)
    is_required: bool = False
    #: Whether the schema of a file says times finer than a microsecond, and values have them.
    is_finer: bool = False

    def see(self, raw: str, value: Value) -> None:
        self.written[value.written] += 1
        self.distinct.add(raw)
        self.whole, self.fraction = max(self.whole, value.whole), max(self.fraction, value.fraction)
        self.is_double &= value.is_double
        if value.written is Written.QUOTED_DECIMAL:
            self.quoted_fractions.add(value.fraction)
        if value.written is Written.WORD and len(self.words) < _WORDS_MAX:
            self.words.add(raw.strip(' "').lower())

    @property
    def values(self) -> int:
        """How many values are not null."""
        return self.written.total()

    def without_texts(self) -> "Seen":
        """What it would be without the texts among other values."""
        written = {each: count for each, count in self.written.items() if each not in _TEXTS}
        return replace(self, written=Counter(written))

    @property
    def kinds(self) -> set[Written]:
        """How the values that a column can accept are written."""
        return set(self.written) - {Written.UNFIT}


def type_of(seen: Seen, *, is_json: bool) -> ColumnType:
    """The type for what was seen; in JSON, `jsonb` accepts every value, and `text` neither objects nor arrays."""
    is_of_texts = seen.stored == {_TEXT} and Written.STORED not in seen.kinds
    if seen.stored and not is_of_texts:
        return next(iter(seen.stored)) if len(seen.stored) == 1 else _common(seen.stored)
    if seen.kinds & _NESTED:
        return _JSONB if is_json or seen.kinds <= _NESTED else _TEXT
    return (_find_of_one_kind(seen) or _find_of_numbers(seen) or _TEXT) if seen.kinds else _TEXT


def _find_of_one_kind(seen: Seen) -> ColumnType | None:
    found = next((kind for written, kind in _KINDS if seen.kinds <= written), None)
    if found is None and seen.kinds == {Written.WORD} and _is_boolean(seen.words):
        found = Kind.BOOLEAN
    return ColumnType(kind=found) if found else None


def _common(stored: set[ColumnType]) -> ColumnType:
    """The type for files that store a field in several types."""
    if any(each.kind is not Kind.NUMERIC for each in stored):
        return _TEXT
    scale = max(each.scale or 0 for each in stored)
    whole = max((each.precision or 0) - (each.scale or 0) for each in stored)
    return ColumnType(kind=Kind.NUMERIC, precision=min(PRECISION_MAX, whole + scale), scale=scale)


def _is_boolean(words: set[str]) -> bool:
    """Both words of a pair were seen, unless the words are unmistakable."""
    return words <= BOOLEAN_WORDS[0] or words in BOOLEAN_WORDS


def _find_of_numbers(seen: Seen) -> ColumnType | None:
    """A decimal keeps its digits; only a number with an exponent, NaN or infinity comes from a float."""
    if seen.kinds == {Written.QUOTED_DECIMAL} and len(seen.quoted_fractions) == 1:
        return _exact(seen, fraction=seen.fraction, spare_fraction=0)
    if not seen.kinds <= _NUMBERS or seen.kinds == {Written.NOT_FINITE}:
        return None
    if seen.is_double and not seen.kinds <= _EXACT:
        return _DOUBLE
    return None if Written.NOT_FINITE in seen.kinds else _numeric(seen)


def _numeric(seen: Seen) -> ColumnType | None:
    if not seen.fraction and seen.kinds <= {Written.INTEGER, Written.LARGE_INTEGER}:
        return _exact(seen, fraction=0, spare_fraction=0)
    spare = _SPARE_FRACTION_DIGITS if seen.fraction > MANY_FRACTION_DIGITS else 0
    return _exact(seen, fraction=max(seen.fraction, _FRACTION_DIGITS), spare_fraction=spare)


def _exact(seen: Seen, *, fraction: int, spare_fraction: int) -> ColumnType | None:
    """A numeric with as much of the spare digits as fits, or None if it cannot hold what was seen."""
    if seen.whole + seen.fraction > PRECISION_MAX:
        return None
    scale = max(seen.fraction, min(fraction + spare_fraction, PRECISION_MAX - seen.whole))
    whole = max(_WHOLE_DIGITS, seen.whole + _SPARE_WHOLE_DIGITS)
    return ColumnType(kind=Kind.NUMERIC, precision=min(PRECISION_MAX, scale + whole), scale=scale)
