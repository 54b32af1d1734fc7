"""Every error of the tree: it says what to do, and it survives the way between processes."""

import pickle
from collections.abc import Mapping
from dataclasses import fields

import pytest

# Imported for the errors that they add to the tree.
import onceload.cli
import onceload.console.reading
import onceload.demo
import onceload.stack  # noqa: F401
import onceload_airflow.connections  # noqa: F401
import onceload_jobs.load.staged.kept_batch
import onceload_jobs.work.spark  # noqa: F401
from onceload import terminal
from onceload_core import errors
from onceload_core.declaration import EditRefused
from onceload_core.errors import ExitCode, LimitReached, OnceloadError
from onceload_core.messages import whole_message
from onceload_core.names import Version


def leaves(error: type[OnceloadError]) -> list[type[OnceloadError]]:
    below = error.__subclasses__()
    return [leaf for each in below for leaf in leaves(each)] if below else [error]


def an_example_of(error: type[OnceloadError]) -> OnceloadError:
    samples = {"str": "sample", "int": 7, "int | None": 7, "tuple[str, ...]": ("a", "b")}
    samples[str(Version)] = Version(7, None)
    samples[str(Mapping[str, str])] = {"a": "sample", "b": "sample"}
    values = {
        field.name: samples[
            getattr(field.type, "__name__", str(field.type)) if field.type in (str, int) else str(field.type)
        ]
        for field in fields(error)
    }
    if error is LimitReached:
        values["limit"] = "islands_max"
    if error is EditRefused:
        values["key"] = "producer"
    return error(**values)


EXAMPLES = [an_example_of(each) for each in leaves(OnceloadError)]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_facts_and_its_words(error):
    back = pickle.loads(pickle.dumps(error))

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert [getattr(back, field.name) for field in fields(error)] == [
        getattr(error, field.name) for field in fields(error)
    ]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_what_to_do_and_has_an_exit_code_that_is_not_done(error):
    assert len(str(error)) > 30
    assert error.exit_code in set(ExitCode) - {ExitCode.DONE}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_the_drawing_of_the_tree_names_every_error(error):
    assert f"── {type(error).__name__} " in (errors.__doc__ or "")


class Hidden:
    def __repr__(self) -> str:
        raise ZeroDivisionError


ODD_FACTS = {
    "nothing": None,
    "bytes": b"\xff\x00",
    "a lone surrogate": "a\udcff.jsonl",
    "a control character": "a\x1b[2J\n",
    "a huge text": "x" * 1_000_000,
    "a huge number": 10**5_000,
    "a fact that cannot be shown": Hidden(),
    "many": tuple(range(10_000)),
}


@pytest.mark.parametrize("odd", ODD_FACTS.values(), ids=ODD_FACTS.keys())
@pytest.mark.parametrize("error", leaves(OnceloadError), ids=lambda error: error.__name__)
def test_an_error_is_printed_whatever_its_facts_are(error, odd, capsysbinary):
    made = error(*[odd for _ in fields(error)])

    terminal.lines_of_words(f"onceload: {whole_message(made)}")
    terminal.show_json({"message": whole_message(made)})

    shown = capsysbinary.readouterr()
    assert len(shown.err.decode()) > 20
    assert b"\x1b" not in shown.err
    assert whole_message(pickle.loads(pickle.dumps(made))) == whole_message(made)


def test_what_an_error_learned_on_its_way_survives_pickling():
    error = an_example_of(LimitReached)
    error.add_note("Before this error, the load had committed 7 rows. They stay loaded.")

    assert whole_message(pickle.loads(pickle.dumps(error))).endswith("had committed 7 rows. They stay loaded.")
