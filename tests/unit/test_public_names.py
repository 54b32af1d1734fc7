"""The public face of the core."""

import dedup_core


def test_every_public_name_is_there_once_and_in_order():
    assert sorted(set(dedup_core.__all__)) == list(dedup_core.__all__)
    assert all(hasattr(dedup_core, name) for name in dedup_core.__all__)
