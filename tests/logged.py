"""The events that the code under test logs."""

import logging


class Logged:
    """The events since the test began."""

    def __init__(self, caplog):
        self._caplog = caplog

    def all(self, *, level=logging.DEBUG):
        events = (each for each in self._caplog.records if each.name == "onceload" and each.levelno >= level)
        return [(each.event, each.fields) for each in events]

    def names(self, *, level=logging.DEBUG):
        return [name for name, _ in self.all(level=level)]

    def one(self, name):
        """The fields of an event that is logged once; seconds differ, but are never negative."""
        (fields,) = [fields for each, fields in self.all() if each == name]
        return {key: value >= 0 if key == "seconds" or key.endswith("_s") else value for key, value in fields.items()}
