"""Text for YAML files that are written here: values of the data stay plain values, and comments stay on their line."""

import json
from decimal import Decimal


def quoted(value: object) -> str:
    """A value as JSON, which is YAML too, except for numbers with an exponent and unprintable characters."""
    if isinstance(value, float):
        return f"{Decimal(str(value)):f}"
    written = json.dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08X}" for sign in written)


def on_one_line(words: str) -> str:
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in words)
