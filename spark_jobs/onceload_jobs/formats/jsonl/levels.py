"""The fields of JSON objects that columns are read from, level by level: a path leads through objects."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onceload_jobs.formats.jsonl.fields import fields_of
from onceload_jobs.formats.jsonl.slices import (
    RawValues,
    Slicer,
    Slices,
    has_each_name_once,
    has_slices,
    names_in,
    raw_fields,
)
from onceload_jobs.formats.records import Mask, RecordRefused, ValueRefused
from onceload_jobs.pipeline.columns import Column, written_path

#: How many undeclared fields are taken apart together.
_SLICES_MAX = 100
#: A name that fewer than one line of so many has is not worth that.
_RARE = 20


@dataclass(frozen=True, kw_only=True)
class Level:
    """The fields of one object: those that are columns, and those whose own fields are."""

    columns: dict[str, Column] = field(default_factory=dict)
    objects: dict[str, "Level"] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.columns, *self.objects))

    @property
    def have_slices(self) -> bool:
        """Whether the fields of all levels can be taken apart."""
        return all(map(has_slices, self.names)) and all(below.have_slices for below in self.objects.values())

    @property
    def is_ambiguous(self) -> bool:
        """Whether a field is a column itself, and others are read from inside it."""
        return not self.columns.keys().isdisjoint(self.objects) or any(
            below.is_ambiguous for below in self.objects.values()
        )


def levels_of(columns: Sequence[Column]) -> Level:
    """The top level of the records with these columns."""
    top = Level()
    for column in columns:
        *above, name = column.steps
        level = top
        for step in above:
            level = level.objects.setdefault(step, Level())
        level.columns[name] = column
    return top


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Many objects, taken apart."""

    values: Mapping[str, RawValues]
    below: Mapping[str, "Apart"]
    #: The objects of which each field is there, and none twice, on every level.
    whole: Mask

    def at(self, steps: Sequence[str]) -> RawValues:
        name, *rest = steps
        return self.below[name].at(rest) if rest else self.values[name]


class Splitter:
    """Takes objects apart into the fields of a level, also into undeclared ones that occur often."""

    def __init__(self, level: Level, *, ignores: bool, ignores_below: bool) -> None:
        self._names, self._ignores = level.names, ignores
        self._slicer = Slicer(tuple(level.names))
        self._slices_max = len(level.names) + _SLICES_MAX
        self._below = {
            # An object that is a column itself is kept with all of its fields.
            name: Splitter(each, ignores=ignores_below or name in level.columns, ignores_below=ignores_below)
            for name, each in level.objects.items()
        }

    def apart(self, objects: Sequence[bytes]) -> Apart:
        slices = self._slices(objects)
        whole, below = slices.whole, dict[str, Apart]()
        for name, splitter in self._below.items():
            below[name] = splitter.apart(_objects_of(slices.values[name]))
            whole &= below[name].whole & ~splitter.refused(below[name])
        return Apart(values=slices.values, below=below, whole=whole)

    def refused(self, apart: Apart) -> Mask:
        """The objects with a field that is not declared, unless such fields are ignored."""
        found = np.zeros(len(apart.whole), np.bool_)
        for name in () if self._ignores else apart.values.keys() - self._names:
            found |= apart.values[name].present
        return found

    def _slices(self, objects: Sequence[bytes]) -> Slices:
        slices = self._slicer.slices(objects)
        known = self._slicer.names
        others = [objects[at] for at in np.flatnonzero(~slices.whole).tolist()] if len(known) < self._slices_max else []
        often = (name for name, count in names_in(others).most_common() if count * _RARE >= len(objects))
        new = [name for name in often if name not in known and has_slices(name)][: self._slices_max - len(known)]
        if new:
            self._slicer = Slicer((*known, *new))
            slices = self._slicer.slices(objects)
        if self._ignores:
            # Fields that are ignored need not be known, however many there are.
            for at in np.flatnonzero(~slices.whole).tolist():
                slices.whole[at] = has_each_name_once(objects[at])
        return slices


def undeclared_in(objects: Iterable[bytes], level: Level, above: str = "") -> Counter[str]:
    """In how many objects each undeclared field is; one inside another object counts by its path."""
    found = Counter[str]()
    for each in objects:
        fields = raw_fields(each)
        found.update(f"{above}{name}" for name in fields if name not in level.names)
        for name in fields.keys() & (level.objects.keys() - level.columns.keys()):
            found += undeclared_in([bytes(fields[name])], level.objects[name], f"{above}{name}.")
    return found


def _objects_of(raw: RawValues) -> list[bytes]:
    """The bytes of each value; an object that is missing or null has no fields."""
    bounds = zip(raw.offsets[:-1].tolist(), raw.offsets[1:].tolist(), raw.nulls.tolist(), strict=True)
    return [b"{}" if is_null else raw.block[start:end] for start, end, is_null in bounds]


@dataclass(frozen=True)
class Fields:
    """The raw value of each field of one object, and the names that occur twice."""

    raw: dict[str, str]
    twice: set[str]

    @classmethod
    def of(cls, text: str) -> "Fields":
        try:
            return cls(*fields_of(text))
        except ValueRefused as refused:
            raise RecordRefused(str(refused)) from None

    def value_of(self, column: Column) -> str:
        """The raw value at the path of a column; null if an object above it is missing."""
        fields = self
        *above, name = column.steps
        for depth, step in enumerate(above, start=1):
            raw = fields.only(step, column)
            if raw == "null":
                return raw
            if not raw.startswith("{"):
                found = "an array" if raw.startswith("[") else "a single value"
                raise RecordRefused(
                    f"{found} at {written_path(column.steps[:depth])}, not an object", column=column.name
                )
            fields = Fields.of(raw)
        return fields.only(name, column)

    def only(self, name: str, column: Column) -> str:
        if name in self.twice:
            raise RecordRefused("the field occurs twice", column=column.name)
        return self.raw.get(name, "null")

    def undeclared_below(self, level: Level) -> Iterator[str]:
        """The paths of fields in objects of which other fields are columns."""
        for name, below in level.objects.items():
            raw = self.raw.get(name, "null")
            if name not in level.columns and raw != "null":
                inner = Fields.of(raw)
                yield from (f"{name}.{each}" for each in inner.raw if each not in below.names)
                yield from (f"{name}.{each}" for each in inner.undeclared_below(below))
