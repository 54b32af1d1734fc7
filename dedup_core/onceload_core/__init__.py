"""The core of Onceload: decides which records are new, and commits their rows together with the receipts.

A loader does this:

    known = ledger.know(session, [producer_id])[producer_id]
    judgement = judge(offered, consumed=known.state.consumed, claimed=known.claimed)
    if judgement.new:
        ledger.commit(Commit(session=session, batch=batch, advances=(…judgement.new…), write_rows=…))
"""

from onceload_core.errors import CommitOutcomeUnknown, ExitCode, OnceloadError
from onceload_core.pipeline import Guarantee, Pipeline, SnapshotPolicy
from onceload_core.ports import Advance, Claim, Commit, CommitStep, Knowledge, Ledger, Session, SnapshotStore
from onceload_core.replay import Counts, Entry, ProducerState, Receipt, Snapshot, replay
from onceload_core.spans import Span, SpanSet
from onceload_core.verdicts import Judgement, Order, judge, settled

__all__ = [
    "Advance",
    "Claim",
    "Commit",
    "CommitOutcomeUnknown",
    "CommitStep",
    "Counts",
    "Entry",
    "ExitCode",
    "Guarantee",
    "Judgement",
    "Knowledge",
    "Ledger",
    "OnceloadError",
    "Order",
    "Pipeline",
    "ProducerState",
    "Receipt",
    "Session",
    "Snapshot",
    "SnapshotPolicy",
    "SnapshotStore",
    "Span",
    "SpanSet",
    "judge",
    "replay",
    "settled",
]
