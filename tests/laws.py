"""How many examples a law is tried with."""

from hypothesis import settings


def examples(in_a_hundred: int) -> settings:
    """This number where the profile says 100, and ten times as many where it says 1 000."""
    return settings(max_examples=in_a_hundred * settings().max_examples // 100)
