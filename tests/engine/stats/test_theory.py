"""The formulas against the paper's own tables and against simulation-free identities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.stats.speedup import expected_tokens, operations, optimal_gamma, speedup, speedup_of_rounds

alphas = st.floats(0, 1)
gammas = st.integers(0, 16)
costs = st.floats(0, 2)


@pytest.mark.parametrize(
    ("alpha", "gamma", "printed_operations", "printed_speed"),
    [
        (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44), (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)  # fmt: skip
def test_table_1(alpha: float, gamma: int, printed_operations: float, printed_speed: float) -> None:
    assert round(operations(alpha, gamma), 2) == printed_operations
    assert round(speedup(alpha, gamma, 0), 2) == printed_speed


@pytest.mark.parametrize(
    ("gamma", "alpha", "c", "expected"),
    [
        (7, 0.75, 0.02, 3.2),
        (7, 0.80, 0.04, 3.3),
        (7, 0.82, 0.11, 2.5),
        (7, 0.62, 0.02, 2.3),
        (5, 0.65, 0.02, 2.4),
        (5, 0.73, 0.04, 2.6),
        (3, 0.74, 0.11, 2.0),
        (5, 0.53, 0.02, 1.9),
        (3, 0.55, 0.04, 1.8),
        *((8, alpha, 0.015, expected) for alpha, expected in ((0.75, 3.3), (0.8, 3.9), (0.87, 4.9))),  # lenience
    ],
)
def test_table_4(gamma: int, alpha: float, c: float, expected: float) -> None:
    assert round(speedup(alpha, gamma, c), 1) == expected


@given(alphas, gammas)
def test_equation_1_is_the_sum_of_survival(alpha: float, gamma: int) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**i for i in range(gamma + 1)), rel=1e-6)


@given(st.floats(0, 0.99), costs)
def test_drafting_pays_exactly_where_alpha_exceeds_c(alpha: float, c: float) -> None:
    """Corollary 3.9: if any γ pays, then γ = 1 does, by (1 + α) / (1 + c)."""
    assert speedup(alpha, 1, c) == pytest.approx((1 + alpha) / (1 + c), rel=1e-6)
    if abs(alpha - c) > 1e-6:
        assert (max(speedup(alpha, gamma, c) for gamma in range(1, 65)) > 1) == (alpha > c)


@given(alphas, costs)
def test_the_optimal_gamma_is_beaten_by_none_and_is_0_where_drafting_does_not_pay(alpha: float, c: float) -> None:
    best = optimal_gamma(alpha, c, 16)
    assert speedup(alpha, best, c) == max(speedup(alpha, gamma, c) for gamma in range(17))
    if alpha < c - 1e-6:
        assert best == 0


@given(alphas, st.integers(0, 12), costs, st.integers(1, 9))
def test_rounds_of_one_length_are_theorem_3_8(alpha: float, gamma: int, c: float, count: int) -> None:
    expected = expected_tokens(alpha, gamma) / (gamma * c + 1)
    assert speedup_of_rounds(alpha, {gamma: count}, c) == pytest.approx(expected)


def test_rounds_without_a_draft_are_plain_decoding() -> None:
    assert speedup_of_rounds(0.9, {0: 7}, 0.5) == 1
    assert 1 < speedup_of_rounds(0.9, {0: 7, 4: 7}, 0.05) < speedup(0.9, 4, 0.05)
