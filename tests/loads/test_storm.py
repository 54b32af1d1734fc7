"""Files, the pipeline file and loads change at random: each record, counted by its own values, is there once.

The first tests hold what was found in this way, and what each was; `python -m tests.loads.storm` goes on looking.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.verdicts import Order
from onceload_jobs.pipeline.declared import Identity, OnRewrite, Publish, Write
from tests.loads.storm.drawing import Drawn, Theme, draw
from tests.loads.storm.operations import (
    Append,
    Copy,
    Cut,
    Damage,
    Edit,
    Fault,
    GrowAlike,
    Left,
    Load,
    Misplace,
    Operation,
    Publishing,
    Redrive,
    Remove,
    Retry,
    Rewind,
    Rewrite,
    Rotate,
    Transform,
    Words,
)
from tests.loads.storm.records import Form
from tests.loads.storm.stand import Stand, open_server, open_spark, open_stand
from tests.loads.storm.world import PARTLY_LOADED, PARTLY_RETRIED

#: So that several processes share them: as many as a minute or two has room for. `make faults` runs ten thousand.
_SHARES, _SEQUENCES = 16, 5

_A, _B, _PLAIN, _OTHER = "day/a.jsonl.gz", "day/b.jsonl.gz", "day/a.jsonl", "day/b.jsonl"
_THIRD, _PARQUET = "day/c.jsonl", "day/a.parquet"
_CONTENT = Words(identity=Identity.CONTENT)
_RECORDS = Words(producer=("dev", "seq"))
_AT_ONCE: Mapping[str, Any] = {"chunk_bytes": 4000, "publish": Publish.DIRECT, "deliveries_max": 1}
_KEPT, _ONLY_KEPT = "kept 1", Load(batch="kept 1", publishes=False)


def _killed(after: int, *then: Operation) -> Load:
    """A worker dies behind so many of its commits and one more."""
    return Load(fault=Fault.TASK_KILLED, at=after, counts_commits=True, then=then)


def _dies(after: int) -> Load:
    return Load(fault=Fault.KILLED, at=after, counts_commits=True)


def _published_twice(at: int) -> Publishing:
    """A publisher stops and loses its lock, and another one stops at the same point, until the first has ended."""
    stopped = Publishing(_KEPT, fault=Fault.STOPPED, at=at, counts_commits=True, keeps_lease=True)
    return replace(stopped, loses_lock=True, then=(Load(), replace(stopped, gives_way=True)))


def _array_rewritten(path: str, at: int) -> Drawn:
    """Each group of its records is a commit; what is loaded of it must be of one content."""
    words = Words(form=Form.JSON, on_rewrite=OnRewrite.NEW_GENERATION, **_AT_ONCE)
    in_task = at - _CUT.start + 2
    return Drawn(words, (Append(path, 12), _dies(at), Load(), Rewrite(path, 12), _killed(in_task), Load()))


#: Each was once loaded wrongly, without a word; behind which commit it has to be struck changes with the code.
_FOUND_STRUCK: dict[str, tuple[range, Callable[[int], Drawn]]] = {
    "pieces of two tries, cut by an edit": (
        range(1, 7),
        lambda at: Drawn(Words(), (Append(_A, 20), _killed(at, Edit("chunk_bytes", 1500), Load()))),
    ),
    "pieces of two tries, between which a file was rewritten": (
        range(1, 7),
        lambda at: Drawn(Words(chunk_bytes=1500), (Append(_A, 20), Append(_B, 20), _killed(at, Rewrite(_A, 1)))),
    ),
    "pieces of two tries, between which a file was removed": (
        range(1, 7),
        lambda at: Drawn(
            Words(chunk_bytes=1500, deliveries_max=2), (Append(_A, 20), Append(_B, 20), _killed(at, Remove(_A)))
        ),
    ),
    "pieces of two tries, of which the first wakes up late": (
        range(1, 7),
        lambda at: Drawn(
            Words(chunk_bytes=1500),
            (Append(_A, 20), Append(_B, 20), Load(fault=Fault.STOPPED, at=at, counts_commits=True, then=(Load(),))),
        ),
    ),
    "two publishers of one batch": (
        range(8, 14),
        lambda at: Drawn(_RECORDS, (Append(_PLAIN, 8), _ONLY_KEPT, Append(_OTHER, 8, again=3), _published_twice(at))),
    ),
    "other names while a first load waits": (
        range(10, 26),
        lambda at: Drawn(
            Words(chunk_bytes=4000, publish=Publish.DIRECT),
            (Append(_PLAIN, 20), _dies(at), Edit("pattern", "*/*"), Load()),
        ),
    ),
}
#: Their first load dies when it has loaded a part of a file: behind these commits, and the test says if it does not.
_CUT = range(14, 26)
_FOUND_CUT: dict[str, Callable[[int], Drawn]] = {
    "the head of one content and the tail of another": lambda at: Drawn(
        Words(publish=Publish.DIRECT), (Append(_A, 20), _dies(at), Rewrite(_A, 20), Load())
    ),
    "a parquet file that is rotated when a part of it is loaded": lambda at: Drawn(
        replace(_CONTENT, form=Form.PARQUET, on_rewrite=OnRewrite.NEW_GENERATION, **_AT_ONCE),
        (Append(_PARQUET, 12), _dies(at), Rotate(_PARQUET, "day/z.parquet", 1)),
    ),
    "an array that is rewritten": lambda at: _array_rewritten("day/a.json", at),
    "a compressed array that is rewritten": lambda at: _array_rewritten("day/a.json.gz", at),
}
#: The same without a strike, or wherever it comes.
_FOUND: dict[str, Drawn] = {
    "other names while a batch is kept": Drawn(
        Words(), (Append(_PLAIN, 5), _ONLY_KEPT, Edit("pattern", "*/*"), Load(), Publishing(_KEPT))
    ),
    "other names while a dead letter is there": Drawn(
        Words(deliveries_max=1, chunk_bytes=4000, publish=Publish.DIRECT),
        (Append(_PLAIN, 5), Load(fault=Fault.TASK_KILLED, at=9), Edit("pattern", "*/*"), Load(), Redrive(), Load()),
    ),
    "rows replaced that could not be found": Drawn(
        Words(lineage=False), (Append(_PLAIN, 5), Load(), Edit("lineage", value=True), Load(replaces=True))
    ),
    "rows replaced that are those of another": Drawn(
        Words(), (Append(_PLAIN, 5), Load(), Misplace(), Load(replaces=True))
    ),
    "rows replaced that are in another table": Drawn(
        Words(on_rewrite=OnRewrite.REPLACE),
        (Append(_PLAIN, 5), Load(), Edit("table", 1), Rewrite(_PLAIN, 5, kept=3), Load()),
    ),
    "business ids of other columns": Drawn(
        Words(message_id="oid"), (Append(_PLAIN, 20), Load(), Edit("message_id", "eid"), Append(_OTHER, 20), Load())
    ),
    "business ids of a batch that was published while none were declared": Drawn(
        Words(message_id="oid"),
        (
            Append(_PLAIN, 5),
            _ONLY_KEPT,
            Edit("message_id", None),
            Load(only=("b.jsonl",)),
            Edit("message_id", "oid"),
            Publishing(_KEPT),
            Append(_OTHER, 5, again=4),
            Load(),
        ),
    ),
    "sequence ids of another column": Drawn(
        _RECORDS, (Append(_PLAIN, 10), Load(), Edit("producer", ("dev", "pos")), Append(_OTHER, 10), Load())
    ),
    "producers named by another column": Drawn(
        _RECORDS, (Append(_PLAIN, 5), Load(), Edit("producer", ("device", "seq")), Copy(_PLAIN, _OTHER), Load())
    ),
    "a kept batch that replaces though it is declared that nothing is replaced": Drawn(
        Words(on_rewrite=OnRewrite.REPLACE),
        (
            Append(_PLAIN, 5),
            Load(),
            Rewrite(_PLAIN, 5),
            _ONLY_KEPT,
            Edit("on_rewrite", OnRewrite.STOP),
            Publishing(_KEPT),
        ),
    ),
    "a parquet file of equal edges, rewritten": Drawn(
        Words(form=Form.PARQUET, on_rewrite=OnRewrite.NEW_GENERATION),
        (Append(_PARQUET, 12), Load(), Rewrite(_PARQUET, -1)),
    ),
    "a parquet file of equal edges, under another name": Drawn(
        Words(form=Form.PARQUET, identity=Identity.CONTENT), (Append(_PARQUET, 12), Load(), Append("day/b.parquet", 12))
    ),
    "a copy that is further on than its original": Drawn(
        _CONTENT, (Append(_PLAIN, 5), Load(), Copy(_PLAIN, _OTHER), GrowAlike((_PLAIN, _OTHER), 5), Append(_OTHER, 5))
    ),
    "a copy that parts, beside one that parted before": Drawn(
        _CONTENT,
        (
            *(Append(_PLAIN, 5), Load(), Copy(_PLAIN, _OTHER), Copy(_PLAIN, _THIRD), Load()),
            *(GrowAlike((_PLAIN, _THIRD), 5), Load(), Load()),
            *(Append(_OTHER, 1, percent=50), Load(), Append(_PLAIN, 2), Load(), Append(_THIRD, 2), Load()),
        ),
    ),
    "copies that grow alike": Drawn(
        _CONTENT, (Append(_PLAIN, 5), Copy(_PLAIN, _OTHER), Load(), Load(), GrowAlike((_PLAIN, _OTHER), 5))
    ),
    "a copy of what has a hole": Drawn(
        replace(_CONTENT, publish=Publish.DIRECT, chunk_bytes=200),
        (
            Append(_PLAIN, 20),
            Load(fault=Fault.STOPPED, at=8, counts_commits=True, then=(Load(),), keeps_lease=True),
            Rewind(1),
            Copy(_PLAIN, "day/a.1.jsonl"),
            Load(),
        ),
    ),
    "records in their order, the first half of an upload": Drawn(
        replace(_RECORDS, order=Order.ORDERED), (Append(_A, 12, percent=50), Append(_B, 12), Load())
    ),
    "records in their order, of a damaged file": Drawn(
        replace(_RECORDS, order=Order.ORDERED), (Append(_A, 12), Damage(_A), Append(_B, 12), Load())
    ),
    "several rows of a record that says its name": Drawn(
        replace(_RECORDS, transform=Transform.SOME), (Append(_PLAIN, 12),)
    ),
    "a merge of what was rotated": Drawn(
        Words(write=Write.MERGE, identity=Identity.CONTENT, on_rewrite=OnRewrite.NEW_GENERATION),
        (Append(_PLAIN, 5), Load(), Append(_PLAIN, 3), Rotate(_PLAIN, "day/z.jsonl", 3), Load()),
    ),
    "a beginning of a damaged file, which is another content": Drawn(
        Words(chunk_bytes=700, identity=Identity.CONTENT, on_rewrite=OnRewrite.NEW_GENERATION, deliveries_max=2),
        (
            Append(_A, 8, bad=2),
            Append("day/c.jsonl.gz", 3, bad=2),
            Load(),
            GrowAlike(("day/c.jsonl.gz",), 2),
            Damage("day/c.jsonl.gz"),
            Load(),
        ),
    ),
    "a merge by a key that is null": Drawn(
        Words(write=Write.MERGE, transform=Transform.NULLS), (Append(_PLAIN, 12), Load())
    ),
}


@pytest.fixture(scope="module")
def stand(server_dsn: str):
    with open_stand(server_dsn) as opened:
        yield opened


def _first_of(cases: Mapping[str, tuple[object, ...]]) -> list[Any]:
    """Each of these is many sequences, so that `make test` tries one of them."""
    marks: list[Any] = [(), *[pytest.mark.long] * (len(cases) - 1)]
    return [pytest.param(*case, id=name, marks=mark) for (name, case), mark in zip(cases.items(), marks, strict=True)]


@pytest.mark.parametrize(
    "found",
    [pytest.param(found, id=name) for name, found in _FOUND.items()],
)
def test_a_fault_that_was_found_once_is_not_found_again(stand: Stand, found: Drawn):
    if fault := stand.fault_of(found):
        raise fault


@pytest.mark.parametrize(("commits", "found"), _first_of(_FOUND_STRUCK))
def test_a_fault_that_was_found_once_is_not_found_again_behind_any_commit(
    stand: Stand, commits: range, found: Callable[[int], Drawn]
):
    for at in commits:
        if fault := stand.fault_of(found(at)):
            fault.add_note(f"struck behind commit {at}")
            raise fault


@pytest.mark.parametrize("found", _first_of({name: (found,) for name, found in _FOUND_CUT.items()}))
def test_a_fault_that_was_found_once_is_not_found_again_when_a_part_of_a_file_is_loaded(
    stand: Stand, found: Callable[[int], Drawn]
):
    expected, before = [PARTLY_LOADED], stand.outcomes.copy()
    if any(each.fault is Fault.TASK_KILLED for each in found(0).operations if isinstance(each, Load)):
        expected.append(PARTLY_RETRIED)
    for at in _CUT:
        if fault := stand.fault_of(found(at)):
            fault.add_note(f"struck behind commit {at}")
            raise fault
    missed = [each for each in expected if stand.outcomes[each] == before[each]]
    assert not missed, "nothing died between two commits of a file: choose other commits"


@pytest.fixture(scope="module")
def stand_with_icu():
    with open_server(Theme.CASES) as dsn, open_stand(dsn) as opened:
        if opened.caseless is None:
            pytest.skip("no server with ICU: apt-get install postgresql brings one")
        yield opened


_CASES = replace(_RECORDS, ignores_case=True)


@pytest.mark.parametrize("order", Order)
def test_names_that_differ_only_in_case_are_two_where_the_target_takes_them_for_one(
    stand_with_icu: Stand, order: Order
):
    """The embedded Postgres has no such collation."""
    found = Drawn(replace(_CASES, order=order), (Append(_PLAIN, 5), Load(), Append(_OTHER, 5), Load()))
    if fault := stand_with_icu.fault_of(found):
        raise fault


@pytest.mark.long
def test_names_that_differ_only_in_case_are_two_whatever_happens(stand_with_icu: Stand):
    for seed in range(1, 41):
        drawn = draw(seed, Theme.CASES)
        if fault := stand_with_icu.fault_of(drawn):
            fault.add_note(f"seed {seed}: {drawn.as_code()}")
            raise fault


@pytest.mark.long(minutes=3)
def test_each_record_is_there_as_often_as_it_should_be_over_a_resident_spark():
    """Real tasks, of which one kills its process, with and without a transform; then whatever happens."""
    killed = [Load(fault=Fault.TASK_KILLED, at=at) for at in (0, 1)]
    found = [
        Drawn(replace(words, transform=transform), (Append(_PLAIN, 12), each, Append(_OTHER, 3), Load()))
        for words in (Words(), _RECORDS)
        for transform in (None, Transform.SOME)
        for each in killed
    ]
    drawn = [draw(seed, Theme.RESIDENT) for seed in range(1, 9)]
    with (
        open_server(Theme.RESIDENT) as dsn,
        open_spark(Theme.RESIDENT) as remote,
        open_stand(dsn, remote=remote) as stand,
    ):
        for each in (*found, *drawn):
            if fault := stand.fault_of(each):
                fault.add_note(each.as_code())
                raise fault
        assert stand.outcomes["killed tasks of Spark"] >= len(found)


_REPLACING = Words(on_rewrite=OnRewrite.REPLACE)


@pytest.mark.long
def test_a_retry_at_any_word_of_a_replacement_brings_no_record_twice(stand: Stand):
    for at in range(35, 90):
        replacement = Load(replaces=True, fault=Fault.STOPPED, at=at, in_task=False, then=(Retry(),))
        if fault := stand.fault_of(Drawn(_REPLACING, (Append(_PLAIN, 5, bad=2), Load(), replacement))):
            raise fault


_ADDING = Words(form=Form.FIXED, adds_columns=True)


@pytest.mark.parametrize(
    ("fault", "ends"), [(Fault.UNANSWERED, 20), pytest.param(Fault.CUT, 60, marks=pytest.mark.long)]
)
def test_a_retry_that_loses_its_connection_anywhere_ends_as_one_that_may_be_called_again(
    stand: Stand, fault: Fault, ends: int
):
    """Also where it only reads, as the columns of its target."""
    for at in range(ends):
        found = stand.fault_of(Drawn(_ADDING, (Append("day/a.fixed", 20, bad=2), Load(), Retry(fault=fault, at=at))))
        if found:
            raise found


def test_a_record_is_retried_by_the_layout_that_it_was_written_in(stand: Stand):
    words = Words(form=Form.FIXED, publish=Publish.DIRECT)
    edited = (Append("day/a.fixed", 5, bad=1), Load(), Edit("layout", 1), Retry())
    if fault := stand.fault_of(Drawn(words, edited)):
        raise fault


@pytest.mark.parametrize("left", list(Left))
@pytest.mark.parametrize("words", [Words(), _RECORDS], ids=["files", "producers"])
def test_rows_that_a_file_loses_at_any_word_are_staged_again(stand: Stand, words: Words, left: Left):
    before = stand.outcomes["files of rows that were cut"]
    for at in range(40, 110, 5):
        cut = Load(fault=Fault.STOPPED, at=at, in_task=False, then=(Cut(left),), keeps_lease=True)
        if fault := stand.fault_of(Drawn(replace(words, chunk_bytes=1500), (Append(_PLAIN, 20), cut))):
            fault.add_note(f"cut at word {at}")
            raise fault
    assert stand.outcomes["files of rows that were cut"] > before


@pytest.mark.parametrize(
    "share", [pytest.param(each, marks=[] if each < 2 else pytest.mark.long) for each in range(_SHARES)]
)
def test_each_record_is_there_as_often_as_it_should_be_whatever_happens(stand: Stand, share: int):
    """The same sequences with every change, so that it is the change that fails; campaigns draw others."""
    first = int(os.environ.get("ONCELOAD_FAULT_SEED", "1")) + share * _SEQUENCES
    for seed in range(first, first + _SEQUENCES):
        drawn = draw(seed)
        fault = stand.fault_of(drawn)
        if fault is not None:
            fault.add_note(f"seed {seed}: {drawn.as_code()}")
            raise fault
