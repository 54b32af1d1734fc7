"""Upkeep: deletes what no load needs, to free space."""

from pathlib import Path

from sqlalchemy import Engine

from onceload_core.postgres.upkeep import forget_attempts, forget_messages, pipelines, tidy


def delete_unused(engine: Engine, *, home: Path) -> dict[str, int]:
    """Delete what no load needs; return the number deleted of each kind."""
    from onceload_jobs.batch.stage import sweep
    from onceload_jobs.quality.pages import drop_old_pages

    gone = [tidy(engine, name) for name in pipelines(engine)]
    return {
        "sessions_of_old_batches": sum(each.sessions for each in gone),
        "old_audits": sum(each.audits for each in gone),
        "idle_producers": sum(each.producers for each in gone),
        "days_of_business_ids": len(forget_messages(engine)),
        "loads_of_unknown_pipelines": forget_attempts(engine),
        "unused_stages": sweep(engine),
        "old_pages_of_audits": drop_old_pages(home / "quality"),
    }
