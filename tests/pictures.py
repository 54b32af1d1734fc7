"""Pictures in the docs that are made from the code: `python -m tests.pictures` draws them again."""

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from onceload_core.delivery import TRANSITIONS, State

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "parallel-loading.md"
_PICTURE = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def states_of_a_delivery() -> str:
    """The table of transitions as Mermaid draws it."""
    steps = sorted(
        ((before, after, event) for (before, event), after in TRANSITIONS.items()),
        key=lambda step: (list(State).index(step[0]), list(State).index(step[1])),
    )
    grouped = groupby(steps, key=lambda step: step[:2])
    lines = [
        f"    {before} --> {after}: {' or '.join(event for *_, event in some)}" for (before, after), some in grouped
    ]
    ends = [state for state in State if state not in {before for before, _ in TRANSITIONS}]
    return _drawn(["    [*] --> waiting: offer", *lines, *(f"    {state} --> [*]" for state in ends)])


def _drawn(lines: Iterable[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def with_pictures(page: str) -> str:
    return _PICTURE.sub(lambda _: states_of_a_delivery(), page)


if __name__ == "__main__":
    PAGE.write_text(with_pictures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
