"""Rows in files whose records name their producer: as long as all ids are new, no table is needed."""

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from onceload_core.ports import Claim
from onceload_core.verdicts import Order
from onceload_jobs.batch import named_file, pieces
from onceload_jobs.batch.pieces import StagedPiece, begin_try, move_to_table
from onceload_jobs.batch.spool import write_file
from onceload_jobs.batch.stage import Stage
from onceload_jobs.load.staged import staged_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Publish, RecordProducer
from onceload_jobs.publish import early_copy, named_rows
from onceload_jobs.publish.by_producer import ByProducer
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads
from tests.servers import execute

pytestmark = pytest.mark.parametrize("publish", [Publish.STAGED])

_COLUMNS = {"device": "text", "seq": "bigint", "note": "text"}


def record(device: object, seq: int, note: object = "") -> str:
    return json.dumps({"device": device, "seq": seq, "note": note}) + "\n"


@pytest.fixture(autouse=True)
def _devices(loads: Loads) -> None:
    """Pieces of about ten records."""
    loads.declared = replace(
        loads.declared,
        columns=tuple(parse_column(*each) for each in _COLUMNS.items()),
        producer=RecordProducer(name="device", sequence="seq"),
        source=replace(loads.declared.source, chunk_bytes=400),
    )


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How often the server decided which rows of the table are new."""
    times: list[Any] = []
    select_new = ByProducer.select_new

    def noted(self: ByProducer, connection: Any) -> Any:
        times.append(self)
        return select_new(self, connection)

    monkeypatch.setattr(ByProducer, "select_new", noted)
    return times


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose rows were moved to the table."""
    files: list[str] = []

    def move(engine: Any, stage: Stage, file: str) -> None:
        files.append(file)
        move_to_table(engine, stage, file)

    for module in ("onceload_jobs.publish.early_copy", "onceload_jobs.publish.publish"):
        monkeypatch.setattr(f"{module}.move_to_table", move)
    return files


def consumed_by(loads: Loads) -> dict[str, str]:
    return {state.name: str(state.consumed) for state in loads.ledger.states("events").states.values()}


def test_rows_of_new_ids_are_written_once_with_the_lineage_of_their_producers(loads, decided):
    devices = ["a", "b", "\U0001f4a7", "with \t and \\"]
    loads.write("1.jsonl", "".join(record(device, seq) for seq in range(50) for device in devices))
    loads.load()
    loads.write("2.jsonl", "".join(record(device, 2 * seq) for seq in range(30, 40) for device in devices))

    report = loads.load()

    assert (report.loaded, report.duplicates, decided) == (40, 0, [])
    names = dict(loads.ask("SELECT producer_id, name FROM onceload.producer"))
    rows = loads.rows("device, seq, _producer_id, _sequence")
    assert len(rows) == 240
    assert all((names[of], sequence) == (f"device={device}", seq) for device, seq, of, sequence in rows)
    ids = ["[0,50)", *(f"[{2 * seq},{2 * seq + 1})" for seq in range(30, 40))]
    assert {name: spans for name, spans in consumed_by(loads).items() if "=" in name} == {
        f"device={device}": f"{{{','.join(ids)}}}" for device in devices
    }
    assert verify(loads.declared, loads.engine, deep=True).differences == ()


@pytest.mark.parametrize("runs_max", [1, 500_000])
@pytest.mark.parametrize("seed", range(6))
def test_files_and_the_table_give_the_same_rows_and_the_same_ledger(loads, monkeypatch, decided, seed, runs_max):
    """Batches of new ids, of ids that an earlier batch had, and of ids that occur twice in one piece or in two."""
    monkeypatch.setattr(named_rows, "_RUNS_MAX", runs_max)
    rng, seen = Random(seed), dict.fromkeys("abc", 0)
    ways = {"in_files": named_rows.may_name_in_files, "in_table": lambda *_, **__: False}
    found: dict[str, list[object]] = {way: [] for way in ways}
    for number in range(5):
        loads.write(f"{number}.jsonl", _batch(rng, seen))
        for way, may_name_in_files in ways.items():
            monkeypatch.setattr(staged_batch, "may_name_in_files", may_name_in_files)
            named = replace(loads.declared.pipeline, name=way)
            loads.declared = replace(loads.declared, pipeline=named, target=replace(loads.declared.target, table=way))
            report = loads.load()
            found[way].append((report.loaded, report.duplicates, report.quarantined))
    for way in ways:
        found[way].append({state.name: str(state.consumed) for state in loads.ledger.states(way).states.values()})
        found[way].append(
            loads.ask(
                f"SELECT device, seq, note, name, _sequence FROM {way} JOIN onceload.producer"
                " ON producer_id = _producer_id ORDER BY 1, 2, 3"
            )
        )

    assert found["in_files"] == found["in_table"]
    assert len(decided) >= 5


def _batch(rng: Random, seen: dict[str, int]) -> str:
    lines = []
    for _ in range(rng.randrange(40)):
        device = rng.choice("abc")
        if rng.random() < 0.02 and seen[device]:
            lines.append(record(device, rng.randrange(seen[device]), rng.random()))
        else:
            seen[device] += rng.choice((1, 1, 1, 3))
            lines.append(record(device, seen[device], rng.random()))
    return "".join(lines)


def test_an_id_that_occurs_again_in_another_piece_moves_all_rows_to_the_table(loads, decided, moved):
    lines = [record("a", seq, f"first {seq}") for seq in range(60)]
    loads.write("1.jsonl", "".join([*lines, record("a", 3, "again")]))

    report = loads.load()

    assert (report.loaded, report.duplicates) == (60, 1)
    assert decided
    assert len(moved) > 3
    assert loads.rows("seq, note") == [(seq, f"first {seq}") for seq in range(60)]


def test_an_id_that_another_load_brings_before_the_commit_is_a_duplicate(loads, monkeypatch, decided, moved):
    take = early_copy.EarlyCopy.take
    overtaking: list[object] = []

    def take_late(self: early_copy.EarlyCopy, staged: Sequence[StagedPiece]) -> early_copy.OpenTransaction | None:
        begun = take(self, staged)
        if not overtaking:
            assert begun is not None
            overtaking.append(begun)
            loads.write("2.jsonl", record("a", 59, "overtaking"))
            assert loads.load().loaded == 1
        return begun

    monkeypatch.setattr(early_copy.EarlyCopy, "take", take_late)
    loads.write("1.jsonl", "".join(record("a", seq, f"first {seq}") for seq in range(60)))

    report = loads.load()

    assert (report.loaded, report.duplicates) == (59, 1)
    assert decided
    assert len(moved) > 3
    assert loads.rows("seq, note") == [*((seq, f"first {seq}") for seq in range(59)), (59, "overtaking")]
    assert verify(loads.declared, loads.engine, deep=True).differences == ()


def test_a_producer_that_is_forgotten_before_the_commit_loses_nothing(loads, monkeypatch):
    forgetting = replace(loads.declared.pipeline, forget_idle_after_s=60)
    loads.declared = replace(loads.declared, pipeline=forgetting)
    offer, forgotten = named_rows.NamedRows.offer, []

    def offer_late(self: named_rows.NamedRows, connection: Any, **more: Any) -> str:
        offered = offer(self, connection, **more)
        execute(loads.admin_dsn, "UPDATE onceload.producer SET advanced_at = '2000-01-01' WHERE name = 'device=a'")
        forgotten.extend(loads.ledger.forget_idle("events"))
        return offered

    monkeypatch.setattr(named_rows.NamedRows, "offer", offer_late)
    loads.write("1.jsonl", "".join(record("a", seq) for seq in range(60)))

    assert loads.load().loaded == 60
    assert forgotten == ["device=a"]
    assert loads.rows("seq") == list(range(60))


def test_more_names_than_fit_into_memory_need_the_table(loads, monkeypatch, decided):
    monkeypatch.setattr(named_file, "_BYTES_MAX", 4_000)
    loads.write("1.jsonl", "".join(record(f"device {seq % 30}", seq) for seq in range(60)))

    assert loads.load().loaded == 60
    assert decided


@pytest.mark.parametrize("is_full", [False, True])
def test_rows_in_the_table_and_in_files_are_one_batch(loads, monkeypatch, decided, is_full):
    """The disk may be full for a while, so that some pieces are in the table."""
    written: list[str] = []

    def write(folder: str, encoded: Any) -> str:
        if is_full and len(written) == 2:
            written.append("none")
            raise OSError(28, "No space left on device")
        written.append(write_file(folder, encoded))
        return written[-1]

    monkeypatch.setattr(pieces, "write_file", write)
    loads.write("1.jsonl", "".join(record("a", seq) for seq in range(60)))

    assert loads.load().loaded == 60
    # Once a piece is in the table, the later ones are too.
    assert len(written) == 3 if is_full else len(written) > 4
    assert bool(decided) is is_full
    assert loads.rows("seq") == list(range(60))


@pytest.mark.parametrize(
    "changes",
    [
        {"producer": RecordProducer(name="device", sequence="seq", order=Order.ORDERED)},
        {"columns": tuple(parse_column(*each) for each in ({**_COLUMNS, "device": "integer"}).items())},
    ],
    ids=["ordered", "numbers for names"],
)
def test_names_that_only_the_server_can_write_and_ids_in_order_need_the_table(loads, decided, changes):
    loads.write("1.jsonl", "".join(record(7, seq) for seq in range(20)))

    assert loads.load(**changes).loaded == 20
    assert len(decided) == 1


@pytest.mark.parametrize("is_moved_first", [True, False])
def test_a_file_is_moved_to_the_table_before_another_try_of_its_delivery_or_not_at_all(
    loads, monkeypatch, is_moved_first
):
    """The other try deletes the rows that were moved before it. After it, the file has no piece, and is not moved."""
    tries: list[int] = []
    left: list[Any] = []

    stage_piece = pieces.stage_piece

    def stage_twice(engine: Any, stage: Stage, piece: StagedPiece, rows: Any, *, writer: Any, claim: Claim) -> None:
        stage_piece(engine, stage, piece, rows, writer=writer, claim=claim)
        if tries or piece.number or not piece.rows:
            return
        tries.append(1)
        ((file,),) = loads.ask(f"SELECT file FROM {stage.pieces}  WHERE file IS NOT NULL")
        if is_moved_first:
            move_to_table(engine, stage, file)
            assert loads.ask(f"SELECT count(*) FROM {stage.rows}") == [(piece.rows,)]
        begin_try(engine, stage, claim, delivery=piece.delivery)
        move_to_table(engine, stage, file)
        left.extend(loads.ask(f"SELECT count(*) FROM {stage.rows}"))
        stage_piece(engine, stage, piece, rows, writer=writer, claim=claim)

    monkeypatch.setattr("onceload_jobs.work.load_delivery.stage_piece", stage_twice)
    loads.write("1.jsonl", "".join(record("a", seq) for seq in range(60)))

    assert loads.load().loaded == 60
    assert (tries, left) == ([1], [(0,)])
    assert loads.rows("seq") == list(range(60))
