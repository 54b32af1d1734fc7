"""Each command that a message names can be run as printed: its names are filled in, and it is not refused."""

import re
import shlex

import pytest

from onceload.cli import main
from onceload_core.advice import ROWS_OF_A_PROGRAM, Ways
from onceload_core.commands import PIPELINE_FILE
from onceload_core.declaration import ORDER, Declaration
from onceload_core.errors import ExitCode
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from tests.servers import execute

BASE = """
pipeline: my events
source: {path: "landing/*.jsonl", format: jsonl, IN_SOURCE}
columns: {id: bigint not null, n: smallint, gone: boolean}
target: {table: public.target, IN_TARGET}
publish: PUBLISH
MORE
"""


def described(*, source="", target="", publish="staged", more=""):
    filled = {"IN_SOURCE": source, "IN_TARGET": target, "PUBLISH": publish, "MORE": more}
    return re.sub("|".join(filled), lambda found: filled[found[0]], BASE)


MERGE = "write: merge, key: [id]"
TRANSFORM = "transform: {engine: postgres, sql: 'SELECT id, n FROM records'}"
KINDS = {
    "append": described(),
    "direct": described(publish="direct"),
    "in order": described(more="delivery: {mode: ordered}"),
    "no lineage": described(target="lineage: false"),
    "by content": described(source="identity: content"),
    "merge": described(target=MERGE),
    "merge with deletes": described(target=f"{MERGE}, deleted: gone"),
    "merge without lineage": described(target=f"{MERGE}, lineage: false"),
    "transform": described(more=TRANSFORM),
    "transform and merge": described(target=MERGE, more=TRANSFORM),
    "record producer": described(more="producer: {name: gone, sequence: id, order: any}".replace("gone", "n")),
    "ordered record producer": described(more="producer: {name: n, sequence: id, order: ordered}"),
    "business ids": described(more="message_id: {columns: [id], keep: 30d}"),
}
GOOD, BAD = '{"id": 1, "n": 1, "gone": false}\n', '{"id": 2, "n": 70000}\n'


class Shell:
    """The command line, and what it has printed."""

    def __init__(self, dsn, capsys):
        self._environment, self._capsys = {"ONCELOAD_DSN": dsn}, capsys

    def run(self, command):
        self._capsys.readouterr()
        code = main(shlex.split(command), self._environment)
        return code, "".join(self._capsys.readouterr())


def commands_in(printed):
    return [command.removeprefix("onceload ") for command in re.findall(r"`(onceload [^`]*)`", printed)]


@pytest.fixture
def shell(dsn, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "landing").mkdir()
    return Shell(dsn, capsys)


@pytest.fixture(params=[*KINDS.values()], ids=[*KINDS])
def described_as(request, tmp_path):
    (tmp_path / "my events.yaml").write_text(request.param)
    return request.param


def all_can_be_run(shell, printed):
    """Whether each command can be run, one after the other; returns how many there are."""
    commands = commands_in(printed)
    for command in commands:
        assert PIPELINE_FILE not in command
        # Without waiting for a file that another load holds.
        code, said = shell.run(f"{command} --wait 0s" if command.startswith("load ") else command)
        assert code is not ExitCode.WRONG_USE, (command, said)
    return len(commands)


@pytest.mark.usefixtures("described_as")
def test_the_advice_on_a_quarantined_record_can_be_done(shell, tmp_path):
    (tmp_path / "landing" / "a b.jsonl").write_text(GOOD + BAD)
    code, loaded = shell.run("load 'my events.yaml'")
    shown, exported = shell.run("quarantine show 1")[1], shell.run("quarantine export out.jsonl")[1]

    assert (code, all_can_be_run(shell, loaded)) == (ExitCode.DONE, 1)
    assert "quarantine discard" in shown
    assert ("retry" in exported) == ("retry it:" in shown) == ("cannot be retried" not in exported)
    assert all_can_be_run(shell, exported) == 1
    if "already" not in shell.run("quarantine show 1")[1]:
        assert all_can_be_run(shell, shown) >= 1


@pytest.mark.usefixtures("described_as")
def test_the_advice_on_a_rewritten_file_can_be_done(shell, tmp_path):
    file = tmp_path / "landing" / "a b.jsonl"
    file.write_text(GOOD + BAD)
    shell.run("load 'my events.yaml'")
    file.write_text(GOOD.replace("1", "9") * 3)

    code, said = shell.run("load 'my events.yaml'")

    assert code in (ExitCode.NEEDS_A_PERSON, ExitCode.DONE)
    all_can_be_run(shell, said)
    replaces = "--replace" in said
    assert replaces == (shell.run("load 'my events.yaml' --replace --only 'a b.jsonl'")[0] is not ExitCode.WRONG_USE)


@pytest.mark.parametrize("name", ["[x].jsonl", "*.jsonl", "?.jsonl", "[!y].jsonl", "-o.jsonl"])
def test_the_command_that_reloads_a_file_replaces_no_other(shell, tmp_path, name):
    (tmp_path / "my events.yaml").write_text(next(iter(KINDS.values())))
    for file in ("x.jsonl", name):
        (tmp_path / "landing" / file).write_text(GOOD + BAD)
    shell.run("load 'my events.yaml'")
    (tmp_path / "landing" / name).write_text(GOOD.replace("1", "9") * 3)
    _, said = shell.run("load 'my events.yaml'")
    (command,) = (each for each in commands_in(said) if "--replace" in each)

    code, replaced = shell.run(command)

    assert code is ExitCode.DONE
    assert ": 3 loaded, " in replaced


@pytest.mark.usefixtures("described_as")
def test_the_advice_on_a_staged_batch_a_plan_and_a_rewind_can_be_done(shell, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text(GOOD)
    for command in (
        "stage 'my events.yaml' --batch 'b 1' --wait 0s",
        "load 'my events.yaml' --only nothing --wait 0s",
        "consume 'my events.yaml' --session 1 --wait 0s",
        "verify 'my events.yaml'",
        "audit 'my events.yaml' --suggest --batch 'b 2'",
        "recover rewind 'my events.yaml' --position 0",
    ):
        _, said = shell.run(command)
        # A rebuild is for another database. A staged batch would hold its files.
        said = re.sub("`onceload (recover rebuild|stage)[^`]*`", "", said)
        all_can_be_run(shell, said)


@pytest.mark.parametrize("kind", ["append", "merge"])
def test_the_advice_on_a_file_without_a_good_record_can_be_done(shell, tmp_path, kind):
    (tmp_path / "my events.yaml").write_text(KINDS[kind])
    (tmp_path / "landing" / "a.jsonl").write_text(BAD * 9)
    (tmp_path / "landing" / "b.jsonl").write_text(BAD * 9)

    code, said = shell.run("load 'my events.yaml'")

    assert code is ExitCode.NEEDS_A_PERSON
    all_can_be_run(shell, said)


def test_the_values_of_placeholders_are_part_of_the_command(shell, tmp_path):
    (tmp_path / "my events.yaml").write_text(described().replace("landing/*", "landing/{{ ds }}-*"))
    file = tmp_path / "landing" / "1-a.jsonl"
    file.write_text(GOOD)
    shell.run("load 'my events.yaml' --set ds=1")
    file.write_text(GOOD.replace("1", "9"))

    _, said = shell.run("load 'my events.yaml' --set ds=1")
    (command,) = commands_in(said)

    assert "--set ds=1" in command
    assert shell.run(command)[0] is ExitCode.DONE


def test_the_next_step_of_a_state_has_values_and_quotes(shell, tmp_path):
    of_days = described().replace("landing/*", "landing/{{ ds }}-*").replace("my events", "it's")
    of_days = f"# Loaded for {{{{ team }}}}.\n{of_days}"
    (tmp_path / "my events.yaml").write_text(of_days)
    (tmp_path / "landing" / "1-a.jsonl").write_text(GOOD)
    shell.run("load 'my events.yaml' --set ds=1")
    (tmp_path / "landing" / "1-a.jsonl").write_text(GOOD.replace("1", "9"))

    rewritten = shell.run("status --pipelines .")[1]
    shell.run("""pause "it's" --why repair""")
    paused = shell.run("status --pipelines missing")[1]

    for said in (rewritten, paused):
        assert all_can_be_run(shell, said.replace("ds=VALUE", "ds=1")) == 1, said
    assert "when it may load again" in paused


def test_a_staged_batch_is_audited_before_it_is_published(shell, tmp_path):
    suite = "expectations: [{type: expect_column_values_to_not_be_null, kwargs: {column: id}}]"
    (tmp_path / "suite.yaml").write_text(f"{suite}\n")
    (tmp_path / "my events.yaml").write_text(described(more="quality: {suite: suite.yaml}"))
    (tmp_path / "landing" / "a.jsonl").write_text(GOOD)
    shell.run("stage 'my events.yaml' --batch=b")

    code, held = shell.run("load 'my events.yaml' --wait 0s")

    named = [each for each in commands_in(held) if each.startswith(("audit", "publish"))]
    publish, audit, give_up = named
    assert code is ExitCode.CALL_AGAIN
    assert [each.split()[0] for each in named] == ["publish", "audit", "publish"]
    assert "--give-up" in give_up
    assert shell.run(audit)[0] is ExitCode.DONE
    assert shell.run(publish)[0] is ExitCode.DONE


def test_rows_of_a_program_are_given_again_and_late_rows_overwrite_none():
    def instead_of(**texts):
        declared = Declaration(terms={}, rest={"source.path": "landing/*", "transform": "SELECT 1", **texts})
        return Ways.of(declared).instead_of_retry()

    merge = "merge, key id, deleted None, lineage True"
    assert instead_of() == "write the fixed records into a new file below source.path, and load that file"
    assert "into a new file" not in instead_of(**{"source.path": f"{ROWS_OF_A_PROGRAM})"})
    assert "whose key no later record has" in instead_of(target=merge)
    ordered = Declaration(terms={ORDER: "ordered"}, rest={"source.path": "landing/*"})
    assert "a separate pipeline file that declares order: any" in Ways.of(ordered).instead_of_retry()


def test_a_record_whose_file_was_loaded_again_can_only_be_discarded(shell, tmp_path, dsn):
    (tmp_path / "my events.yaml").write_text(KINDS["append"])
    (tmp_path / "landing" / "a.jsonl").write_text(GOOD + BAD)
    shell.run("load 'my events.yaml'")
    shell.run("load 'my events.yaml' --replace")

    said = shell.run("quarantine show 1")[1]

    assert "cannot be retried" in said
    assert all_can_be_run(shell, said) == 1
    assert execute(dsn, "SELECT state FROM onceload.quarantine ORDER BY quarantine_id") == [("discarded",), ("held",)]


def test_a_pipeline_file_that_is_not_here_is_named_as_such(shell, tmp_path):
    file = tmp_path / "my events.yaml"
    file.write_text(KINDS["append"])
    (tmp_path / "landing" / "a.jsonl").write_text(GOOD + BAD)
    shell.run("load 'my events.yaml'")
    file.rename(tmp_path / "elsewhere")

    said = shell.run("quarantine export out.jsonl")[1]

    assert f"`onceload quarantine retry {PIPELINE_FILE} --from out.jsonl`" in said
    assert f"{PIPELINE_FILE} is the pipeline file of my events" in said


@pytest.mark.parametrize("text", KINDS.values(), ids=KINDS)
def test_what_a_version_says_is_what_the_pipeline_file_allows(text):
    from onceload.contradictions import may_choose, may_replace
    from onceload.pipeline_file import parse_text

    declared = parse_text(text, name="x")

    ways = Ways.of(pipeline_with_declaration(declared).declaration)

    assert ways.may_reload == (may_replace(declared) and may_choose(declared) and declared.transform is None)
