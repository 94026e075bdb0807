"""Many requests through one engine; more with the variable STRESS."""

from __future__ import annotations

import pytest

from tests.stress import TRIES
from tests.stress.requests import Stress


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_each_of_many_requests_ends_once_and_the_right_ones_with_the_right_text(seed: int) -> None:
    tally = Stress(150 * TRIES, seed).run()
    assert tally.faults == []
    counts = tally.counts
    ended = sum(count for name, count in counts.items() if name.startswith("ended: "))
    assert ended >= sum(count for name, count in counts.items() if name.startswith("submitted "))
    assert counts["greedy, as the reference"] > 50
    assert sum(count for name, count in counts.items() if name.startswith("bad: ")) > 0


@pytest.mark.slow
def test_a_wrong_token_is_a_fault() -> None:
    stress = Stress(60, 1)
    stress._reference.replies = [[token ^ 1 for token in reply] for reply in stress._reference.replies]
    stress._reference.gaps = [[1.0] * len(gaps) for gaps in stress._reference.gaps]
    assert any("is not the reference's" in fault for fault in stress.run().faults)
