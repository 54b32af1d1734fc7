"""Which new files may be copies under way."""

from hypothesis import given
from hypothesis import strategies as st

from onceload_jobs.files.listing import list_files
from onceload_jobs.plan.same_content import _beginnings, copies_under_way

TEXTS = st.binary(min_size=1, max_size=6).map(lambda text: bytes(byte % 2 for byte in text))


@given(head=TEXTS, texts=st.sets(TEXTS))
def test_all_beginnings_of_a_text_are_found(head, texts):
    expected = [text for text in sorted(texts, reverse=True) if head.startswith(text)]

    assert list(_beginnings(head, among=sorted(texts))) == expected


def test_a_new_file_waits_for_the_one_that_it_begins(tmp_path):
    for name, content in {"a": b"1\n2\n", "b": b"1\n", "c": b"1\n2\n", "d": b"2\n", "e": b"", "f": b"2\n"}.items():
        (tmp_path / name).write_bytes(content)
    files = {listed.name: listed for listed in list_files(f"{tmp_path}/*").files}
    new = [files[name] for name in "abcde"]

    waiting = copies_under_way(new, [files["f"]])

    assert {one.name: other.name for one, other in waiting.items()} == {"b": "a", "c": "a", "d": "f"}
