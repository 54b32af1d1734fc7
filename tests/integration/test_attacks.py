"""Text that an attacker may write into a file, a name or a record, as the command line meets it."""

import gzip
import json
import os
import resource
import subprocess
import sys

import pytest

from tests.integration.shell import onceload
from tests.servers import execute
from tests.waiting import PATIENCE_S

PIPELINE = """\
pipeline: {name}
source: {{path: {path}, format: jsonl}}
columns: {columns}
target: {{table: {table}}}
publish: direct
"""
MEMORY_BYTES = 2**30


@pytest.fixture
def ready(dsn, tmp_path):
    """A database with the schema, and a folder for files that are loaded."""
    (tmp_path / "in").mkdir()
    return dsn, tmp_path


def call_bounded(*command, dsn=""):
    """Run a command in a process that cannot have much memory."""

    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    return subprocess.run(
        [sys.executable, "-m", "onceload", *command],
        env={**os.environ, "ONCELOAD_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=bound,
    )


def consumed(ready, name="p", **changes):
    """Load the folder as a pipeline with these names."""
    dsn, folder = ready
    file = folder / "p.yaml"
    said = {"name": json.dumps(name), "path": json.dumps(f"{folder}/in/*.jsonl"), "table": "public.target"}
    said |= {"columns": "{n: text}", **changes}
    file.write_text(PIPELINE.format(**said))
    return onceload("consume", str(file), "--session", "one", ONCELOAD_DSN=dsn)


def test_a_pipeline_file_cannot_run_code(tmp_path):
    owned = tmp_path / "owned"
    file = tmp_path / "p.yaml"
    file.write_text(
        f'pipeline: !!python/object/apply:os.system ["touch {owned}"]\n'
        f'source: {{path: !!python/object/apply:subprocess.getoutput ["touch {owned}"], format: jsonl}}\n'
    )

    done = onceload("validate", str(file))

    assert done.returncode == 2
    assert not owned.exists()


def test_a_pipeline_file_cannot_fill_the_memory_with_aliases_of_aliases(tmp_path):
    lines = ["a0: &a0 [" + ",".join(["laugh"] * 10) + "]"]
    lines += [f"a{n}: &a{n} [" + ",".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 12)]
    file = tmp_path / "p.yaml"
    file.write_text("\n".join([*lines, "pipeline: *a11", "columns: *a11"]))

    done = call_bounded("validate", str(file))

    assert done.returncode == 2
    assert f"{file}:13: pipeline: expected text, found a list" in done.stderr


def test_a_value_of_a_placeholder_cannot_lead_out_of_its_folder(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(
        PIPELINE.format(name="p", path=f'"{tmp_path}/in/{{{{ day }}}}/*.jsonl"', table="public.t", columns="{n: text}")
    )

    for away in ("../../etc", "/etc", "a/../../b", "s3://other", "*"):
        done = onceload("validate", str(file), "--set", f"day={away}")
        assert done.returncode == 2, away
        assert "without wildcards, `..` or a leading /" in done.stderr


def test_a_link_in_the_source_cannot_have_a_file_of_the_machine_loaded(ready):
    dsn, folder = ready
    (folder / "secret.jsonl").write_text('{"n": "a secret of the machine"}\n')
    (folder / "in" / "a.jsonl").symlink_to(folder / "secret.jsonl")
    (folder / "in" / "b.jsonl").symlink_to("/etc/passwd")
    (folder / "in" / "c.jsonl").write_text('{"n": "ours"}\n')

    done = consumed(ready)

    assert execute(dsn, "SELECT n FROM target") == [("ours",)]
    assert done.stderr.count("it is a symbolic link that leaves the source's root") == 2


@pytest.mark.parametrize(
    "name", ['x"; DROP TABLE kept; --', "x'; DROP TABLE kept; --", "$$; DROP TABLE kept; --", "%s {} :a %(b)s \\"]
)
def test_a_name_cannot_become_a_statement(ready, name):
    """The name of a pipeline, a column, a table or a file is just a name."""
    dsn, folder = ready
    quoted = '"' + name.replace('"', '""') + '"'
    execute(dsn, "CREATE TABLE kept ()")
    (folder / "in" / f"{name}.jsonl").write_text(json.dumps({name: "a value"}) + "\n")

    done = consumed(ready, name=name, columns=json.dumps({name: "text"}), table=json.dumps(f"public.{quoted}"))

    assert done.returncode == 0, done.stderr
    assert execute(dsn, f"SELECT {quoted} FROM public.{quoted}") == [("a value",)]
    assert execute(
        dsn, "SELECT name, producer FROM onceload.ledger_span JOIN onceload.pipeline USING (pipeline_id)"
    ) == [(name, f"{name}.jsonl")]
    assert execute(dsn, "SELECT count(*) FROM kept") == [(0,)]


def test_a_record_cannot_become_a_statement_or_a_line_of_copy(ready):
    dsn, folder = ready
    values = ["\\.", "\\N", "a\tb", "'); DROP TABLE target; --", "\\\\", "a\r\nb", '"', "\x01"]
    (folder / "in" / "a.jsonl").write_text("".join(json.dumps({"n": each}) + "\n" for each in values))

    done = consumed(ready)

    assert done.returncode == 0, done.stderr
    assert sorted(n for (n,) in execute(dsn, "SELECT n FROM target")) == sorted(values)


@pytest.mark.long
def test_a_small_file_cannot_unpack_to_fill_the_memory(ready):
    dsn, folder = ready
    with gzip.open(folder / "in" / "bomb.jsonl.gz", "wb", compresslevel=9) as packed:
        # One record of 4 GB, in some 4 MB.
        packed.write(b'{"n": "')
        for _ in range(4096):
            packed.write(b"0" * 2**20)
        packed.write(b'"}\n{"n": "behind it"}\n')
    file = folder / "p.yaml"
    path = json.dumps(f"{folder}/in/*.jsonl.gz")
    file.write_text(
        PIPELINE.format(name="p", path=path, table="public.target", columns="{n: text}")
        + "quality: {quarantined_max: 60%}\n"
    )

    done = call_bounded("consume", str(file), "--session", "one", dsn=dsn)

    assert done.returncode == 0, done.stderr
    assert execute(dsn, "SELECT n FROM target") == [("behind it",)]
    assert execute(dsn, "SELECT count(*), max(octet_length(raw)) <= 1048576 FROM onceload.quarantine") == [(1, True)]


def test_a_name_cannot_write_on_the_terminal(ready):
    _, folder = ready
    (folder / "in" / "\x1b[2J\x1b]0;owned\x07.jsonl").write_text('{"n": "x"}\n')

    done = consumed(ready)
    shown = onceload("producers", "--pipeline", "p", ONCELOAD_DSN=ready[0])

    for said in (done.stdout, done.stderr, shown.stdout, shown.stderr):
        assert "\x1b" not in said
        assert "\x07" not in said
