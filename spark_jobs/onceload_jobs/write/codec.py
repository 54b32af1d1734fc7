"""Our values as text in the database, for the next process that works on them."""

import json
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from onceload_core.errors import NeedsAPerson

Value = TypeVar("Value")


@dataclass(eq=False)
class OtherRelease(NeedsAPerson):
    """A value that another release wrote, which this one does not know."""

    why: str

    def __str__(self) -> str:
        return (
            f"another release of Onceload stored this work, and this release cannot read it ({self.why}). Nothing of "
            "it was loaded. Load it with the release that stored it, or stage it again"
        )


def encode(value: object) -> str:
    """Serialise a value made of dataclasses, enums, bytes and plain values."""
    # The names of fields may contain unpaired surrogates, which msgspec itself does not write.
    return json.dumps(msgspec.to_builtins(value, str_keys=True))


def decode(of_type: type[Value], text: str) -> Value:
    """Deserialise a value. The text of another release may lack fields that have a default."""
    try:
        found = json.loads(text)
        value = msgspec.convert(found, of_type, str_keys=True)
        _refuse_unknown(found, msgspec.to_builtins(value, str_keys=True))
    except msgspec.ValidationError as error:
        raise OtherRelease(str(error)) from error
    return value


def _refuse_unknown(found: Any, known: Any) -> None:  # noqa: ANN401 - anything that JSON can hold.
    """Refuse a field that a later release added: what it means could change which bytes are read."""
    if isinstance(found, dict):
        if unknown := found.keys() - known.keys():
            raise msgspec.ValidationError(f"Object contains unknown field `{min(unknown)}`")
        for name, value in found.items():
            _refuse_unknown(value, known[name])
    elif isinstance(found, list) and found:
        # One release wrote them all, with all fields of each, and there may be very many.
        _refuse_unknown(found[0], known[0])
