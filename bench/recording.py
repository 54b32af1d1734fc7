"""Run a command, and draw what it prints as an SVG whose lines appear as they came.

    python -m bench.recording docs/images/demo.svg onceload demo

Long pauses are shortened; the seconds that the command prints itself stay true. Viewers that ask for less motion, and
those that cannot animate, show all lines at once.
"""

import subprocess
import sys
import time
from html import escape
from pathlib import Path
from textwrap import wrap

_PAUSE_S_MAX = 1.6
_COLUMNS, _LINE_PX, _LETTER_PX, _EDGE_PX = 112, 19, 7.8, 18
_STYLE = """\
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d6deeb; white-space: pre }
  .typed { fill: #7fdbca }
  @keyframes appear { to { opacity: 1 } }
  @media (prefers-reduced-motion: no-preference) { .line { opacity: 0; animation: appear 1ms forwards } }
"""


def main(picture: str, command: list[str]) -> int:
    lines, code = recorded(command)
    Path(picture).write_text(drawn("$ " + " ".join(command), lines), encoding="utf-8")
    return code


def recorded(command: list[str]) -> tuple[list[tuple[float, str]], int]:
    """Each line with the second at which it is to appear, and the exit code."""
    lines, shown_at, last = [], 1.0, time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout or ():
            print(line, end="", flush=True)
            shown_at, last = shown_at + min(time.monotonic() - last, _PAUSE_S_MAX), time.monotonic()
            lines.append((shown_at, line.rstrip()))
    return lines, running.returncode


def drawn(typed: str, lines: list[tuple[float, str]]) -> str:
    shown = [(shown_at, part) for shown_at, line in lines for part in _wrapped(line)]
    width = _EDGE_PX * 2 + max(len(text) for _, text in [(0.0, typed), *shown]) * _LETTER_PX
    height = _EDGE_PX * 2 + (len(shown) + 1) * _LINE_PX
    texts = [
        f'<text class="line" x="{_EDGE_PX}" y="{_EDGE_PX + (number + 2) * _LINE_PX - 5}"'
        f' style="animation-delay: {shown_at:.1f}s">{escape(text)}</text>'
        for number, (shown_at, text) in enumerate(shown)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
            f"<title>{escape(typed)}</title>",
            f"<style>\n{_STYLE}</style>",
            '<rect width="100%" height="100%" rx="8" fill="#10202f"/>',
            f'<text class="typed" x="{_EDGE_PX}" y="{_EDGE_PX + _LINE_PX - 5}">{escape(typed)}</text>',
            *texts,
            "</svg>\n",
        ]
    )


def _wrapped(line: str) -> list[str]:
    """A line in parts, of which the later ones start below the text after the seconds."""
    return wrap(line, _COLUMNS, subsequent_indent=" " * 8, drop_whitespace=False) or [""]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
