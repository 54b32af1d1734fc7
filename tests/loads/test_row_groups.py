"""The row groups of one Parquet file are loaded by several sessions, each once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_core.delivery import Mode, Rules
from onceload_core.names import ProducerId
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, Publish, Source
from onceload_jobs.plan.bundles import bundles_of
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.work.progress import Progress, Waiting
from tests.loads.conftest import Loads
from tests.loads.sharing import consume_once
from tests.waiting import until

_GROUPS, _ROWS = 10, 1000
_ALL = list(range(_GROUPS * _ROWS))


@pytest.fixture(autouse=True)
def file(loads: Loads):
    """A Parquet file of ten row groups, and a chunk for about two of them."""
    path = loads.folder / "a.parquet"
    ids = pa.table({"id": pa.array(_ALL, pa.int64())})
    pq.write_table(ids, path, row_group_size=_ROWS, compression="none", use_dictionary=False)
    of_group = pq.read_metadata(path).row_group(0).total_byte_size
    loads.declared = replace(
        loads.declared,
        source=Source(path=str(loads.folder / "*.parquet"), format=Format.PARQUET, chunk_bytes=2 * of_group + 50),
        columns=(parse_column("id", "bigint"),),
    )
    return path


def chunks(loads: Loads) -> list[tuple[int, int | None]]:
    plan = make_plan(loads.declared, loads.ledger, now_s=time.time())
    ids = {(file.listed.name, file.generation): ProducerId(1) for file in plan.to_read}
    return [(chunk.first, chunk.end) for bundle in bundles_of(loads.declared, plan.to_read, ids) for chunk in bundle]


def test_a_file_is_cut_between_row_groups_and_each_row_is_loaded_once(loads):
    cut, report = chunks(loads), loads.load()

    assert cut == [(0, 2000), (2000, 4000), (4000, 6000), (6000, 8000), (8000, None)]
    assert (report.loaded, loads.load().loaded) == (len(_ALL), 0)
    assert loads.rows() == _ALL


@pytest.mark.parametrize(("damaged", "chunk"), [(3, (2000, 4000)), (9, (8000, None))])
def test_only_the_chunk_of_a_damaged_row_group_is_not_loaded_and_comes_once_it_is_whole(loads, file, damaged, chunk):
    whole = file.read_bytes()
    at = pq.read_metadata(file).row_group(damaged).column(0).data_page_offset
    # The last bytes of the file show whether it was rewritten.
    file.write_bytes(whole[:at] + b"\xff" * 3000 + whole[at + 3000 :])

    first, position = loads.load(), loads.ledger.position("events")
    again = loads.load()

    assert set(_ALL) - set(loads.rows()) == set(_ALL[slice(*chunk)])
    assert [(note.name, note.needs_a_person) for note in first.notes] == [("a.parquet", True)]
    assert (again.loaded, loads.ledger.position("events")) == (0, position)
    assert chunks(loads) == [chunk]
    file.write_bytes(whole)
    assert loads.load().loaded == 2000
    assert loads.rows() == _ALL
    assert chunks(loads) == []


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_no_fixed_session_ends_before_all_row_groups_are_handed_out(loads):
    loads.declared = replace(loads.declared, delivery=Rules(mode=Mode.SESSION, sessions=2, open_max=2))

    waits = threading.Event()

    def note(progress: Progress | Waiting) -> None:
        if isinstance(progress, Waiting):
            waits.set()

    with ThreadPoolExecutor() as pool:
        first = pool.submit(consume_once, loads, "1", on_progress=note)
        # The rest of the file is not handed out before the second session has loaded what is handed out to it.
        until(lambda: waits.is_set() or first.done(), "the first session waits")
        second = consume_once(loads, "2")

    assert (first.result().loaded, second.loaded) == (6000, 4000)
    assert loads.rows() == _ALL
