"""The text of an error, which is printed whatever its facts are."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps

_SHOWN_MAX = 200


def whole_message(error: BaseException) -> str:
    """The message with what was added to it on its way."""
    return " ".join([str(error), *getattr(error, "__notes__", ())])


def notes_of(error: BaseException) -> dict[str, list[str]] | None:
    """The notes that were added to an error, as its pickled state."""
    notes = getattr(error, "__notes__", None)
    return {"__notes__": list(notes)} if notes else None


def never_failing(message: Callable[[object], str]) -> Callable[[object], str]:
    """Print the plain facts if the sentence about them fails: otherwise the caller would learn only of that failure."""

    @wraps(message)
    def printed(error: object) -> str:
        try:
            return message(error)
        except Exception:  # noqa: BLE001 - whatever a fact may be.
            facts = fields(error) if is_dataclass(error) else ()
            shown = ", ".join(f"{fact.name}={_shown(getattr(error, fact.name, None))}" for fact in facts)
            return f"{type(error).__name__}: {shown}"

    return printed


def some(names: tuple[str, ...]) -> str:
    """The first of many names."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _shown(fact: object) -> str:
    try:
        text = repr(fact)
    except Exception:  # noqa: BLE001 - such as an integer of many thousand digits.
        return f"({type(fact).__name__})"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
