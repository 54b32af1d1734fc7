"""A suite file, read with the line of each error.

It contains expectations of Great Expectations. That library checks their names and kwargs later, at the audit, because
importing it takes seconds.
"""

import re
from pathlib import Path

import yaml

from onceload.pipeline_yaml import Document, Section
from onceload.yaml_nodes import is_text, is_whole_number
from onceload.yaml_values import flag, not_what, one_of, some_text, text
from onceload_jobs.pipeline.declared import Expectation, Severity

_TYPE = re.compile(r"expect_[a-z0-9_]+")
_NUMBER = re.compile(r"-?[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_NOTHING = ("", "~", "null")


def read_suite(document: Document, path: Path) -> tuple[Expectation, ...]:
    """Read one file; errors go to its document."""
    root = document.open(path)
    if root is None:
        return ()
    expectations = tuple(_expectation(each) for each in root.sections("expectations"))
    if not expectations and not document.problems:
        root.refuse(
            "expectations", "expected at least one; add it below, such as `- type: expect_column_values_to_not_be_null`"
        )
    document.refuse_unknown_keys()
    return expectations


def _expectation(section: Section) -> Expectation:
    kwargs = section.section("kwargs")
    return Expectation(
        type=section.need("type", _type, example="type: expect_column_values_to_not_be_null", stand_in="unnamed"),
        kwargs={key: kwargs.need(key, _value, example="", stand_in=None) for key in kwargs.keys},
        severity=section.take("severity", one_of(Severity), default=Expectation.severity),
    )


def _type(node: yaml.Node) -> str:
    name = some_text(node)
    if not _TYPE.fullmatch(name):
        raise not_what(node, "the name of an expectation, such as expect_column_values_to_be_unique")
    return name


def _value(node: yaml.Node) -> object:
    """Plain values only: text, numbers, booleans, null, and lists and mappings of them."""
    match node:
        case yaml.SequenceNode():
            return [_value(each) for each in node.value]
        case yaml.MappingNode():
            return {text(key): _value(value) for key, value in node.value}
        case _:
            return _scalar(node)


def _scalar(node: yaml.Node) -> object:
    if is_text(node):
        return text(node)
    if is_whole_number(node):
        return int(node.value)
    if _NUMBER.fullmatch(node.value):
        return float(node.value)
    return None if node.value in _NOTHING else flag(node)
