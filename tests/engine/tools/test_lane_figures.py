"""The figures of lanes and of pairs, from records made by hand."""

from dataclasses import replace
from math import e

import pytest

from specchat.engine import Admitted, Candidate, Detail, Finished, FinishReason
from specchat.engine.stats.speedup import expected_tokens, speedup_of_rounds
from specchat.engine.tools.lane_figures import Comparison, LaneTally, first_difference, top2_gap
from tests.engine.records import make_round


def plain(tokens: int = 10, share: float = 0.0, first: int = 99) -> LaneTally:
    """A lane that reads for 0.5 s, then emits a token every 0.1 s."""
    tally = LaneTally(share)
    tally.add(Admitted("l", 20, 5, 0.0, 1.0))
    for n in range(tokens):
        record = make_round(drafted=0, number=n, at=1.6 + 0.1 * n, seconds=(0.0, 0.08, 0.02))
        tally.add(replace(record, last=first if n == 0 else 99))
    tally.add(Finished("l", FinishReason.LENGTH, "", "", 1.5 + 0.1 * tokens))
    return tally


def drafting(rounds: int = 4, drafter: str = "ngram", share: float = 0.0, beta: float = 0.75) -> LaneTally:
    """A lane whose rounds take 0.12 s, draft four and keep two of them, and correct the third."""
    tally = LaneTally(share)
    tally.add(Admitted("r", 20, 5, 0.0, 1.0))
    for n in range(rounds):
        record = make_round(
            drafted=4, accepted=2, rejected=True, number=n, at=1.62 + 0.12 * n, seconds=(0.02, 0.08, 0.02), beta=beta
        )
        tally.add(replace(record, drafter=drafter))
    return tally


def test_a_lane_s_time_counts_from_its_submission_and_its_speed_from_its_first_round() -> None:
    lane = plain()
    assert (lane.seconds, lane.reading_s, lane.tokens_per_second) == pytest.approx((1.5, 0.5, 10))
    assert (lane.passes, lane.passes_saved, lane.work) == (10, 0, 1)


def test_passes_saved_and_work_are_counted() -> None:
    lane = drafting()
    assert (len(lane.tokens), lane.passes, lane.passes_saved) == (12, 4, 8)
    assert lane.work == pytest.approx((4 * 4 + 4) / 12)
    assert lane.predicted_work == pytest.approx(5 / expected_tokens(0.75, 4))


def test_a_draft_model_s_own_work_counts_and_an_n_gram_s_does_not() -> None:
    assert drafting(drafter="model", share=0.25).work == pytest.approx((4 * 4 * 1.25 + 4) / 12)
    assert drafting(drafter="ngram", share=0.25).work == pytest.approx((4 * 4 + 4) / 12)


def test_speedup_measured_and_predicted() -> None:
    both = Comparison(plain(), drafting())
    assert both.measured == pytest.approx((12 / 0.48) / 10)
    c = (0.02 / 4) / 0.08
    assert both.cost_ratio == pytest.approx(c)
    assert both.predicted == pytest.approx(speedup_of_rounds(0.75, {4: 1}, c))
    assert both.measured_in_all == pytest.approx((1.5 / 10) / ((0.62 + 0.36) / 12))
    other = Comparison(drafting(), plain())
    assert (both.measured * other.measured, both.predicted * other.predicted) == pytest.approx((1, 1))  # type: ignore[operator]


def test_identity() -> None:
    assert Comparison(plain(), plain()).identical
    assert Comparison(plain(), plain(first=98)).difference == 0
    assert Comparison(plain(9), plain(10)).difference == 9
    assert first_difference([], []) is None


def test_gap_is_in_logits() -> None:
    detail = Detail((Candidate(1, "a", 0.5), Candidate(2, "b", 0.5 / e)), (), (), 1.0, 0.0)
    assert top2_gap([replace(make_round(drafted=0), detail=(detail,))]) == pytest.approx(1)
    assert top2_gap([make_round(drafted=0)]) is None
