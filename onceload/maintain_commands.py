"""Upkeep: what frees room, and what nothing depends on."""

import argparse
from dataclasses import asdict

from sqlalchemy import Engine

from dedup_core.errors import ExitCode
from dedup_core.postgres import PostgresLedger
from dedup_core.postgres.upkeep import pipelines, tidy
from onceload.terminal import show_json, words

Arguments = argparse.Namespace


def maintain(arguments: Arguments, engine: Engine) -> ExitCode:
    """Let go of what has ended, of every pipeline."""
    from spark_jobs.stage import sweep

    kept = [tidy(engine, name) for name in pipelines(engine)]
    days = PostgresLedger(engine).forget_messages()
    stages = sweep(engine)
    if arguments.json:
        show_json({"pipelines": [asdict(each) for each in kept], "message_days": len(days), "stages": stages})
    for each in kept:
        words(
            f"pipeline {each.pipeline}: {each.sessions:,} sessions of old batches and {each.audits:,} old audits went"
        )
    words(f"{stages:,} stages that nobody keeps and {len(days):,} days of business ids went")
    return ExitCode.DONE
