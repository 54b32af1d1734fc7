"""Checks of values, before any database sees them."""

from collections.abc import Sequence

from onceload_core.errors import SettingRefused

NAME_BYTES_MAX = 2000
GENERATION_MAX = 2**31 - 1


def check_name(what: str, name: str) -> None:
    """Refuse a name that the database cannot store, or would change."""
    expected = f"1 to {NAME_BYTES_MAX} bytes of UTF-8 without a NUL"
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise SettingRefused(what, f"{name!r:.80}, which is not UTF-8", expected) from error
    if not 0 < size <= NAME_BYTES_MAX or "\x00" in name:
        raise SettingRefused(what, f"{name!r:.80} of {size} bytes", expected)


def check_producers(names: Sequence[tuple[str, int]]) -> None:
    """Refuse names and generations that cannot be registered."""
    for name, generation in names:
        check_name("producer", name)
        if not 1 <= generation <= GENERATION_MAX:
            raise SettingRefused(f"generation of {name}", str(generation), f"1 to {GENERATION_MAX}")


def check_all_different(what: str, found: Sequence[object]) -> None:
    """Refuse values that are given more than once."""
    repeats = len(found) - len(set(found))
    if repeats:
        raise SettingRefused(what, f"{repeats} more than once", "each of them once")
