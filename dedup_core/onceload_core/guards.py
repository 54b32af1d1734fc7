"""Checks that every ledger makes before it claims spans or commits rows, whatever database stores it."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from onceload_core.errors import AlreadyConsumed, ClaimedElsewhere, NeedsAPerson, NotAlone, NotFound
from onceload_core.names import Position, ProducerId
from onceload_core.ports import Commit, Knowledge, Outlook, Session, Settlement, Transaction
from onceload_core.spans import SpanSet


@dataclass(eq=False)
class RowsDiffer(NeedsAPerson):
    pipeline: str
    batch: str
    #: As counted by the database; None if `write_rows` returned no number.
    written: int | None
    expected: int

    def __str__(self) -> str:
        if self.written is None:
            return (
                f"pipeline {self.pipeline}, batch {self.batch}: write_rows did not return the number of rows "
                f"(expected {self.expected:,}). The commit was rolled back, and none of these rows is loaded. Return "
                "the number of rows that the database wrote, such as the rowcount of the statement, and commit again."
            )
        return (
            f"pipeline {self.pipeline}, batch {self.batch}: the database wrote {self.written:,} rows instead of "
            f"{self.expected:,}. The commit was rolled back, and none of these rows is loaded. A trigger, a rule or a "
            "row-level security policy of the target discards or adds rows. Remove it, and load again."
        )


def refuse_other_rows(commit: Commit[Transaction] | Settlement[Transaction], written: object) -> None:
    """Refuse a commit that wrote another number of rows than its receipts state, or does not say how many."""
    if written != commit.counts.loaded:
        counted = written if isinstance(written, int) else None
        raise RowsDiffer(commit.session.pipeline, commit.batch, written=counted, expected=commit.counts.loaded)


def refuse_taken(
    session: Session,
    wanted: Mapping[ProducerId, SpanSet],
    known: Mapping[ProducerId, Knowledge],
    *,
    names: Mapping[ProducerId, str],
    position: Position,
) -> None:
    """Raise if any wanted span is consumed, or claimed by another session."""
    for producer_id, spans in wanted.items():
        knowledge = known.get(producer_id)
        name = names.get(producer_id)
        if name is not None and (knowledge is None or knowledge.state.name != name):
            raise NotAlone(session.pipeline, position, f"producer {producer_id} is no longer {name!r}")
        if knowledge is None:
            raise NotFound("producer", str(producer_id))
        if spans.overlaps(knowledge.state.consumed):
            raise AlreadyConsumed(session.pipeline, (knowledge.state.name,))
        busy = spans & knowledge.claimed
        if busy:
            raise ClaimedElsewhere(session.pipeline, knowledge.state.name, str(busy), "another session")


def refuse_change(
    session: Session, planned: Outlook, now: Outlook, *, committed: AbstractSet[str] | None, names: Iterable[str]
) -> None:
    """Raise if anything was committed since an outlook, or if another session loads more than it did then.

    If it is known which names were committed since then, only those of the claim count.
    """
    if committed is None and now.position != planned.position:
        raise NotAlone(session.pipeline, planned.position, f"position {now.position} was committed")
    added = now.claimed - planned.claimed
    if committed is not None:
        added &= set(names)
        if changed := committed & set(names):
            raise NotAlone(session.pipeline, planned.position, f"{min(changed)} was committed")
    if added:
        raise NotAlone(session.pipeline, planned.position, f"another session has started to load {min(added)}")
