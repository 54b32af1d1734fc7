"""Rows of a program that a rewind deleted are asked for again before any later rows of the same producer."""

import json
import re
from typing import Any

import pytest

import onceload
from onceload.cli import main
from tests.python.conftest import Place
from tests.python.test_load_rows import Rows, mappings, table


@pytest.fixture
def rows(place: Place) -> Rows:
    return Rows(place)


def load(rows: Rows, first: int, end: int, *, producer: str = "crm", **changes: Any) -> int:
    report = rows.pipeline(**changes).load_rows(mappings(*range(first, end)), producer=producer, first_id=first)
    return int(report.loaded)


def keyed(*ids: int) -> Any:
    return table(*ids, key=list(ids))


@pytest.mark.parametrize("publish", ["staged", "direct"])
def test_ids_behind_rewound_ones_are_refused_with_the_ids_that_are_owed(rows: Rows, publish: str) -> None:
    load(rows, 0, 20, publish=publish)
    rows.pipeline(publish=publish).recover_rewind(position=0)

    with pytest.raises(onceload.OfferRefused) as refused:
        load(rows, 20, 30, publish=publish)

    words = r"producer 'crm': .*ids \[20,30\), but the rewind at position 2 \(20.*Z\) deleted .* the ids \[0,20\)"
    assert re.search(words, str(refused.value))
    assert (load(rows, 0, 30, publish=publish), len(rows.there())) == (30, 30)
    assert load(rows, 30, 31, publish=publish) == 1


def test_only_what_was_rewound_is_asked_for(rows: Rows) -> None:
    load(rows, 0, 10)
    load(rows, 10, 20)
    load(rows, 5, 8, producer="erp")
    rows.pipeline().recover_rewind(position=1)

    for first, producer, owed in [(20, "crm", r"\[10,20\)"), (8, "erp", r"\[5,8\)")]:
        with pytest.raises(onceload.OfferRefused, match=rf"with the ids {owed}, which"):
            load(rows, first, first + 5, producer=producer)
    assert [load(rows, 8, 25), load(rows, 5, 10, producer="erp"), load(rows, 0, 3, producer="new")] == [15, 5, 3]
    assert len(rows.there()) == 10 + 15 + 5 + 3


def test_rewound_rows_may_come_in_several_calls_and_what_is_left_is_still_owed(rows: Rows) -> None:
    load(rows, 0, 30)
    rows.pipeline().recover_rewind(position=0)

    assert load(rows, 0, 10) == 10
    with pytest.raises(onceload.OfferRefused, match=r"with the ids \[10,30\), which"):
        load(rows, 30, 40)
    assert load(rows, 20, 30) == 10
    with pytest.raises(onceload.OfferRefused, match=r"with the ids \[10,20\), which"):
        load(rows, 30, 40)
    assert [load(rows, 10, 20), load(rows, 30, 40)] == [10, 10]
    assert rows.ask("SELECT count(*), count(DISTINCT id), max(id) FROM target") == [(40, 40, 39)]


def test_ids_that_were_rewound_do_not_hide_a_gap(rows: Rows) -> None:
    load(rows, 100, 110)
    rows.pipeline().recover_rewind(position=0)

    with pytest.raises(onceload.OfferRefused, match="do not continue the loaded ids"):
        load(rows, 0, 10)
    assert load(rows, 90, 100) == 10
    with pytest.raises(onceload.OfferRefused, match=r"with the ids \[100,110\), which"):
        load(rows, 110, 120)


def test_the_state_says_that_a_program_owes_rows_until_it_has_loaded_them(
    rows: Rows, place: Place, capsys: Any
) -> None:
    load(rows, 0, 20)
    rows.pipeline().recover_rewind(position=0)

    assert state(place, capsys) == ("needs a person", "a rewind deleted rows of 1 producer, which its program has not")
    load(rows, 0, 20)
    assert state(place, capsys)[0] == "fine"


def state(place: Place, capsys: Any) -> tuple[str, str]:
    """The state of the pipeline, and the beginning of its reason."""
    assert main(["status", "--json", "--pipelines", str(place.folder / "none")], {"ONCELOAD_DSN": place.dsn}) == 0
    (line,) = json.loads(capsys.readouterr().out)["status"]
    return line["state"], " ".join(line["reason"].split()[:12])


@pytest.mark.parametrize("publish", ["staged", "direct"])
def test_ids_of_a_column_are_asked_for_again_too(rows: Rows, publish: str) -> None:
    how: dict[str, Any] = {"id_column": "key", "publish": publish}
    rows.load(keyed(2, 4, 8), **how)
    rows.pipeline(publish=publish).recover_rewind(position=0)

    with pytest.raises(onceload.OfferRefused, match=r"ids \[9,10\), but .* the ids \[2,3\),\[4,5\),\[8,9\), which"):
        rows.load(keyed(9), **how)
    # Those before them lose nothing: what is owed is still asked for.
    assert [rows.load(keyed(*ids), **how)[0] for ids in [(1, 2, 3), (8,), (4, 5, 9)]] == [3, 1, 3]
    assert [number for _, number in rows.there()] == [1, 2, 3, 4, 5, 8, 9]


def test_what_several_rewinds_rolled_back_is_owed(rows: Rows) -> None:
    load(rows, 0, 10)
    load(rows, 10, 20)
    rows.pipeline().recover_rewind(position=1)
    rows.pipeline().recover_rewind(position=0)
    load(rows, 0, 5)
    rows.pipeline().recover_rewind(position=0)

    with pytest.raises(onceload.OfferRefused, match=r"the rewind at position 6 .* with the ids \[0,20\), which"):
        load(rows, 20, 21)


def test_a_lost_row_of_the_producer_changes_nothing_about_what_is_owed(rows: Rows) -> None:
    load(rows, 0, 20)
    rows.pipeline().recover_rewind(position=0)
    rows.ask("DELETE FROM onceload.producer")
    rows.pipeline().recover_state()

    with pytest.raises(onceload.OfferRefused, match=r"with the ids \[0,20\), which"):
        load(rows, 20, 30)


def test_later_rows_go_on_under_another_name_if_rewound_ones_no_longer_exist(rows: Rows) -> None:
    load(rows, 0, 20)
    rows.pipeline().recover_rewind(position=0)

    with pytest.raises(onceload.OfferRefused, match="if they no longer exist, load later rows under the name of a new"):
        load(rows, 20, 30)
    assert load(rows, 20, 30, producer="crm from 20 on") == 10
