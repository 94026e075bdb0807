"""Many requests through one engine; more with the variable STRESS."""

import pytest

from tests.stress import TRIES
from tests.stress.requests import Stress


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_each_of_many_requests_ends_once_and_the_right_ones_with_the_right_text(seed: int) -> None:
    stress = Stress(150 * TRIES, seed)
    stress.run()
    assert stress.faults == []
    assert stress.counts["ended"] >= stress.counts["submitted"]
    assert stress.counts["tokens as the reference"] > 500
    assert stress.counts["bad"] > 0
