"""An action: the question before it, and the answer after it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fastapi import Request
from sqlalchemy import Engine

from onceload.console.access import Access, Link
from onceload.lag import Described
from onceload_core.errors import SettingRefused

#: Of the largest bigint.
_DIGITS_MAX = 19


def no_pipeline_file(pipeline: str) -> SettingRefused:
    expected = (
        "its file in the folder of pipeline files (`onceload ui --pipelines FOLDER`, or ONCELOAD_PIPELINES under "
        "Airflow; a new file is found within a minute)"
    )
    return SettingRefused("this action", f"no file of pipeline {pipeline}", expected)


@dataclass(frozen=True)
class Asked:
    """A request for an action on one pipeline."""

    access: Access
    request: Request
    engine: Engine
    pipeline: str
    #: The fields of the form, or the query of the address.
    values: Mapping[str, str]
    #: The pipeline file, if this process can read it.
    described: Described | None

    @cached_property
    def user(self) -> str:
        return self.access.user(self.request)

    @property
    def file(self) -> Described:
        if self.described is None:
            raise no_pipeline_file(self.pipeline)
        return self.described

    def number(self, name: str) -> int:
        given = self.values.get(name, "")
        if not given.isdecimal() or len(given) > _DIGITS_MAX or int(given) >= 2**63:
            raise SettingRefused(name, repr(given), "a whole number")
        return int(given)


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field that the user fills in."""

    name: str
    label: str
    value: str = ""
    is_long: bool = False


@dataclass(frozen=True, kw_only=True)
class Question:
    """What would happen, in sentences with numbers."""

    title: str
    sentences: tuple[str, ...]
    #: What the button says; None if there is nothing to do.
    button: str | None
    #: Shown instead of the button, if the user must open another page first.
    link: Link | None = None
    field: Field | None = None
    #: What the sentences were about, such as the position or the digest of a record: the answer refuses anything else.
    seen: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What has happened."""

    sentences: tuple[str, ...]
    #: The page that shows it.
    link: Link


@dataclass(frozen=True, kw_only=True)
class Action:
    ask: Callable[[Asked], Question]
    #: A question comes back if what the user wrote was refused.
    do: Callable[[Asked], Answer | Question]
