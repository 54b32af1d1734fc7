"""The history of one name: its generations, their commits, and the sessions that load them now."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from onceload_core.names import Position, ProducerId
from onceload_core.postgres.connection import statements, transaction, translated
from onceload_core.postgres.ledger import one_view
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.stages import with_lost
from onceload_core.replay import Condition, EntryKind
from onceload_core.spans import SpanSet

SQL = statements("history.sql")
_LIVE_CLAIMS_OF = with_lost(SQL["live_claims_of"])
_NAMES_MAX = 50_000


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One generation of a file, or one producer that records name."""

    producer_id: ProducerId
    name: str
    generation: int
    consumed: SpanSet
    size: int | None
    condition: Condition
    changed_at: datetime
    quarantined: int
    #: This name consumed nothing itself: its file is a copy of that producer's.
    copy_of: str | None
    #: It was idle longer than the pipeline allows, and its state was deleted.
    is_forgotten: bool


@dataclass(frozen=True, kw_only=True)
class CommittedSpans:
    """What one commit consumed of a producer."""

    position: Position
    committed_at: datetime
    batch: str
    kind: EntryKind
    generation: int
    spans: SpanSet
    rows: int
    #: Its spans are from a file that was read for it.
    is_of_file: bool


@dataclass(frozen=True, kw_only=True)
class ClaimedSpans:
    """Spans of a producer that are being loaded, wait to be loaded, or are dead letters."""

    spans: SpanSet
    batch: str
    delivery: int
    state: str
    #: The session that holds it, and its deadline.
    session: str | None
    until: datetime | None


@dataclass(frozen=True, kw_only=True)
class History:
    """All that the database knows of one name."""

    generations: tuple[Generation, ...]
    commits: tuple[CommittedSpans, ...]
    claims: tuple[ClaimedSpans, ...]


def history_of(engine: Engine, pipeline: str, name: str) -> History:
    """All generations of a name, their commits, and the sessions that load them now."""
    with translated(pipeline=pipeline, doing=f"reading the history of {name}"), one_view(engine) as connection:
        binds = {"pipeline_id": get_pipeline(connection, pipeline).pipeline_id, "name": name}
        generations = tuple(
            Generation(
                producer_id=row.producer_id,
                name=row.name,
                generation=row.generation,
                consumed=SpanSet.parse(row.consumed),
                size=row.size,
                condition=Condition(row.condition),
                changed_at=row.advanced_at,
                quarantined=row.quarantined,
                copy_of=row.copy_of,
                is_forgotten=row.is_forgotten,
            )
            for row in connection.execute(SQL["generations"], binds)
        )
        return History(generations=generations, commits=_commits(connection, binds), claims=_claims(connection, binds))


def _commits(connection: Connection, binds: dict[str, object]) -> tuple[CommittedSpans, ...]:
    return tuple(
        CommittedSpans(
            position=row.position,
            committed_at=row.committed_at,
            batch=row.batch,
            kind=EntryKind(row.kind),
            generation=row.generation,
            spans=SpanSet.parse(row.spans),
            rows=row.rows,
            is_of_file=bool(row.is_of_file),
        )
        for row in connection.execute(SQL["commits_of"], binds)
    )


def _claims(connection: Connection, binds: dict[str, object]) -> tuple[ClaimedSpans, ...]:
    return tuple(
        ClaimedSpans(
            spans=SpanSet.parse(row.spans),
            batch=row.batch,
            delivery=row.delivery_id,
            state=row.state,
            session=row.session,
            until=row.deadline_at,
        )
        for row in connection.execute(_LIVE_CLAIMS_OF, binds)
    )


def names_of(engine: Engine, pipeline: str) -> tuple[str, ...]:
    """The names of a pipeline's producers, up to a limit."""
    with transaction(engine, pipeline, doing="reading names") as connection:
        binds = {"pipeline_id": get_pipeline(connection, pipeline).pipeline_id, "at_most": _NAMES_MAX}
        return tuple(connection.execute(SQL["names"], binds).scalars())
