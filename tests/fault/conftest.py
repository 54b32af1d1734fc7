"""Lanes are dear to open, so the fault tests share them; the seed is printed with whatever fails."""

import pytest

from tests.fault.lane import open_lanes
from tests.fault.sizes import LANES, chosen_seed


@pytest.fixture(scope="session")
def lanes():
    with open_lanes(LANES) as lanes:
        yield lanes


@pytest.fixture
def seed():
    seed = chosen_seed()
    print(f"ONCELOAD_FAULT_SEED={seed}")
    return seed
