"""What happens, as events with fields, on the logger `onceload`; and how they are shown.

Fields hold names and counts, never values of records. `ONCELOAD_LOG` sets the level (debug, info or warning, which is
the default) and `ONCELOAD_LOG_FORMAT` the format (text or json); Spark's tasks on this machine inherit both.
"""

import json
import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from onceload_core.errors import SettingRefused

LOGGER = "onceload"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
FORMATS = ("text", "json")
_LOG = logging.getLogger(LOGGER)


def event(name: str, *, level: int = logging.INFO, **fields: Any) -> None:  # noqa: ANN401 - whatever a field holds.
    """Log that something happened."""
    if _LOG.isEnabledFor(level):
        words = " ".join([name, *(f"{field}={_shown(value)}" for field, value in fields.items())])
        _LOG.log(level, "%s", words, extra={"event": name, "fields": fields})


def show_events(environment: Mapping[str, str]) -> None:
    """Write events and warnings to stderr; tracebacks of libraries only at level debug."""
    level = level_of(environment, default="warning")
    form = _checked("ONCELOAD_LOG_FORMAT", environment.get("ONCELOAD_LOG_FORMAT") or "text", FORMATS)
    handler = logging.StreamHandler()
    handler.setFormatter(_AsJson() if form == "json" else _AsText())
    if level != "debug":
        # Libraries log tracebacks of errors that a command reports in one sentence, such as Ctrl-C while Spark works.
        handler.addFilter(lambda record: not record.exc_info)
    logging.basicConfig(handlers=[handler], force=True)
    _LOG.setLevel(LEVELS[level])


def level_of(environment: Mapping[str, str], *, default: str) -> str:
    """The level of events, one of `LEVELS`."""
    return _checked("ONCELOAD_LOG", environment.get("ONCELOAD_LOG") or default, LEVELS)


def _checked(name: str, found: str, known: Collection[str]) -> str:
    if found not in known:
        raise SettingRefused(name, repr(found), f"one of {', '.join(known)}")
    return found


class _AsText(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        return f"{at:%Y-%m-%dT%H:%M:%SZ} {record.levelname.lower()} {super().format(record)}"


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        named = {"at": at, "level": record.levelname.lower()}
        if (fields := record.__dict__.get("fields")) is None:
            return json.dumps(named | {"logger": record.name, "message": super().format(record)}, ensure_ascii=False)
        return json.dumps(named | {"event": record.__dict__["event"]} | fields, ensure_ascii=False, default=str)


def _shown(value: object) -> str:
    text = str(value)
    # One line for each event, whatever a file is called.
    return text if text and text.isprintable() and " " not in text else repr(text)
