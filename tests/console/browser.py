"""A real browser on the pages: what it asked for, what it complained about, and what is hard to use."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from fastapi import FastAPI
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

from tests.ports import free_port
from tests.waiting import until

CHROMIUM = shutil.which("chromium")
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def chromium() -> Iterator[Browser]:
    with (
        sync_playwright() as playwright,
        closing(playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=_OPTIONS)) as browser,
    ):
        yield browser


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The app on a port of this machine, in a thread."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@dataclass
class Watched:
    """A page, and all that went wrong on it."""

    context: BrowserContext
    page: Page
    #: Console errors and failed requests.
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    @classmethod
    @contextmanager
    def opened(cls, browser: Browser, *, width: int = 1280, dark: bool = False) -> "Iterator[Watched]":
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        size = ViewportSize(width=width, height=900)
        with closing(browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")) as context:
            watched = cls(context=context, page=context.new_page())
            watched.page.on("console", lambda line: watched._heard(line.type, line.text))
            watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
            watched.page.on("request", lambda request: watched.hosts.add(str(urlsplit(request.url).hostname)))
            yield watched

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

    def violations(self) -> list[str]:
        """What axe finds: each rule with the first element that breaks it."""
        response = Axe().run(self.page).response
        # It has looked at this page, and not at an empty one.
        assert len(response["passes"]) > 10
        found = response["violations"]
        return [f"{each['id']}: {each['nodes'][0]['target']} {each['nodes'][0]['failureSummary']}" for each in found]

    def is_too_wide(self) -> bool:
        """Whether the whole page scrolls to the side."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def picture(self, path: Path) -> None:
        self.page.screenshot(path=path, full_page=True)


def follow(page: Page, role: Literal["button", "link"], name: str) -> None:
    """Click a link or button that leads to another page, and wait until that page is there."""
    with page.expect_navigation():
        page.get_by_role(role, name=name).click()


def press(page: Page, words: str) -> None:
    """Press Tab until the link or button has the focus, and then Enter; it leads to another page."""
    _tab_to(page, words)
    with page.expect_navigation():
        page.keyboard.press("Enter")


def type_into(page: Page, label: str, text: str) -> None:
    """Press Tab until the field has the focus, and replace its text."""
    _tab_to(page, label)
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def _tab_to(page: Page, words: str) -> None:
    for _ in range(200):
        page.keyboard.press("Tab")
        found, outline = page.evaluate(_FOCUSED)
        if found == words:
            assert outline != "none"
            return
    raise AssertionError(f"nothing with the words {words}")


#: The words of a field are those of its label.
_FOCUSED = """() => {
    const focused = document.activeElement
    const label = focused.labels && focused.labels[0]
    const words = label ? label.firstChild.textContent : focused.textContent
    return [words.trim(), getComputedStyle(focused).outlineStyle]
}"""
