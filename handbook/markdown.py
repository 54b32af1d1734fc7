"""Texts of the code as Markdown."""

import html
import re

from handbook.texts import CLOSE, OPEN

_NAMED = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def in_markdown(text: str) -> str:
    """A message: names of values in italics, code as code, everything else as it is printed."""
    # Between backticks is code, where Markdown means nothing.
    pieces = _apart(text.replace("\n", " ")).split("`")
    return "".join(_as_code(piece) if at % 2 else _as_prose(piece) for at, piece in enumerate(pieces))


def _apart(text: str) -> str:
    """Two values side by side would be one in Markdown; one without a name says nothing beside another."""
    named = re.sub(f"{OPEN}…{CLOSE}(?={OPEN})|(?<={CLOSE}){OPEN}…{CLOSE}", "", text)
    return named.replace(CLOSE + OPEN, f"{CLOSE} {OPEN}")


def in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _as_code(text: str) -> str:
    return f"`{_NAMED.sub(lambda match: match[1].upper(), text)}`"


def _as_prose(text: str) -> str:
    escaped = re.sub(r"([\\*_{}\[\]])", r"\\\1", html.escape(text, quote=False))
    return _NAMED.sub(r"*\1*", escaped)
