"""The figures, each against its definition."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine import WINDOW_S, Admitted, Fate, Metrics, Proposer, Round, Step, Totals
from specchat.engine.round import Refused
from tests.engine.records import make_round, observed_round, rounds


def steady(count: int, apart: float, *, start: float = 0.0) -> list[Round]:
    """Rounds that take all of the time between them; each emits 3 tokens."""
    return [make_round(drafted=2, number=i, at=start + (i + 1) * apart, seconds=(0, apart, 0)) for i in range(count)]


def figures(*events: Admitted | Round | Totals) -> Metrics:
    metrics = Metrics()
    for event in events:
        metrics.add(event)
    return metrics


def test_nothing_divides_by_zero() -> None:
    empty = figures()
    assert (empty.acceptance, empty.mean_emitted_length, empty.alpha, empty.time_to_first_token_s) == (None,) * 4
    assert (empty.tokens_per_second, empty.recent_tokens_per_second) == (None, None)
    assert (empty.per_position, empty.seconds) == ([], 0.0)


def test_each_draft_is_tested_where_it_had_a_token_behind_what_was_accepted() -> None:
    refused = make_round(drafted=4, accepted=2, rejected=True)
    both = (Proposer("a", 4, 4), Proposer("b", 3, 1)), (Proposer("a", 2, 2), Proposer("b", 3, 0))
    metrics = figures(*(replace(refused, proposers=each) for each in both), make_round(drafted=4))
    assert metrics.by_draft == {"a": (3 + 2, 2 + 2), "b": (2 + 1, 1 + 0)}
    before = metrics.copy()
    metrics.add(replace(make_round(drafted=2), proposers=(Proposer("a", 2, 2),)))
    assert before.by_draft["a"] == (5, 4)
    assert metrics.by_draft["a"] == (7, 6)


def test_positions_are_counted_apart() -> None:
    metrics = figures(
        make_round(drafted=3),
        make_round(drafted=3, accepted=1, rejected=True),
        make_round(drafted=2, accepted=0, rejected=True),
    )
    assert metrics.position_tested == [3, 2, 1]
    assert metrics.position_accepted == [2, 1, 1]
    assert metrics.per_position == pytest.approx([2 / 3, 1 / 2, 1.0])


def test_alpha_is_the_mean_over_tested_positions_not_over_rounds() -> None:
    metrics = figures(make_round(drafted=3, beta=0.9), make_round(drafted=1, accepted=0, rejected=True, beta=0.1))
    assert metrics.alpha == pytest.approx((3 * 0.9 + 0.1) / 4)


def test_mean_emitted_length_includes_the_last_token() -> None:
    assert figures(make_round(drafted=4), make_round(drafted=0)).mean_emitted_length == 3.0


def test_speed_over_the_reply_runs_from_the_start_of_the_first_round() -> None:
    metrics = figures(*steady(4, 0.5, start=10.0))
    assert metrics.seconds == pytest.approx(2.0)
    assert metrics.tokens_per_second == pytest.approx(6.0)


def test_time_to_first_token_counts_queueing_and_prefill() -> None:
    metrics = figures(Admitted("r", 20, 5, queued_s=0.3, at=1.0), *steady(2, 0.5, start=1.2))
    assert metrics.time_to_first_token_s == pytest.approx(1.0)
    assert (metrics.prompt_tokens, metrics.reused_tokens) == (20, 5)


def test_a_second_reply_adds_up_and_leaves_the_first_ones_wait_alone() -> None:
    one = Admitted("a", 20, 0, queued_s=0.0, at=1.0)
    two = Admitted("b", 30, 20, queued_s=0.0, at=9.0)
    metrics = figures(one, *steady(1, 0.5, start=1.0), two, *steady(1, 0.5, start=9.0))
    assert metrics.time_to_first_token_s == pytest.approx(0.5)
    assert (metrics.prompt_tokens, metrics.reused_tokens) == (50, 20)


@pytest.mark.parametrize("apart", [0.01, 0.3, 1.0, 1.9, 2.0, 5.0])
def test_a_steady_reply_has_the_same_speed_in_the_window_as_over_all(apart: float) -> None:
    metrics = figures(*steady(40, apart))
    assert metrics.recent_tokens_per_second == pytest.approx(3 / apart)
    assert metrics.recent_tokens_per_second == pytest.approx(metrics.tokens_per_second)


def test_the_window_forgets_what_is_older() -> None:
    slow = steady(10, 0.5)
    fast = steady(1000, 0.01, start=slow[-1].at)
    metrics = figures(*slow, *fast)
    assert metrics.recent_tokens_per_second == pytest.approx(300.0)
    assert metrics.tokens_per_second == pytest.approx(1010 * 3 / 15.0)
    assert len(metrics._recent) <= WINDOW_S / 0.01 + 1


@settings(max_examples=30)
@given(st.lists(rounds(), max_size=20))
def test_counts_agree_with_the_fates_on_screen(many: list[Round]) -> None:
    metrics = figures(*many)
    fates = [token.fate for record in many for token in record.tokens()]
    assert metrics.rounds == len(many)
    assert metrics.accepted == fates.count(Fate.ACCEPTED)
    assert metrics.tested == metrics.accepted + fates.count(Fate.REJECTED)
    assert metrics.wasted == fates.count(Fate.REJECTED) + fates.count(Fate.DISCARDED)
    assert metrics.emitted == sum(len(record.emitted) for record in many)
    assert sum(metrics.position_tested) == metrics.tested
    assert sum(metrics.position_accepted) == metrics.accepted
    assert all(0 <= rate <= 1 for rate in metrics.per_position)


def test_an_observed_reply_has_no_alpha_and_its_first_token_took_unknown_time() -> None:
    told = figures(
        observed_round(None, "a", at=1.0, seconds=0.0),
        *(observed_round(Step(4, 2), "b", "c", "d", number=n, at=1.0 + n, seconds=1.0) for n in (1, 2)),
    )
    assert (told.tested, told.accepted, told.alpha) == (6, 4, None)
    assert told.tokens_per_second == 3.0


def test_what_a_server_says_at_the_end_stands_for_what_its_stream_did_not_say() -> None:
    unknown = [observed_round(None, "a", number=n, at=1.0 + n) for n in range(3)]
    before = figures(*unknown)
    assert (before.passes, before.mean_emitted_length, before.acceptance) == (None, None, None)
    totals = Totals("r", 9.0, prompt_tokens=7, tokens=6, passes=2, drafted=8, accepted=4)
    after = figures(*unknown, totals)
    assert (after.emitted, after.prompt_tokens, after.mean_emitted_length, after.acceptance) == (6, 7, 3.0, None)
    steps = figures(*unknown, replace(totals, steps=(Step(4, 3), Step(4, 1))))
    assert (steps.tested, steps.accepted, steps.wasted) == (6, 4, 4)
    assert steps.per_position == [1.0, 0.5, 1.0, 0.0]


def test_all_tested_candidates_of_a_tree_count_as_rejected() -> None:
    """Two candidates were rejected before the accepted one, and a third next to the rejected token."""
    other = Refused(7, " x", 0.1, 0.5, 0.9)
    tree = replace(make_round(drafted=4, accepted=1, rejected=True), refused=((other, other), (other,)), offered=16)
    assert (tree.accepted, tree.rejected, tree.discarded) == (1, 4, 11)
    metrics = figures(tree, make_round(drafted=4, accepted=2, rejected=True))
    assert (metrics.accepted, metrics.rejected, metrics.discarded) == (3, 5, 12)
    assert metrics.acceptance == 3 / 5  # positions
