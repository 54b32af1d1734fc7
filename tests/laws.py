"""How many examples a law is tried with: 100 in `make test` and 1 000 in `make test-laws`, unless it has a number here.

A law with variants has that number for each of them. One that needs Postgres for each example has fewer.
"""

from hypothesis import settings


def examples(in_a_hundred: int) -> settings:
    """This number where the profile says 100, and ten times as many where it says 1 000."""
    return settings(max_examples=in_a_hundred * settings().max_examples // 100)
