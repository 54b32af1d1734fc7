"""Plant known bugs, each alone in a copy of the source, and show which test catches each.

python -m tests.mutants            all of them; writes docs/mutants.md
python -m tests.mutants fence gap  only those with one of these words in their name; writes nothing
python -m tests.mutants --by TEST  whether this test catches them, and not those that each names; writes nothing

Exit code 1 if the tests fail without any bug, if a bug survives, or if its text is no longer where it should be.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

from tests.mutants.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "mutants.md"
#: All that the tests need.
COPIED = (
    ".dockerignore",
    ".env.example",
    "Dockerfile",
    "compose",
    "dags",
    "dedup_core",
    "docker-compose.yml",
    "docs",
    "handbook",
    "migrations",
    "monitoring",
    "onceload",
    "pipelines",
    "plugins",
    "pyproject.toml",
    "README.md",
    "requirements",
    "spark_jobs",
    "tests",
)
SEED = 1
#: Bugs, each in a copy of its own.
AT_ONCE = 2
#: All tests together, without a bug.
TIMEOUT_S = 3600
#: A bug may make a test wait forever; that counts as caught, and the page reports it.
BUG_TIMEOUT_S = 900
#: How long a test waits; without a bug, the tests pass with it as well.
PATIENCE, PATIENCE_S = "ONCELOAD_TEST_PATIENCE_S", 120
#: For pytest to stop the servers of a test that was interrupted.
STOPPING_TIMEOUT_S = 60
_PYTEST = (
    "-m",
    "pytest",
    "-x",
    "-q",
    "--tb=no",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
    f"--hypothesis-seed={SEED}",
)
#: A fixture that fails is a test that fails; what cannot be collected ends pytest with another code.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(Enum):
    """What the tests said of a bug."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    #: Neither: the text to change is gone, or the tests could not run.
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the table."""

    bug: Bug
    verdict: Verdict
    words: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What the same tests say without a bug."""

    is_passed: bool
    words: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("words", nargs="*", help="only the bugs with one of these in their name")
    parser.add_argument("--by", action="append", default=[], metavar="TEST", help="instead of the tests of each bug")
    arguments = parser.parse_args()
    words, by = arguments.words, tuple(arguments.by)
    bugs = [replace(bug, tests=by or bug.tests) for bug in BUGS if not words or any(word in bug.name for word in words)]
    with ExitStack() as opened, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(AT_ONCE):
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="onceload-mutants-"))
            copies.put(copied_into(Path(folder)))
        whole = without_a_bug(Path(folder), bugs)
        print(whole.words, flush=True)
        if not whole.is_passed:
            return 1
        findings = list(pool.map(partial(tested_in_one_of, copies), bugs))
    if not (words or by):
        PAGE.write_text(page(whole.words, findings), encoding="utf-8")
    left = [finding for finding in findings if finding.verdict is not Verdict.CAUGHT]
    print(f"{len(findings) - len(left)} of {len(findings)} bugs caught")
    return 1 if left else 0


def copied_into(folder: Path) -> Path:
    """A copy of the source that Python prefers to the checkout; it does not even know where that is."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    # The server's account must be able to reach what tests put below.
    folder.chmod(0o755)
    asked = "import onceload_core, onceload_airflow.ingest as dags; print(onceload_core.__file__, dags.__file__)"
    found = python(folder, "-W", "ignore", "-c", asked).stdout
    if not found or not all(Path(path).is_relative_to(folder) for path in found.split()):
        raise SystemExit(f"expected Python to import from {folder}, but it imports {found}")
    return folder


def without_a_bug(copy: Path, bugs: Iterable[Bug]) -> Whole:
    """Whether the tests pass as they are: otherwise a test that fails proves nothing."""
    started = monotonic()
    tests = {test for bug in bugs for test in existing(copy, bug.tests)}
    done = python(copy, *_PYTEST, "--tb=short", f"--numprocesses={AT_ONCE}", "--dist=worksteal", *sorted(tests))
    seconds, is_passed = monotonic() - started, done.returncode == 0
    summary = (done.stdout.strip().splitlines() or ["nothing"])[-1]
    words = (
        f"Without a bug, the same tests pass: {summary.split(' in ')[0]}, {seconds:.0f} s."
        if is_passed
        else f"Without a bug, the tests fail, so they prove nothing:\n{done.stdout}{done.stderr}"
    )
    return Whole(is_passed=is_passed, words=words, seconds=seconds)


def tested_in_one_of(copies: SimpleQueue[Path], bug: Bug) -> Finding:
    copy = copies.get()
    try:
        return show(plant_and_test(copy, bug))
    finally:
        copies.put(copy)


def plant_and_test(copy: Path, bug: Bug) -> Finding:
    """Change the copy, run the tests that should notice, and change it back."""
    started = monotonic()
    file = copy / bug.file
    original = file.read_text(encoding="utf-8")
    tests = existing(copy, bug.tests)
    changed = original
    for correct, wrong in ((bug.correct, bug.wrong), *bug.also):
        if original.count(correct) != 1:
            found = f"{bug.file} holds {correct.strip()!r} {original.count(correct)} times, not once: adapt the bug"
            return Finding(bug=bug, verdict=Verdict.BROKEN, words=found, seconds=0)
        changed = changed.replace(correct, wrong)
    if not tests:
        return Finding(bug=bug, verdict=Verdict.SURVIVED, words=f"no test yet in {', '.join(bug.tests)}", seconds=0)
    file.write_text(changed, encoding="utf-8")
    try:
        verdict, words = tested(copy, tests)
    finally:
        file.write_text(original, encoding="utf-8")
    return Finding(bug=bug, verdict=verdict, words=words, seconds=monotonic() - started)


def tested(copy: Path, tests: Sequence[str]) -> tuple[Verdict, str]:
    try:
        done = python(copy, *_PYTEST, *tests, timeout_s=BUG_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Verdict.CAUGHT, f"waits forever: {', '.join(tests)}"
    failed = _FAILED.search(done.stdout)
    if done.returncode == 1 and failed:
        return Verdict.CAUGHT, failed[1]
    if done.returncode == 0:
        return Verdict.SURVIVED, f"passed by {', '.join(tests)}"
    return Verdict.BROKEN, f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"


def existing(copy: Path, tests: Iterable[str]) -> list[str]:
    """Those whose file is there, or whose folder holds tests."""
    paths = {test: copy / test.partition("::")[0] for test in tests}
    return [test for test, path in paths.items() if path.is_file() or any(path.rglob("test_*.py"))]


def python(copy: Path, *arguments: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run this Python in the copy, and nowhere else."""
    folders = [copy, copy / "dedup_core", copy / "plugins", copy / "spark_jobs"]
    path = os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))
    # A .pyc is trusted by time and size, and a bug may have the size of what it replaces.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "ONCELOAD_FAULT_SEED": str(SEED)}
    environment[PATIENCE] = str(PATIENCE_S)
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            _stop(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _stop(process: subprocess.Popen[str]) -> None:
    """Interrupt pytest, so that it stops the servers it started; kill it if it does not."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=STOPPING_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def show(finding: Finding) -> Finding:
    print(f"{finding.verdict.value:9}{finding.seconds:5.0f} s  {finding.bug.name}  <-  {finding.words}", flush=True)
    return finding


def page(whole: str, findings: Sequence[Finding]) -> str:
    """The table that `docs/mutants.md` keeps."""
    caught = sum(finding.verdict is Verdict.CAUGHT for finding in findings)
    lines = [
        "# Mutants: planted bugs, and the tests that catch them",
        "",
        "Passing tests prove little until they are seen to fail.",
        "Each line is one known bug, planted alone in a copy of the source by one exact change. "
        "`tests/mutants/bugs.py` contains the changes.",
        "If the text that a bug changes is no longer in the source, the run fails, so that the list stays up to date.",
        "",
        f"Command: `make mutants`, run on {datetime.now(UTC):%Y-%m-%d}.",
        whole,
        f"{caught} of {len(findings)} bugs caught.",
        "",
        "| bug planted | caught by | seconds |",
        "| --- | --- | ---: |",
        *(f"| {finding.bug.name} | {_cell(finding)} | {finding.seconds:.0f} |" for finding in findings),
    ]
    return "\n".join(lines) + "\n"


def _cell(finding: Finding) -> str:
    if finding.verdict is Verdict.CAUGHT:
        return f"`{finding.words.removeprefix('tests/')}`"
    return f"**{finding.verdict.value}**: {finding.words}"


if __name__ == "__main__":
    sys.exit(main())
