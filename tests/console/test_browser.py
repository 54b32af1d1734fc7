"""Chromium on the pages: light and dark, wide and narrow, by keyboard alone, without a request to elsewhere."""

import pytest

from onceload.console.standalone import make_standalone_app
from tests.console.browser import CHROMIUM, Watched, chromium, press, served
from tests.waiting import until

pytestmark = [pytest.mark.long(minutes=1), pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

PAGES = {
    "overview": "",
    "timeline": "pipeline?pipeline=well",
    "files": "files?pipeline=well",
    "file": "file?pipeline=well&name=a.jsonl",
    "dead": "file?pipeline=poison&name=a.jsonl",
    "quarantine": "quarantine?pipeline=well",
    "attention": "attention?pipeline=poison",
    "changed": "attention?pipeline=rewritten",
    "quality": "quality?pipeline=well",
    "snapshots": "snapshots?pipeline=well",
    "row": "row?pipeline=well&producer_id=1&sequence=0",
    "value": "row?pipeline=well&column=n&value=3",
    "declaration": "declaration?pipeline=well",
    "rewritten": "rewritten?pipeline=rewritten&name=a.jsonl",
    "run": "run?pipeline=well&batch=none",
    "question": "rewind?pipeline=well&position=0",
    "form": "pause?pipeline=well",
    "jobs": "jobs",
    "error": "file?pipeline=well&name=none",
}


_WIDE = 1280
#: The pages in docs/how-to/console.md, and whether in the dark; `--pictures docs/images` draws them again.
PICTURED = {"overview": False, "timeline": False, "quarantine": False, "rewritten": False, "dead": True}


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(day, browser):
    with served(make_standalone_app(day.access(writes=True), hosts=["127.0.0.1"])) as address:
        with Watched.opened(browser) as watched:
            watched.page.goto(f"{address}/?token=secret")
            until(lambda: watched.page.reload() and "are being listed" not in watched.page.content())
        yield address


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [_WIDE, 400])
def test_every_page_is_easy_to_use_and_asks_for_nothing_elsewhere(browser, address, width, dark, pytestconfig):
    pictures = pytestconfig.getoption("--pictures")
    with Watched.opened(browser, width=width, dark=dark) as watched:
        watched.page.goto(f"{address}/?token=secret")
        assert "token" not in watched.page.url
        for name, path in PAGES.items():
            watched.page.goto(f"{address}/{path}")
            assert watched.violations() == [], name
            assert not watched.is_too_wide(), name
            if pictures and width == _WIDE and name in PICTURED and dark == PICTURED[name]:
                watched.picture(pictures / f"console-{name}.png")

    errors = [each for each in watched.errors if "status of 404" not in each]
    assert errors == []
    assert watched.hosts == {"127.0.0.1"}


def test_the_way_from_the_overview_to_a_bad_record_needs_no_mouse(browser, address):
    with Watched.opened(browser) as watched:
        page = watched.page
        page.goto(f"{address}/?token=secret")
        press(page, "2")
        page.wait_for_url("**/quarantine?pipeline=well")
        press(page, "a.jsonl")
        page.wait_for_url("**/file?pipeline=well&name=a.jsonl")
