"""The public face of the core."""

import onceload_core


def test_every_public_name_is_there_once_and_in_order():
    assert sorted(set(onceload_core.__all__)) == list(onceload_core.__all__)
    assert all(hasattr(onceload_core, name) for name in onceload_core.__all__)
