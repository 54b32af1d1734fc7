"""Where the fields of a record are in its bytes, and what they are called, as one version of a pipeline file says.

Each version keeps its layout as JSON. Types are a part of it, because a row of typed values is stored in a form that
depends on them. Rules for what is a good record are not: those that are declared now always apply.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from onceload_jobs.pipeline.columns import Kind
from onceload_jobs.pipeline.declared import Declared, Format, Place, Source

_OF_CSV = ("header", "delimiter", "quote", "escape", "null", "multiline")


@dataclass(frozen=True, kw_only=True)
class Layout:
    format: Format
    #: The settings of CSV that find the fields of a record.
    csv: Mapping[str, Any]
    #: The places of fixed width, and the text for null.
    places: tuple[Place, ...]
    null: str
    #: The type of each column, in the declared order.
    types: Mapping[str, str]

    @classmethod
    def of(cls, declared: Declared) -> Self:
        source = declared.source
        return cls(
            format=source.format,
            csv={name: getattr(source.csv, name) for name in _OF_CSV} if source.format is Format.CSV else {},
            places=source.fixed.places,
            null=source.fixed.null,
            types={column.name: str(column.type) for column in declared.columns},
        )

    @classmethod
    def parse(cls, kept: Mapping[str, Any]) -> Self | None:
        """The layout in its JSON; None if another release has written more into it, or less."""
        try:
            layout = cls(
                format=Format(kept["format"]),
                csv=kept["csv"],
                places=tuple(Place(column=name, first=first, end=end) for name, first, end in kept["places"]),
                null=kept["null"],
                types=dict(kept["columns"]),
            )
        except (KeyError, TypeError, ValueError):
            return None
        is_whole = set(layout.csv) == (set(_OF_CSV) if layout.format is Format.CSV else set())
        return layout if is_whole and layout.kept() == kept else None

    def kept(self) -> dict[str, object]:
        """The same as JSON. In an object of `jsonb`, the order of columns would be lost."""
        return {
            "format": str(self.format),
            "csv": dict(self.csv),
            "places": [[place.column, place.first, place.end] for place in self.places],
            "null": self.null,
            "columns": [list(each) for each in self.types.items()],
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.types)

    def applied_to(self, source: Source) -> Source:
        """A source whose records are laid out like this. Its rules stay, such as the one for short lines."""
        return replace(
            source,
            format=self.format,
            csv=replace(source.csv, **self.csv),
            fixed=replace(source.fixed, places=self.places, null=self.null),
        )

    def differences(self, now: "Layout") -> tuple[str, ...]:
        """The settings by which another layout finds other fields."""
        if self.format is not now.format:
            return ("format",)
        found = [name for name, value in self.csv.items() if now.csv[name] != value]
        # Without a header, the order of the columns is all that names a value.
        if self.csv.get("header") is False and "header" not in found and self.names != now.names:
            found.append("columns")
        if set(self.places) != set(now.places):
            found.append("positions")
        if self.null != now.null:
            found.append("null")
        return tuple(found)


_KINDS = "|".join(sorted(map(str, Kind), key=len, reverse=True))
_COLUMN = re.compile(
    rf"(?P<name>[^,]+?) (?P<type>(?:{_KINDS})(?:\([0-9]+(?:,[0-9]+)?\))?(?:\[\])?)(?: not null)?"
    r"(?: at \[(?:\"[^\"\\]*\"(?:, )?)*\])?(?:, |$)"
)


def types_in(text: str) -> Mapping[str, str] | None:
    """The type of each column in the text of an earlier release; None if it may mean several lists of columns."""
    types, at = dict[str, str](), 0
    while at < len(text):
        column = _COLUMN.match(text, at)
        if column is None:
            return None
        types[column["name"]], at = column["type"], column.end()
    return types
