"""Events are lines for people or JSON for programs, and hold what they were given."""

import json
import logging
import re
from pathlib import Path

import pytest

from onceload_core.errors import SettingRefused
from onceload_core.events import event, show_events

ROOT = Path(__file__).parents[2]
_LOGGED = re.compile(r"(?:(?:\bevent|_warn)\(\s*|\bis_logged_as(?:: str)? ?= ?)\"(\w+)\"")
_LISTED = re.compile(r"^\| `(\w+)` \| (?:debug|info|warning) \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def _as_before():
    root, ours = logging.getLogger(), logging.getLogger("onceload")
    handlers, level, own = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(own)


def test_an_event_is_one_line_of_text(capsys):
    show_events({"ONCELOAD_LOG": "info"})

    event("chunk_committed", pipeline="events", position=3, file="a b\n.jsonl")
    event("delivery_taken", level=logging.DEBUG, pipeline="events")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.split(" ", 1)[1] == r"info chunk_committed pipeline=events position=3 file='a b\n.jsonl'"


def test_an_event_is_one_document_of_json(capsys):
    show_events({"ONCELOAD_LOG": "debug", "ONCELOAD_LOG_FORMAT": "json"})

    event("delivery_taken", level=logging.DEBUG, pipeline="events", delivery=7)
    logging.getLogger("a.library").warning("50% full")

    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert {**first, "at": None} == {
        "at": None, "level": "debug", "event": "delivery_taken", "pipeline": "events", "delivery": 7,
    }  # fmt: skip
    assert (second["level"], second["logger"], second["message"]) == ("warning", "a.library", "50% full")


def test_events_are_not_shown_unless_they_are_asked_for(capsys):
    show_events({})

    event("chunk_committed", pipeline="events")
    event("session_fenced", level=logging.WARNING, pipeline="events")

    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["session_fenced"]


@pytest.mark.parametrize("name", ["ONCELOAD_LOG", "ONCELOAD_LOG_FORMAT"])
def test_a_setting_that_is_none_is_refused(name):
    with pytest.raises(SettingRefused, match=name):
        show_events({name: "loud"})


def test_the_docs_list_the_events_that_are_logged():
    sources = [file for folder in ("dedup_core", "spark_jobs", "onceload") for file in (ROOT / folder).rglob("*.py")]
    logged = {name for file in sources for name in _LOGGED.findall(file.read_text(encoding="utf-8"))}

    listed = _LISTED.findall((ROOT / "docs/how-to/monitoring.md").read_text(encoding="utf-8"))

    assert sorted(logged) == sorted(listed)
