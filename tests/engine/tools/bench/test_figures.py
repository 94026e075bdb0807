"""Counting rounds, and the figures made from the counts, on rounds whose times are known."""

from dataclasses import replace

import pytest

from specchat.engine import Round
from specchat.engine.stats.speedup import speedup_of_rounds
from specchat.engine.tools.bench.figures import Cell, Pace, PeerCell, Place, Traffic, tally
from specchat.engine.tools.runner import NONE, Variant
from tests.engine.records import make_round

PLACE = Place("chat", 1, 0.0)
TRAFFIC = Traffic(weights=1000, cache=1, draft_weights=100, draft_cache=2)


def plain(number: int, at: float, **changes: object) -> Round:
    """A round of 10 ms without a draft."""
    return replace(make_round(drafted=0, number=number, at=at, seconds=(0.0, 0.009, 0.001)), **changes)  # type: ignore[arg-type]


def drafting(number: int, at: float, accepted: int, drafted: int = 4) -> Round:
    """A round of 12 ms, two of them for the draft."""
    return make_round(
        drafted=drafted, accepted=accepted, rejected=accepted < drafted, number=number, at=at,
        seconds=(0.002, 0.009, 0.001), beta=0.5,
    )  # fmt: skip


def test_first_rounds_do_not_count_and_the_way_between_rounds_does() -> None:
    counted = tally([plain(0, 1.0), plain(1, 1.02), plain(2, 1.03)], batch=1)
    assert counted.rounds == counted.tokens == 2
    assert counted.seconds == pytest.approx(0.03)
    assert counted.round_ms == pytest.approx((0, 9, 6))


def test_a_batch_that_has_begun_to_empty_does_not_count() -> None:
    both = [plain(1, 1.0, rows=2), plain(1, 1.001, rows=2, request_id="s"), plain(2, 1.02)]
    counted = tally(both, batch=2)
    assert (counted.rounds, counted.tokens, counted.positions) == (1, 2, 20)


def test_the_cell_of_plain_decoding() -> None:
    passes = [tally([plain(1, 1.0), plain(2, 1.01)], batch=1)]
    cell = Cell(PLACE, NONE, passes, passes, TRAFFIC, bandwidth=1e6)
    assert cell.tokens_per_second == pytest.approx(100)
    assert (cell.measured_speedup, cell.predicted_speedup, cell.cost_ratio, cell.acceptance) == (1, None, None, None)
    assert cell.bytes_per_token == 1000 + 10
    assert cell.roofline == pytest.approx(1010 * 100 / 1e6)


def test_the_cell_of_a_drafter() -> None:
    none = [tally([plain(1, 1.0), plain(2, 1.01)], batch=1)] * 2
    mine = [tally([drafting(1, 1.0, 4), drafting(2, 1.012, 1)], batch=1)] * 2
    cell = Cell(PLACE, Variant("model", 4), mine, none, TRAFFIC, bandwidth=1e6)
    assert cell.gamma == "4"
    assert (cell.draft_ms, cell.verify_ms, cell.rest_ms) == pytest.approx((2, 9, 1))
    assert (cell.acceptance, cell.mean_emitted_length, cell.alpha) == pytest.approx((5 / 6, 3.5, 0.5))
    assert cell.per_position == (1, 0.5, 1, 1)
    assert (cell.cost_ratio, cell.pass_ratio) == pytest.approx((0.5 / 9, 1))
    assert cell.predicted_speedup == pytest.approx(speedup_of_rounds(0.5, {4: 1}, 0.5 / 9))
    assert cell.measured_speedup == pytest.approx(0.010 / (0.024 / 7))
    read = 2 * (1000 + 10) + 8 * 100 + 8 * 10 * 2
    assert cell.bytes_per_token == pytest.approx(read / 7)


def test_a_peer_is_compared_with_plain_decoding() -> None:
    none = [tally([plain(1, 1.0), plain(2, 1.01)], batch=1)]
    cell = PeerCell(PLACE, "peer", 0, [Pace(0, 0.0), Pace(5, 0.1)], {NONE: none * 2})
    assert cell.tokens_per_second == pytest.approx(50)
    assert cell.measured_speedup == pytest.approx(0.5)
    assert cell.variants == {"none": pytest.approx(2)}
