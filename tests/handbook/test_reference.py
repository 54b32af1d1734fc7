"""The generated pages: an entry with a text for everything that a user may meet."""

import json
import re

import pytest

from handbook import environment
from handbook.code import ROOT, Code
from handbook.commands import all_commands
from handbook.errors import GROUPS, causes, find_errors
from handbook.messages import messages_by_kind
from handbook.metrics import name_of
from handbook.pages import generated_pages
from handbook.pipeline_keys import SCHEMA, all_keys
from onceload.cli import build_parser
from onceload.metrics import families
from onceload_core.errors import ExitCode, OnceloadError
from onceload_jobs.pipeline.columns import Kind
from tests import words


@pytest.fixture(scope="module")
def code():
    return Code()


def entry(page, heading):
    """The text below a heading, up to the next one."""
    found = re.search(rf"(?ms)^#+ {re.escape(heading)}$\n(.*?)(?=^#|\Z)", generated_pages()[f"reference/{page}.md"])
    return found[1].strip() if found else ""


def row(page, name):
    """The cells of the row that begins with a name."""
    found = re.search(rf"(?m)^\| `{re.escape(name)}` \|(.*)\|$", generated_pages()[f"reference/{page}.md"])
    return [cell.strip() for cell in found[1].split("|")] if found else [""] * 3


def test_every_command_has_an_entry_with_all_its_options():
    shared = entry("commands", "Options of every command")

    for parser in all_commands(build_parser()):
        text = entry("commands", parser.prog)
        options = [option for action in parser._actions for option in action.option_strings]

        assert str(parser.description) in text
        assert [option for option in options if f"`{option}" not in text + shared] == []


def test_every_key_of_a_pipeline_file_has_an_entry():
    keys = [key for key, _, _ in all_keys(json.loads(SCHEMA.read_text("utf-8")))]

    assert [key for key in keys if len(entry("pipeline-file", key)) < 10] == []
    assert "transform.sql" in keys


def test_every_type_has_an_entry_with_a_value_that_it_accepts():
    assert [kind for kind in Kind if not row("types", kind)[1].startswith("`")] == []


def test_every_error_has_an_entry_with_its_cause_and_its_message(code):
    leaves = set(find_errors(code)) - {"OnceloadError", *GROUPS}

    assert [name for name in leaves if not re.match(r"Cause: \w.{10,}", entry("errors", name))] == []
    assert [name for name in leaves if not re.search(r"(?m)^> .{5,}", entry("errors", name))] == []
    assert leaves <= set(causes(code))


def test_the_errors_that_are_read_from_the_code_are_those_that_python_has(code):
    def below(error):
        return {error.__name__}.union(*map(below, error.__subclasses__()))

    found = find_errors(code)

    assert below(OnceloadError) <= set(found)
    assert {name: number for name, (number, _, _) in GROUPS.items()} == {
        error.__name__: error.exit_code for error in OnceloadError.__subclasses__()
    }
    assert {ExitCode.DONE, *(number for number, _, _ in GROUPS.values())} == set(ExitCode)


def test_every_metric_has_an_entry():
    names = [name_of(each) for each in families()]

    assert [name for name in names if len(row("metrics", name)[2]) < 10] == []
    assert "onceload_up" in names


def test_every_environment_variable_of_the_code_has_an_entry_and_no_other_has():
    assert environment.variables_in_code() == set(environment.VARIABLES)
    assert [name for name in environment.VARIABLES if len(row("environment", name)[0]) < 10] == []


def test_every_variable_of_the_compose_file_has_an_entry():
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text("utf-8")))

    table = entry("environment", "The compose file")

    assert [name for name in used if not re.search(rf"(?m)^\| `{name}` \|.*\| .{{10,}} \|$", table)] == []


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("errors", "the database did not answer COMMIT"),
        ("errors", "These critical expectations of *suite*"),
        ("errors", "opening a connection failed"),
        ("errors", "is another way: `onceload maintain` then deletes idle ones"),
        ("errors", "it was rewritten while it was read"),
        ("messages", "another run is loading it"),
        ("messages", "no file matches it"),
        ("messages", "did you mean"),
        ("messages", "null, but declared not null"),
        ("messages", "it would be rounded to"),
        ("messages", "**row from nowhere**: these rows match no record"),
        ("messages", "went to quarantine. Run `onceload quarantine list"),
    ],
)
def test_a_message_is_found_by_its_words(page, printed):
    assert printed in generated_pages()[f"reference/{page}.md"]


def test_each_kind_of_message_has_messages(code):
    assert all(messages_by_kind(code).values())


def test_generated_pages_have_no_word_that_is_not_used():
    rules = words.Rules(words.PAGE.read_text("utf-8"))

    assert {
        name: found for name, text in generated_pages().items() if (found := list(rules.broken_in(text, ".md")))
    } == {}
