"""The types of the public names, as a type checker sees them: `make check` checks this file, and nothing runs it."""

from pathlib import Path
from typing import assert_type

import onceload


def of_a_pipeline(path: Path) -> None:
    pipeline = onceload.Pipeline.read(path, values={"ds": "2026-11-20"}, dsn="postgresql:///database")
    assert_type(pipeline, onceload.Pipeline)
    assert_type(onceload.Pipeline.of({"pipeline": "events"}, home=".onceload"), onceload.Pipeline)
    assert_type(pipeline.plan(only=["a.jsonl"], replaces=True), onceload.Plan)
    assert_type(pipeline.plan().to_read, tuple[onceload.FileToRead, ...])
    assert_type(pipeline.load(batch="today", engine="local", on_progress=on_progress), onceload.Report)
    assert_type(pipeline.load().notes, tuple[onceload.Note, ...])
    assert_type(pipeline.stage(wait_s=10.0), onceload.Report)
    assert_type(pipeline.audit("today"), onceload.Audit)
    assert_type(pipeline.audit("today").findings, tuple[onceload.Finding, ...])
    assert_type(pipeline.publish("today", accepts_differences=True), onceload.Report)
    assert_type(pipeline.give_up("today"), bool)
    assert_type(pipeline.verify(deep=True), onceload.Verification)
    assert_type(pipeline.verify().differences, tuple[onceload.Difference, ...])
    assert_type(pipeline.why("a.jsonl"), onceload.Explanation)
    assert_type(pipeline.pause(why="a repair"), onceload.Paused)
    assert_type(pipeline.resume(by="ann"), onceload.Pause | None)
    assert_type(pipeline.recover_state(dry_run=True), onceload.Recovery)
    assert_type(pipeline.recover_rewind(position=3), onceload.Rewind)
    assert_type(pipeline.recover_rebuild(snapshot=path), onceload.Rebuild)


def on_progress(progress: onceload.Progress | onceload.Waiting) -> None:
    match progress:
        case onceload.Progress():
            assert_type(progress.bytes, int)
        case onceload.Waiting():
            assert_type(progress.waits_for, str)


def of_the_database() -> None:
    with onceload.database() as dsn:
        assert_type(dsn, str)


def of_errors(error: onceload.OnceloadError) -> None:
    assert_type(error.exit_code, onceload.ExitCode)
    match error:
        case onceload.CallAgain() | onceload.AskTheLedger() | onceload.WrongUse() | onceload.NeedsAPerson():
            pass
        case _:
            pass


def of_a_refused_file(error: onceload.PipelineFileRefused) -> None:
    assert_type(error.problems, tuple[str, ...])
