"""Values of ours as text in the database, for the process that works on them next."""

import json
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")


def encode(value: object) -> str:
    """Serialise a value made of dataclasses, enums, bytes and plain values."""
    # The names of fields may contain unpaired surrogates, which msgspec itself does not write.
    return json.dumps(msgspec.to_builtins(value, str_keys=True))


def decode(of_type: type[Value], text: str) -> Value:
    """Deserialise a value. The text of another release may lack fields that have a default."""
    found = json.loads(text)
    value = msgspec.convert(found, of_type, str_keys=True)
    _refuse_unknown(found, msgspec.to_builtins(value, str_keys=True))
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
