"""A rewritten file, as from a shell: the message names the command that replaces its rows, and that command works."""

import json
import shlex

import pytest

from onceload_core.errors import ExitCode
from tests.loads.conftest import line

PIPELINE = """
pipeline: events
source: {path: ROOT/*.jsonl, format: jsonl}
columns: {id: bigint not null, amount: "numeric(12,2)", note: text}
target: {table: public.target}
publish: PUBLISH
"""


def rewritten(loads, call, tmp_path, publish):
    """A pipeline file whose first file was loaded, and then rewritten."""
    path = tmp_path / "my events.yaml"
    path.write_text(PIPELINE.replace("ROOT", str(loads.folder)).replace("PUBLISH", publish))
    loads.write("a 1.jsonl", "".join(map(line, range(20))))
    loads.write("b.jsonl", line(100))
    assert call("load", path)[0] is ExitCode.DONE
    loads.write("a 1.jsonl", "".join(map(line, range(50, 55))))
    return path


@pytest.mark.parametrize("command", ["load", "plan"])
def test_the_command_that_replaces_a_rewritten_file_is_named_and_reports_the_rows_that_it_deleted(
    loads, call, tmp_path, command
):
    path = rewritten(loads, call, tmp_path, "staged")

    code, out, err = call(command, path)
    fix = shlex.split((out + err).partition("or run `")[2].partition("`")[0])

    assert code is ExitCode.NEEDS_A_PERSON
    assert fix == ["onceload", "load", str(path), "--only=a 1.jsonl", "--replace"]
    replaced, out, err = call(*fix[1:], "--json")
    assert (replaced, json.loads(out)["replaced"]) == (ExitCode.DONE, {"a 1.jsonl": 20})
    assert "old rows of 1 file that were replaced, in the transaction that wrote the new ones: 20" in err
    assert loads.rows() == [50, 51, 52, 53, 54, 100]
    assert "old rows" not in call("load", path)[2]


def test_no_command_is_named_that_the_pipeline_refuses(loads, call, tmp_path):
    path = rewritten(loads, call, tmp_path, "direct")

    code, _, err = call("load", path)

    assert code is ExitCode.NEEDS_A_PERSON
    assert "set on_rewrite to `new_generation`" in err
    assert "replace" not in err.lower()
    assert call("load", path, "--only", "a 1.jsonl", "--replace")[0] is ExitCode.WRONG_USE
