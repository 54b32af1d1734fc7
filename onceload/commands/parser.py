"""An argument parser that suggests the nearest known word for an unknown one."""

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """It takes no abbreviations: in a script, an option that is added later would change what they mean."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - as the parser above it has it.
        super().__init__(allow_abbrev=False, **given)

    def parse_known_args(  # type: ignore[override] # Its namespace is always a new one.
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is left over here, where the options of the command are known."""
        found, left = super().parse_known_args(args, namespace)
        for each in left:
            if each.startswith("-"):
                option = each.partition("=")[0]
                self.error(f"unknown option {option}{_nearest(option, self._option_string_actions)}")
        if left:
            self.error(f"unexpected: {' '.join(left)}")
        return found, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - as above.
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            raise argparse.ArgumentError(action, f"unknown: {value!r}{_nearest(str(value), known)}")


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
