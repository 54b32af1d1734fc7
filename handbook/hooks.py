"""Hooks of MkDocs: the generated pages, links that leave docs/, and diagrams and Markdown without the internet."""

import posixpath
import re
from importlib.resources import files as files_of
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from handbook.code import ROOT
from handbook.pages import generated_pages

#: Files beside docs/ that are pages too.
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
MERMAID = "assets/javascripts/mermaid.js"
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
_CODE_LINK = re.compile(r"\[([^\]]+)\]\(code:\)")
#: A script, a style, a font or a picture from another place.
_FROM_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|link rel=\"(?:stylesheet|preconnect|preload)\")[^>]*\"(?:https?:)?//[^\"]*\""
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    texts = {page: (ROOT / name).read_text("utf-8") for name, page in BESIDE.items()}
    for place, text in {**texts, **generated_pages()}.items():
        files.append(File.generated(config, place, content=text))
    script = files_of("mermaidx") / "assets" / "mermaid.js"
    files.append(File.generated(config, MERMAID, abs_src_path=str(script)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages; a file of code has none."""
    origin = next((name for name, place in BESIDE.items() if place == page.file.src_uri), f"docs/{page.file.src_uri}")

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[1]))
        place = BESIDE.get(target, target.removeprefix("docs/"))
        if target == "docs/decisions":
            place = "decisions/0001-one-transaction.md"
        if files.get_file_from_path(place) is None and (ROOT / target).exists():
            return "code:"
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".") + (match[2] or "")

    markdown = _CODE_LINK.sub(r"`\1`", _LINK.sub(link, markdown))
    _written_beside(page, config, markdown)
    return markdown


def _written_beside(page: Page, config: MkDocsConfig, markdown: str) -> None:
    """The page as Markdown, for programs that read llms.txt."""
    path = Path(config.site_dir, page.file.src_uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown, "utf-8")


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load the script of the diagrams on the pages that have one. Without it, the theme would ask the internet."""
    if 'class="mermaid"' not in html:
        return html
    return f'<script src="{get_relative_url(MERMAID, page.file.url)}"></script>\n{html}'


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that needs the internet."""
    if found := _FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri}: it loads something from elsewhere: {found[0]}")
    return output
