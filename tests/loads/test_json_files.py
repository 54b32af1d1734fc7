"""Files of one JSON array, or of one object: each is loaded as a whole, once, or not at all."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import zstandard

from onceload.draft.draft import draft
from onceload.pipeline_file import read_pipeline
from onceload_jobs.files.compression import Damaged
from onceload_jobs.files.reading import StoredFile, read_at
from onceload_jobs.formats import whole_files
from onceload_jobs.formats.json import documents
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.load.report import Report
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, Identity, OnRewrite, Publish, UnknownFields
from onceload_jobs.read import checked_parts as reading
from onceload_jobs.verify.findings import Kind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads

pytestmark = pytest.mark.usually_staged

PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": partial(gzip.compress, mtime=0),
    ".zst": zstandard.compress,
}
#: One that is packed stands for all where how it is packed makes no difference.
TWO_PACKS = ("", ".gz")
#: Longer than a group of records.
_NOTE = "x" * 1000
_MANY = 1_000


@pytest.fixture
def loads(loads: Loads) -> Loads:
    source = replace(loads.declared.source, path=str(loads.folder / "**" / "*.json*"), format=Format.JSON)
    loads.declared = replace(loads.declared, source=source)
    return loads


def records(first: int, end: int, **fields: object) -> list[dict[str, object]]:
    return [{"id": number, "amount": "1.50", "note": "x"} | fields for number in range(first, end)]


def array(first: int, end: int, *, indent: int | None = None, **fields: object) -> bytes:
    return json.dumps(records(first, end, **fields), indent=indent).encode()


def notes(report: Report) -> list[tuple[str, bool]]:
    return [(note.name, note.needs_a_person) for note in report.notes]


def reasons(report: Report) -> str:
    return "\n".join(note.reason for note in report.notes)


def quarantined(loads: Loads) -> list[tuple[int, str, str]]:
    return loads.ask(
        "SELECT sequence_id, convert_from(raw, 'UTF8'), reason FROM onceload.quarantine ORDER BY sequence_id"
    )


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_elements_of_an_array_are_numbered_and_loaded_once(loads, suffix, indent):
    loads.write(f"a.json{suffix}", PACKS[suffix](b"\xef\xbb\xbf \n" + array(0, 5, indent=indent) + b"\n\n"))

    assert (loads.load().loaded, loads.load().loaded) == (5, 0)
    assert loads.rows("_sequence, id") == [(number, number) for number in range(5)]


def test_one_object_is_one_record(loads):
    for number, record in enumerate(records(0, 3)):
        loads.write(f"{number}.json", json.dumps(record, indent=4))

    assert (loads.load().loaded, loads.load().loaded) == (3, 0)
    assert loads.rows("_sequence, id") == [(0, 0), (0, 1), (0, 2)]


def test_a_column_is_read_by_its_path_inside_of_an_element(loads):
    city = replace(parse_column("city", "text"), path=("to", "city"))
    loads.write("a.json", json.dumps([{"id": 0, "to": {"city": "Oslo"}}, {"to": {"city": "Rome"}}, {"id": 2}]))

    assert loads.load(columns=(parse_column("id", "bigint"), city)).loaded == 3
    assert loads.rows("id, city") == [(0, "Oslo"), (2, None), (None, "Rome")]


@pytest.mark.parametrize("suffix", TWO_PACKS)
def test_a_file_of_many_groups_is_loaded_once(loads, suffix):
    loads.write(f"a.json{suffix}", PACKS[suffix](array(0, _MANY, note=_NOTE)))
    few = replace(loads.declared.source, chunk_bytes=documents.GROUP_BYTES)

    first, second = loads.load(source=few), loads.load()

    assert (first.loaded, second.loaded, first.notes) == (_MANY, 0, ())
    assert loads.rows("_sequence, id") == [(number, number) for number in range(_MANY)]


@pytest.mark.parametrize(("suffix", "lacks"), [("", 1), ("", 20), ("", 700_000), (".zst", 700_000)])
def test_nothing_of_an_array_that_is_not_closed_is_loaded(loads, suffix, lacks):
    whole = array(0, _MANY, note=_NOTE)
    path = loads.write(f"a.json{suffix}", PACKS[suffix](whole[:-lacks]))

    first, again = loads.load(), loads.load()

    assert [notes(each) for each in (first, again)] == [[(path.name, True)]] * 2
    assert "it is damaged or truncated: its array is not closed at its end" in reasons(first)
    assert loads.rows_or_none() == []
    path.write_bytes(PACKS[suffix](whole))
    assert loads.load().loaded == _MANY


def test_an_upload_whose_beginning_ends_like_an_array_is_not_loaded(loads):
    whole = b'[{"id": 1, "tags": ["a", "b"]}, {"id": 2}]'
    path = loads.write("a.json", whole[: whole.index(b"]") + 1])

    assert notes(loads.load()) == [("a.json", True)]
    path.write_bytes(whole)
    assert loads.load().loaded == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it holds no JSON"),
        (b" \n", "it holds no JSON"),
        (b'{"id": 1}\n{"id": 2}\n', "its object ends at byte 8, and more follows at byte 10"),
        (b'[{"id": 1}] x', "its array ends at byte 10, and more follows at byte 12"),
        (b"id,note\n1,x\n", "it begins with 'id,note"),
        (b"[" + json.dumps("x").encode()[:-1], "is not closed at its end (byte 3), and a string is still open"),
        ('[{"id": 1}]'.encode("utf-16"), "it is text in UTF-16"),
        (gzip.compress(b"[]"), "it is compressed with gzip"),
    ],
    ids=["empty", "blank", "lines", "trailing", "csv", "string", "utf16", "gzip"],
)
def test_a_file_of_another_kind_is_refused(loads, content, reason):
    loads.write("a.json", content)

    report = loads.load()

    assert notes(report) == [("a.json", True)]
    assert reason in reasons(report)
    assert loads.rows_or_none() == []


def test_a_packed_upload_that_breaks_off_is_loaded_once_it_is_whole(loads):
    packed = gzip.compress(array(0, 500))
    path = loads.write("a.json.gz", packed[: len(packed) // 2])

    report = loads.load()

    assert notes(report) == [("a.json.gz", False)]
    assert "its compressed data breaks off" in reasons(report)
    path.write_bytes(packed)
    assert loads.load().loaded == 500


def test_an_array_without_records_is_read_once(loads):
    for name, content in {"a.json": b"[]", "b.json": b" [ \n ] ", "c.json.gz": gzip.compress(b"[]")}.items():
        loads.write(name, content)

    assert [(each.loaded, each.notes) for each in (loads.load(), loads.load())] == [(0, ())] * 2
    assert loads.ask("SELECT count(*) FROM onceload.ledger") == [(1,)]


def test_bad_elements_are_quarantined_alone_and_can_be_fixed(loads):
    elements = [
        *('{"id": 0, "note": "a,[b]\\"{"}', '{"id": "one"}', "7", "null", "", '{"id": 5, "id": 6}', '{"id": tru}'),
        *('{"id": 7\n}', '{"id": 8, "note": "\\ud800"}', '{"id": 9, "amount": NaN}', '{"x": 1}', '{"id": 11}'),
        '{"id": 12, "note": "a\nb"}',
    ]
    loads.write("a.json", "[" + " ,\n ".join(elements) + "]")

    report = loads.load()

    assert (report.loaded, report.quarantined) == (3, 10)
    assert loads.rows("_sequence, id, note") == [(0, 0, 'a,[b]"{'), (7, 7, None), (11, 11, None)]
    assert [(number, raw) for number, raw, _ in quarantined(loads)] == [
        (number, elements[number]) for number in (1, 2, 3, 4, 5, 6, 8, 9, 10, 12)
    ]


def test_invalid_utf8_makes_its_own_record_bad(loads):
    loads.write("a.json", b'[{"id": 1, "note": "\xff"}, {"id": 2, "note": "\xc3\xa4"}]')

    report = loads.load()

    assert (report.loaded, report.quarantined) == (1, 1)
    assert loads.rows("id, note") == [(2, "ä")]


@pytest.mark.parametrize("suffix", TWO_PACKS)
def test_a_record_that_is_too_long_is_quarantined_and_its_neighbours_are_loaded(loads, suffix):
    long = {"id": 1, "note": "x" * 3_000_000}
    loads.write(f"a.json{suffix}", PACKS[suffix](json.dumps([*records(0, 1), long, *records(2, 4)]).encode()))

    report = loads.load(source=replace(loads.declared.source, record_bytes_max=2_000_000))

    assert (report.loaded, report.quarantined) == (3, 1)
    assert loads.rows("_sequence, id") == [(0, 0), (2, 2), (3, 3)]
    assert loads.ask("SELECT sequence_id, length(raw) FROM onceload.quarantine") == [(1, 2**20)]


@pytest.mark.parametrize("suffix", TWO_PACKS)
def test_a_record_that_was_too_long_is_known_again_when_longer_ones_are_allowed(loads, suffix):
    """Its receipt has the digest of the beginning that was kept."""
    limit = {"record_bytes_max": 2_000_000, "identity": Identity.CONTENT}
    long = {"id": 1, "note": "x" * 3_000_000}
    content = PACKS[suffix](json.dumps([*records(0, 1), long, *records(2, 4)]).encode())
    loads.write(f"a.json{suffix}", content)
    loads.load(source=replace(loads.declared.source, **limit))
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))

    assert verify(loads.declared, loads.engine, deep=True).differing == 0
    loads.write(f"b.json{suffix}", content)
    report = loads.load()
    assert (report.loaded, report.duplicates) == (0, 4)
    assert loads.rows("_sequence, id") == [(0, 0), (2, 2), (3, 3)]
    assert verify(loads.declared, loads.engine).differing == 0


def test_a_record_of_more_than_a_group_is_loaded(loads):
    long = {"id": 1, "note": "y" * 3_000_000}
    loads.write("a.json", json.dumps([*records(0, 1), long, *records(2, 4)]))

    assert loads.load().loaded == 4
    assert loads.rows("_sequence, length(note)") == [(0, 1), (1, 3_000_000), (2, 1), (3, 1)]


@pytest.mark.parametrize("suffix", TWO_PACKS)
@pytest.mark.parametrize("rewrite", [OnRewrite.STOP, OnRewrite.REPLACE, OnRewrite.NEW_GENERATION])
def test_an_array_that_grew_counts_as_new_content(loads, suffix, rewrite, publish):
    # Rows are replaced in staged batches only.
    publish = Publish.STAGED if rewrite is OnRewrite.REPLACE else publish
    loads.declared = replace(loads.declared, on_rewrite=rewrite, publish=publish)
    path = loads.write(f"a.json{suffix}", PACKS[suffix](array(0, 3)))
    loads.load()
    path.write_bytes(PACKS[suffix](array(0, 5)))

    report = loads.load()

    assert (
        loads.rows()
        == {
            OnRewrite.STOP: [0, 1, 2],
            OnRewrite.REPLACE: [*range(5)],
            OnRewrite.NEW_GENERATION: [0, 0, 1, 1, 2, 2, 3, 4],
        }[rewrite]
    )
    assert notes(report) == ([(path.name, True)] if rewrite is OnRewrite.STOP else [])
    assert loads.load().loaded == 0


@pytest.mark.parametrize(
    ("suffix", "found"),
    [("", "its size has changed from {} to {} bytes since"), (".gz", "its content has changed since")],
)
def test_an_array_that_grew_is_not_said_to_start_with_other_records(loads, suffix, found):
    before, after = (PACKS[suffix](array(0, count)) for count in (3, 5))
    path = loads.write(f"a.json{suffix}", before)
    loads.load()
    path.write_bytes(after)

    said = reasons(loads.load())

    assert said.startswith(f"{found.format(len(before), len(after))} it was loaded (up to row 3). Its loaded rows stay")
    assert "Restore the file, and write new records to a new file, or " in said


def test_the_same_content_that_is_packed_again_is_not_loaded_again(loads):
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.NEW_GENERATION)
    path = loads.write("a.json.gz", gzip.compress(array(0, 300), compresslevel=1))
    loads.load()
    path.write_bytes(gzip.compress(array(0, 300), compresslevel=9))

    assert [loads.load().loaded for _ in range(2)] == [0, 0]
    assert loads.rows() == [*range(300)]


@pytest.mark.parametrize(("one", "other"), [("", ".gz"), (".gz", ".zst"), (".gz", ".gz")])
def test_content_is_recognised_under_another_name_however_it_is_packed(loads, one, other):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    raw = array(0, _MANY, note=_NOTE)
    loads.write(f"a.json{one}", PACKS[one](raw))
    loads.load()
    loads.write(f"b.json{other}", PACKS[other](raw))

    assert [loads.load().loaded for _ in range(2)] == [0, 0]
    assert len(loads.rows()) == _MANY


def rewrite_after_a_look(loads: Loads) -> None:
    """An array of one record less than when the places of its records were read; neither size nor edges show it."""
    raw = array(0, _MANY, note=_NOTE)
    path = loads.write("a.json", raw)
    read_whole_file(Format.JSON, str(path), size=len(raw))
    one, two = (json.dumps(each).encode() for each in records(40, 42, note=_NOTE))
    both = one[:-2] + b"_" * (len(two) + 2) + one[-2:]
    assert raw.count(one + b", " + two) == 1
    path.write_bytes(raw.replace(one + b", " + two, both))


def test_an_array_that_was_rewritten_after_a_look_is_loaded_at_once(loads):
    rewrite_after_a_look(loads)

    report = loads.load()

    assert (report.loaded, reasons(report)) == (_MANY - 1, "")
    assert loads.rows("_sequence") == [*range(_MANY - 1)]


def test_an_array_that_changes_behind_its_plan_gives_no_row_of_both_contents(loads, monkeypatch):
    """The places of its records are known from before, and the store reports no version."""
    monkeypatch.setattr(whole_files, "look_at", lambda _: StoredFile(size=0))
    rewrite_after_a_look(loads)

    first, second = loads.load(), loads.load()

    assert "it was rewritten since" in reasons(first)
    assert (first.loaded, second.loaded) == (0, _MANY - 1)
    assert loads.rows() == [number for number in range(_MANY) if number != 41]
    assert loads.rows("_sequence") == [*range(_MANY - 1)]


@pytest.mark.parametrize("suffix", TWO_PACKS)
def test_the_rest_of_an_array_is_loaded_behind_a_part_that_is_damaged(loads, monkeypatch, suffix):
    loads.write(f"a.json{suffix}", PACKS[suffix](array(0, _MANY, note=_NOTE)))
    bytes_of = reading._bytes_of

    def breaks_off(url, groups, source):
        yield next(bytes_of(url, groups, source))
        raise Damaged(url, 0, "planted")

    with monkeypatch.context() as patched:
        patched.setattr(reading, "_bytes_of", breaks_off)
        first = loads.load()
    second, third = loads.load(), loads.load()

    assert 0 < first.loaded < _MANY
    assert (first.loaded + second.loaded, third.loaded, third.notes) == (_MANY, 0, ())
    assert loads.rows() == [*range(_MANY)]


def test_undeclared_fields_are_added(loads):
    loads.declared = replace(loads.declared, unknown_fields=UnknownFields.ADD)
    loads.write("a.json", array(0, 2, more=7))

    loads.load()

    assert loads.rows("id, more") == [(0, 7), (1, 7)]


@pytest.mark.parametrize("suffix", TWO_PACKS)
def test_verify_finds_each_record_and_each_change(loads, suffix):
    path = loads.write(f"a.json{suffix}", PACKS[suffix](array(0, _MANY, note=_NOTE)))
    loads.load()

    sound = verify(loads.declared, loads.engine, deep=True)
    # The first group only: neither edge of the file shows it.
    path.write_bytes(PACKS[suffix](array(0, _MANY, note=_NOTE).replace(b'"id": 9,', b'"id": 8,')))
    changed = verify(loads.declared, loads.engine)

    assert (sound.differences, sound.rows_compared) == ((), _MANY)
    assert [(each.kind, each.span) for each in changed.differences][:1] == [(Kind.BYTES_CHANGED, "[0,252)")]


@pytest.mark.parametrize("suffix", TWO_PACKS)
def test_a_drafted_pipeline_file_loads_arrays(loads, suffix):
    elements = records(0, 1_500, note=_NOTE, at="2026-11-20T10:00:00Z", tags=["a,\n", "]"])
    for name in ("a", "b"):
        loads.write(f"{name}.json{suffix}", PACKS[suffix](json.dumps(elements, indent=1).encode()))
    path = loads.folder.parent / "drafted.yaml"
    path.write_text(draft(str(loads.folder / "*.json*")).text)

    declared = read_pipeline(path)
    report = loads.load(**vars(declared))

    assert declared.source.format is Format.JSON
    assert (report.loaded, report.quarantined, report.notes) == (3_000, 0, ())
    types = {column.name: str(column.type) for column in declared.columns}
    assert (types["id"], types["at"], types["tags"]) == ("bigint", "timestamptz", "jsonb")


@pytest.mark.parametrize("suffix", TWO_PACKS)
def test_a_drafted_pipeline_file_loads_one_object_a_file(loads, suffix):
    for number, record in enumerate(records(0, 3, tags=["a,\n", "}"], inner={"size": 1})):
        written = json.dumps(record, indent=2 if number else None).encode()
        loads.write(f"{number}.json{suffix}", PACKS[suffix](b"\xef\xbb\xbf\n" + written))
    path = loads.folder.parent / "drafted.yaml"
    drafted = draft(str(loads.folder / "*.json*"))
    path.write_text(drafted.text)

    report = loads.load(**vars(read_pipeline(path)))

    assert drafted.source == "3 records of 3 files (all of the records)"
    assert "  # size: {type: bigint, path: inner.size}\n" in drafted.text
    assert (report.loaded, report.quarantined, report.notes) == (3, 0, ())


def test_an_empty_element_beside_a_large_one_goes_to_quarantine(loads):
    large = json.dumps({"id": 1, "note": "x" * 300_000})
    loads.write("a.json", f"[{large},,{large},]")

    report = loads.load()

    assert (report.loaded, report.quarantined) == (2, 2)
    assert verify(loads.declared, loads.engine).differing == 0


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_file_that_is_written_once_more_while_it_is_read_loses_no_record(loads, monkeypatch, share):
    """Its bytes are the same, and it is whole again when it is checked."""
    content = array(0, _MANY, note=_NOTE)
    loads.write("a.json", content)
    cut: list[int] = []

    def read_cut(url: str, *, offset: int, size: int) -> bytes:
        raw = read_at(url, offset=offset, size=size)
        if cut:
            return raw
        cut.append(offset)
        return raw[: int(size * share)]

    monkeypatch.setattr(reading, "read_at", read_cut)
    first, then = loads.load(), loads.load()

    assert cut
    assert first.loaded + then.loaded == _MANY
    assert loads.rows() == list(range(_MANY))
    assert verify(loads.declared, loads.engine).differing == 0
