"""What every ledger promises of declarations and their versions, in memory as in Postgres."""

from dataclasses import replace

import pytest

from onceload_core.declaration import Declaration, DeclarationChanged, EditRefused, LoadedByAnother
from onceload_core.errors import (
    AlreadyConsumed,
)
from onceload_core.names import SessionName
from onceload_core.pipeline import Pipeline
from tests.contract.ledgers import BATCH, EVERY_LEDGER, TEN, TWENTY

pytestmark = EVERY_LEDGER


def declared(terms=None, *, rest="", **limits):
    """A pipeline whose file says this much."""
    return Pipeline(name="events", declaration=Declaration(terms=terms or {}, rest={"columns": rest}), **limits)


def test_the_same_declaration_is_one_version_and_another_is_the_next(world):
    first = world.ledger.declare(declared(rest="a"))
    again = world.ledger.declare(declared(rest="a", islands_max=3))
    second = world.ledger.declare(declared(rest="b"))
    third = world.ledger.declare(declared(rest="a"))

    assert first == again
    assert (second.number - first.number, third.number - first.number) == (1, 2)
    assert world.ledger.find_version(declared(rest="a")) == third
    assert world.ledger.find_version(declared(rest="b")) is None
    assert world.ledger.find_version(Pipeline(name="unknown")) is None


def test_nothing_that_was_begun_under_an_earlier_version_takes_effect(world):
    world.ledger.declare(declared(rest="a"))
    producer, session = world.producer(), world.session()
    claim = world.ledger.claim(session, {producer: TEN}, batch=BATCH, lease_s=60)
    in_force = world.ledger.declare(declared(rest="b"))

    numbers = f"version {session.version.number}, and version {in_force.number} is in force"
    for late in (
        lambda: world.ledger.commit(world.commit_of(session, producer, TEN)),
        lambda: world.ledger.commit(world.commit_of(session, producer, TEN, claim=claim)),
        lambda: world.ledger.claim(session, {producer: TWENTY}, batch=BATCH, lease_s=60),
        lambda: world.ledger.open_session("events", SessionName("late"), version=session.version),
        lambda: world.ledger.declare(declared(rest="b"), version=session.version),
    ):
        with pytest.raises(DeclarationChanged, match=numbers):
            late()

    assert world.rows() == []
    assert world.ledger.outlook("events").claimed == frozenset()
    world.ledger.commit(world.commit_of(world.session(), producer, TEN))


@pytest.mark.parametrize("key", ["source.root", "source.format", "source.options", "producer", "target.table"])
def test_the_terms_of_a_pipeline_change_only_while_nothing_is_consumed(world, key):
    world.ledger.declare(declared({key: "public.a"}))
    producer = world.producer()
    world.ledger.declare(declared({key: "public.b"}))
    # One that leaves it out leaves it as it is.
    version = world.ledger.declare(declared())
    # The table has to be there: one that is gone was renamed.
    world.make_table("public.b")
    world.ledger.commit(world.commit_of(world.session(), producer, TEN))

    edited = declared({key: "public.c"}, moved_from="elsewhere")
    for refused in (world.ledger.declare, world.ledger.find_version):
        with pytest.raises(EditRefused, match=rf"{key} was changed from public\.b to public\.c.*Nothing was changed"):
            refused(edited)

    assert world.ledger.declare(declared()) == version


def test_a_folder_that_was_moved_keeps_its_names(world):
    world.ledger.declare(declared({"source.root": "in"}))
    world.ledger.commit(world.commit_of(world.session(), world.producer(), TEN))

    world.ledger.declare(declared({"source.root": "out"}, moved_from="in"))
    world.ledger.declare(declared({"source.root": "out"}, moved_from="in"))

    with pytest.raises(EditRefused, match="from out to in"):
        world.ledger.declare(declared({"source.root": "in"}))


def test_business_ids_go_on_with_the_same_columns_or_begin_again(world):
    with_ids = {"message_keep_days": 2}
    world.ledger.declare(declared({"message_id": "order_id text"}, **with_ids))
    world.ledger.declare(declared({"message_id": "event_id text"}, **with_ids))
    commit = world.commit_of(world.session(), world.producer(), TEN, message_ids=("m",))
    world.ledger.commit(commit)

    with pytest.raises(EditRefused, match=r"message_id was changed.*remove message_id, load once"):
        world.ledger.declare(declared({"message_id": "order_id text"}, **with_ids))

    # Ids that are taken out for a while are within their window when the same ones are declared again.
    world.ledger.declare(declared({"message_id": ""}))
    world.ledger.declare(declared({"message_id": "event_id text"}, **with_ids))
    repeated = world.commit_of(world.session(), world.producer(), TWENTY, message_ids=("m",))
    with pytest.raises(AlreadyConsumed, match="1 business ids"):
        world.ledger.commit(repeated)

    world.ledger.declare(declared({"message_id": ""}))
    world.ledger.declare(declared({"message_id": "order_id text"}, **with_ids))
    world.ledger.commit(replace(repeated, session=world.session()))


@pytest.mark.parametrize("folder", ["/in/", "/"])
def test_a_file_that_a_pipeline_has_loaded_is_not_committed_by_another_into_the_same_table(world, folder):
    """Its address is the folder and the name together."""
    table = '"public"."target"'
    ours = replace(declared({"target.table": table, "source.root": "a"}), folder="/in/")
    theirs = replace(declared({"target.table": table, "source.root": "b"}), name="theirs", folder=folder)
    for pipeline in (ours, theirs):
        world.ledger.declare(pipeline)
    name = f"{'/in/'.removeprefix(folder)}a.jsonl"
    producer = world.ledger.register("theirs", [(name, 1)])[name, 1]
    session = world.ledger.open_session("theirs", SessionName("loader"))
    world.ledger.commit(world.commit_of(world.session(), world.producer("a.jsonl"), TEN))

    with pytest.raises(LoadedByAnother, match=r"pipeline events has loaded /in/a\.jsonl into public\.target"):
        world.ledger.commit(world.commit_of(session, producer, TWENTY))
    with pytest.raises(LoadedByAnother):
        world.ledger.refuse_files_of_others(theirs, [name])

    assert len(world.rows()) == 10
    # The same file may be loaded into another table, and records of a program have no file.
    world.ledger.commit(world.commit_of(session, producer, TWENTY, fingerprint=None))
