"""Verification accounts for every byte of a file that was loaded, and names what no commit took and nothing holds."""

import gzip
from dataclasses import replace

import psycopg2
import pytest

from onceload.cli import main
from onceload_core.delivery import Mode
from onceload_core.errors import ExitCode
from onceload_core.postgres.by_hand import abandon
from onceload_jobs.pipeline.declared import Identity, Publish
from onceload_jobs.read import new_content as loading
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.findings import Kind
from tests.loads.conftest import line
from tests.loads.rewinding import back
from tests.loads.sharing import declare, offered
from tests.loads.test_verify import FORMATS, source_of
from tests.loads.verified import verified

DIRECT = pytest.mark.parametrize("publish", [Publish.DIRECT])
STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])


def named(verification):
    return [(each.producer, each.kind, each.span) for each in verification.differences]


def notes(verification):
    return {note.name: note.reason for note in verification.not_compared}


def cut(loads, first, end):
    """Leave a load with a hole, rows and receipts, as one that lost a part of its file would."""
    span, outside = f"'{{[{first},{end})}}'::int8multirange", f"NOT (_sequence >= {first} AND _sequence < {end})"
    connection = psycopg2.connect(loads.admin_dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM target WHERE NOT ({outside})")
        cursor.execute("ALTER TABLE onceload.ledger_span DISABLE TRIGGER USER")
        cursor.execute(
            f"UPDATE onceload.ledger_span SET spans = spans - {span}, rows = (SELECT count(*) FROM target"
            " WHERE target._producer_id = ledger_span.producer_id)"
        )
        cursor.execute("UPDATE onceload.ledger_span SET digest = NULL WHERE isempty(spans)")
        cursor.execute(f"UPDATE onceload.producer SET consumed = consumed - {span}")
        cursor.execute("ALTER TABLE onceload.ledger_span ENABLE TRIGGER USER")
    connection.close()


@pytest.fixture
def first_chunk_left(loads):
    """All of a file is loaded but its first chunk, which a session holds."""
    declare(loads, Mode.SHARED)
    loads.write("a.jsonl", "".join(map(line, range(100, 140))))
    board = offered(loads)
    handed = board.take("late")
    loads.load()
    assert loads.rows() == [*range(110, 140)]
    return board, handed


# Gaps in the middle.


@STAGED
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_with_a_gap_is_not_taken_for_whole(loads, name, deep):
    FORMATS[name](loads)
    source = source_of(loads, name)
    loads.load(source=source)
    first, end = (30, 60) if name == "parquet" else (100, 400)
    cut(loads, first, end)

    verification = verified(loads, deep=deep, source=source)

    (difference,) = verification.differences
    assert (difference.kind, difference.span) == (Kind.GAP, f"[{first},{end})")
    unit = {"parquet": "30 rows", "gz": "300 unpacked bytes", "zst": "300 unpacked bytes"}.get(name, "300 bytes")
    assert difference.found.startswith(unit)


@STAGED
@pytest.mark.parametrize("name", ["gz", "zst", "parquet"])
def test_records_missing_at_the_end_of_a_file_that_was_noted_as_read_to_its_end_are_a_gap(loads, name):
    FORMATS[name](loads)
    source = source_of(loads, name)
    loads.load(source=source)
    ((end,),) = loads.ask("SELECT upper(consumed) FROM onceload.producer")
    first = 60 if name == "parquet" else 1000
    cut(loads, first, end)

    assert [(kind, span) for _, kind, span in named(verified(loads, source=source))] == [(Kind.GAP, f"[{first},{end})")]


@STAGED
@pytest.mark.parametrize("name", ["gz", "parquet"])
def test_a_file_that_was_noted_as_read_and_of_which_nothing_is_loaded_is_a_gap(loads, name):
    FORMATS[name](loads)
    source = source_of(loads, name)
    loads.load(source=source)
    ((end,),) = loads.ask("SELECT upper(consumed) FROM onceload.producer")
    cut(loads, 0, end)

    assert [(kind, span) for _, kind, span in named(verified(loads, source=source))] == [(Kind.GAP, f"[0,{end})")]


def packed_copies(loads):
    """One content under a plain name and two packed ones."""
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    copies = [loads.write(f"{name}.jsonl.gz", gzip.compress((line(1) + line(2)).encode())) for name in "bc"]
    loads.load()
    return copies


@STAGED
def test_packed_copies_that_were_read_to_their_end_have_no_gap(loads):
    packed_copies(loads)

    verification = verified(loads)

    assert (named(verification), notes(verification)) == ([], {})


@STAGED
def test_packed_copies_of_a_file_that_was_rewound_have_no_gap(loads):
    """They are compared again by the next load. Until then nothing of them is loaded."""
    packed_copies(loads)
    at = loads.ledger.position("events")
    loads.write("a.jsonl", line(1) + line(2) + line(3))
    loads.load()
    rewind(loads.declared, loads.engine, to=at, dry_run=False)

    assert named(verified(loads)) == []


@STAGED
def test_content_that_goes_on_under_a_packed_name_was_read_to_its_end(loads):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    plain = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    plain.unlink()
    loads.write("b.jsonl.gz", gzip.compress((line(1) + line(2)).encode()))
    loads.load()

    verification = verified(loads)

    assert (named(verification), [*notes(verification)]) == ([], ["a.jsonl"])


@STAGED
def test_records_missing_at_the_end_of_a_packed_copy_that_was_noted_as_read_to_its_end_are_a_gap(loads):
    b, _ = packed_copies(loads)
    b.write_bytes(gzip.compress((line(1) + line(2) + line(3)).encode()))
    with psycopg2.connect(loads.admin_dsn) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE onceload.producer SET size = %s WHERE name = 'b.jsonl.gz'", (b.stat().st_size,))
    connection.close()
    first, end = len(line(1) + line(2)), len(line(1) + line(2) + line(3))

    assert named(verified(loads)) == [("b.jsonl.gz", Kind.GAP, f"[{first},{end})")]


@STAGED
def test_an_empty_packed_file_has_no_gap(loads):
    loads.write("a.jsonl.gz", gzip.compress(b""))
    loads.load()

    verification = verified(loads)

    assert (named(verification), notes(verification)) == ([], {})


@DIRECT
def test_a_gap_that_a_session_holds_is_noted_and_one_that_nothing_holds_differs_until_it_is_loaded(
    loads, first_chunk_left
):
    board, handed = first_chunk_left
    ((end,),) = loads.ask("SELECT lower(consumed) FROM onceload.producer")

    held = verified(loads)
    board.board.nack(handed, "too late")
    waiting = verified(loads)
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.delivery SET state = 'dead'")
    dead = verified(loads)
    abandon(loads.engine, "events", handed.claim.delivery_id, by="ann")
    lost = verified(loads)

    gap, number = f"{end} bytes [0,{end})", handed.claim.delivery_id
    assert [named(each) for each in (held, waiting, dead)] == [[], [], []]
    assert notes(held) == {"a.jsonl": f"{gap} are being loaded, as delivery {number}"}
    assert notes(waiting) == {"a.jsonl": f"{gap} wait to be loaded, as delivery {number}"}
    assert notes(dead) == {"a.jsonl": f"{gap} are in the dead letters: see `onceload deliveries show {number}`"}
    assert (named(lost), notes(lost)) == ([("a.jsonl", Kind.GAP, f"[0,{end})")], {})
    loads.load()
    whole = verified(loads)
    assert (named(whole), notes(whole)) == ([], {})


@DIRECT
def test_a_gap_that_is_filled_while_files_are_compared_is_not_a_difference(loads, first_chunk_left, monkeypatch):
    from onceload_core.postgres.audit import files_up_to

    board, handed = first_chunk_left

    def loaded_meanwhile(*asked):
        board.board.nack(handed, "too late")
        loads.load()
        yield from files_up_to(*asked)

    monkeypatch.setattr("onceload_jobs.verify.files.files_up_to", loaded_meanwhile)

    assert named(verified(loads)) == []
    assert loads.rows() == [*range(100, 140)]


@DIRECT
def test_a_gap_of_a_file_that_was_archived_is_named_beside_the_missing_file(loads, first_chunk_left):
    board, handed = first_chunk_left
    board.board.nack(handed, "too late")
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.delivery SET state = 'dead'")
    abandon(loads.engine, "events", handed.claim.delivery_id, by="ann")
    (loads.folder / "a.jsonl").unlink()

    assert [kind for _, kind, _ in named(verified(loads))] == [Kind.FILE_MISSING, Kind.GAP]


# Ends.


@STAGED
def test_the_end_of_a_file_that_has_grown_is_noted(loads):
    path = loads.write("a.jsonl", line(1))
    loads.load()
    path.write_text(line(1) + line(2))

    verification = verified(loads, deep=True)

    first, size = len(line(1)), path.stat().st_size
    assert named(verification) == []
    assert notes(verification) == {"a.jsonl": f"{size - first} bytes [{first},{size}) are not loaded yet"}


@STAGED
@pytest.mark.parametrize("is_grown", [False, True])
def test_the_end_of_a_packed_file_that_was_not_read_to_its_end_is_noted(loads, is_grown):
    path = loads.write("a.jsonl.gz", gzip.compress(f"{line(1)}{'' if is_grown else line(2)[:5]}".encode()))
    loads.load()
    if is_grown:
        path.write_bytes(path.read_bytes() + gzip.compress(line(2).encode()))

    verification = verified(loads)

    reason = f"it was not read to its end; everything after byte {len(line(1))} is not loaded yet"
    assert (named(verification), notes(verification)) == ([], {"a.jsonl.gz": reason})


@STAGED
def test_a_file_of_which_nothing_is_loaded_is_noted(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    size = loads.write("b.jsonl", line(2)).stat().st_size
    loads.write("empty.jsonl", "")

    verification = verified(loads)

    assert named(verification) == []
    assert notes(verification) == {"b.jsonl": f"nothing of it is loaded yet ({size} bytes)"}


def test_only_the_first_of_very_many_files_are_noted_by_name(loads):
    paths = [loads.write(f"{number}.jsonl", line(number)) for number in range(25)]
    loads.load()
    for path in paths:
        path.write_text(path.read_text() + line(100))

    found = verified(loads).not_compared

    assert len(found) == 21
    assert found[-1].reason == "5 more notes are not shown"


# The command.


@DIRECT
def test_the_command_names_a_gap_and_says_what_to_do(loads, first_chunk_left, tmp_path, capsys):
    board, handed = first_chunk_left
    file = tmp_path / "events.yaml"
    columns = "\n".join(f"  {column.name}: {column.type}" for column in loads.declared.columns)
    file.write_text(
        f"pipeline: events\nsource: {{path: {loads.declared.source.path}, format: jsonl}}\n"
        f"columns:\n{columns}\ntarget: {{table: public.target}}\npublish: direct\n"
    )
    environment = {"ONCELOAD_DSN": loads.dsn}

    held, said = main(["verify", str(file)], environment), capsys.readouterr().err
    board.board.nack(handed, "too late")
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.delivery SET state = 'dead'")
    abandon(loads.engine, "events", handed.claim.delivery_id, by="ann")
    lost = main(["verify", str(file)], environment)
    out, err = capsys.readouterr()

    assert (held, lost) == (ExitCode.DONE, ExitCode.NEEDS_A_PERSON)
    assert "no differences; the lines above list files that are not loaded yet or were not compared" in said
    assert "gap" in out
    assert "gap (1): a part of the file was never loaded" in err


def test_a_load_that_was_given_up_at_its_last_try_leaves_a_gap_that_is_named(loads, monkeypatch):
    """A chunk that cannot be read is left out of its batch; the others are loaded."""
    declare(loads, Mode.SHARED, deliveries_max=1)
    loads.write("a.jsonl", "".join(map(line, range(100, 140))))

    def read(chunk, source):
        if not chunk.first:
            raise ValueError("poison")
        yield from read_parts(chunk, source)

    monkeypatch.setattr(loading, "read_parts", read)
    loads.load()
    assert loads.rows() == [*range(110, 140)]
    aside = verified(loads)
    ((number,),) = loads.ask("SELECT delivery_id FROM onceload.delivery WHERE state = 'dead'")
    abandon(loads.engine, "events", number, by="ann")

    assert (named(aside), list(notes(aside))) == ([], ["a.jsonl"])
    assert [kind for _, kind, _ in named(verified(loads))] == [Kind.GAP]
    monkeypatch.setattr(loading, "read_parts", read_parts)
    loads.load()
    assert named(verified(loads)) == []


def set_aside(loads, monkeypatch, *, name, first=0):
    """Load, while one part of one file cannot be read."""
    declare(loads, Mode.SHARED, deliveries_max=1)

    def read(chunk, source):
        if chunk.name == name and chunk.first >= first:
            raise ValueError("poison")
        yield from read_parts(chunk, source)

    monkeypatch.setattr(loading, "read_parts", read)
    loads.load()
    ((number,),) = loads.ask("SELECT delivery_id FROM onceload.delivery WHERE state = 'dead'")
    return number


@pytest.mark.parametrize("deep", [False, True])
def test_a_file_that_was_never_read_is_named_as_a_dead_letter(loads, monkeypatch, deep):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.jsonl", line(2))
    number = set_aside(loads, monkeypatch, name="b.jsonl")
    words = f"are in the dead letters: see `onceload deliveries show {number}`"

    found = verified(loads, deep=deep)
    assert (named(found), notes(found)) == (
        [],
        {"b.jsonl": f"nothing of it is loaded yet ({len(line(2))} bytes): its records {words}"},
    )
    (loads.folder / "b.jsonl").unlink()
    assert notes(verified(loads, deep=deep)) == {"b.jsonl": f"nothing of it is loaded: its records {words}"}


def test_a_rewound_file_that_could_not_be_read_again_is_named_as_a_dead_letter(loads, monkeypatch):
    loads.write("a.jsonl", line(1))
    loads.load()
    back(loads, 0)
    number = set_aside(loads, monkeypatch, name="a.jsonl")

    found = verified(loads)

    assert named(found) == []
    assert notes(found)["a.jsonl"].endswith(
        f": its records are in the dead letters: see `onceload deliveries show {number}`"
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_an_end_that_could_not_be_read_is_named_as_a_dead_letter(loads, monkeypatch, name):
    def packed(content):
        return gzip.compress(content.encode()) if name.endswith("gz") else content

    loads.write(name, packed(line(1)))
    loads.load()
    path = loads.folder / name
    path.write_bytes(path.read_bytes() + (packed(line(2)) if name.endswith("gz") else line(2).encode()))
    number = set_aside(loads, monkeypatch, name=name)

    found = verified(loads)

    assert named(found) == []
    assert notes(found)[name].endswith(f"are in the dead letters: see `onceload deliveries show {number}`")
