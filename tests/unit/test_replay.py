"""The law of the ledger: a state is an earlier state plus the entries between."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from dedup_core.names import Batch, Position, ProducerId
from dedup_core.replay import Condition, Counts, Entry, EntryKind, Receipt, replay
from tests.unit.test_spans import span_sets

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@st.composite
def receipts(draw):
    producer_id = draw(st.integers(1, 4))
    return Receipt(
        producer_id=ProducerId(producer_id),
        producer=f"file-{producer_id}",
        generation=1,
        spans=draw(span_sets()),
        rows=draw(st.integers(0, 5)),
        digest=draw(st.none() | st.binary(max_size=3)),
        fingerprint=draw(st.none() | st.binary(max_size=3)),
        size=draw(st.none() | st.integers(0, 100)),
        condition=draw(st.sampled_from(Condition)),
    )


@st.composite
def ledgers(draw):
    drafts = st.tuples(st.sampled_from([*[EntryKind.LOAD] * 4, EntryKind.FORGET]), st.lists(receipts(), max_size=3))
    return [
        entry(number, kind, some) for number, (kind, some) in enumerate(draw(st.lists(drafts, max_size=8)), start=1)
    ]


def entry(position: int, kind: EntryKind, some: list[Receipt]) -> Entry:
    return Entry(
        position=Position(position),
        kind=kind,
        batch=Batch("b"),
        counts=Counts(),
        bytes=0,
        committed_at=NOON,
        session=None,
        epoch=None,
        run=None,
        receipts=tuple(some),
    )


@given(entries=ledgers(), data=st.data())
def test_a_restart_from_any_snapshot_loses_nothing(entries, data):
    cut = data.draw(st.integers(0, len(entries)))
    snapshot = replay({}, entries[:cut])

    assert replay(snapshot, entries[cut:]) == replay({}, entries)


@given(entries=ledgers())
def test_replaying_from_every_cut_gives_the_same_states(entries):
    whole = replay({}, entries)

    assert all(replay(replay({}, entries[:cut]), entries[cut:]) == whole for cut in range(len(entries) + 1))
