"""Random numbers of the scenes."""

import random

import pytest

from tests.stress import TRIES


@pytest.fixture(params=range(3, 3 + TRIES))
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that are the same in every run."""
    return random.Random(request.param)
