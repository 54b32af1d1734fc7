"""The page for assistants: in the form that llmstxt.org describes, with links that lead somewhere."""

import re

from handbook.code import ROOT
from handbook.pages import generated_pages

TEXT = (ROOT / "docs" / "llms.txt").read_text("utf-8")


def test_every_link_for_assistants_leads_to_a_page():
    links = re.findall(r"\]\((.*?)\)", TEXT)
    generated = generated_pages()

    assert [each for each in links if each not in generated and not (ROOT / "docs" / each).is_file()] == []
    assert len(links) > 10


def test_the_page_for_assistants_has_the_form_that_they_expect():
    title, summary, *sections = re.split(r"\n\n(?=>|## )", TEXT)

    assert re.fullmatch(r"# \w+", title)
    assert summary.startswith("> ")
    assert all(re.fullmatch(r"## .+\n\n(- \[.+\]\(.+\): .+\n?)+", each) for each in sections)
