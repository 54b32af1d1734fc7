"""The page of the most likely problems: the messages that it quotes are those of the code."""

import re

from handbook.code import ROOT
from handbook.pages import generated_pages

PAGE = ROOT / "docs" / "troubleshooting.md"


def plain(text):
    """Without the marks of Markdown."""
    return re.sub(r"\\(.)", r"\1", text).replace("*", "").replace("`", "")


def test_each_message_that_is_quoted_in_a_heading_is_made_somewhere():
    pages = generated_pages()
    made = plain(pages["reference/errors.md"] + pages["reference/messages.md"])
    headings = re.findall(r"(?m)^## (.*)$", PAGE.read_text("utf-8"))
    quotes = [quote for heading in headings for quote in re.findall('"(.*?)"', heading)]
    # An ellipsis stands for a value.
    quoted = [part.strip() for quote in quotes for part in quote.split("…")]

    assert [each for each in quoted if each not in made] == []
    assert len(quoted) > 10
