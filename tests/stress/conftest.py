"""Random numbers of the scenes."""

from __future__ import annotations

import random

import pytest

from tests.stress import TRIES


@pytest.fixture(params=range(3, 3 + TRIES))
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that are the same in every run."""
    return random.Random(request.param)
