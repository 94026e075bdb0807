"""The χ² test against tables, and on samples that do and do not come from the distribution."""

from __future__ import annotations

import random

import pytest

from specchat.engine.tools.lossless.chi_square import ChiSquare, _tail, chi_square


@pytest.mark.parametrize(
    ("statistic", "degrees", "chance"),
    [(3.841, 1, 0.05), (6.635, 1, 0.01), (18.307, 10, 0.05), (29.588, 10, 0.001), (124.342, 100, 0.05)],
)
def test_tail_as_in_printed_tables(statistic: float, degrees: int, chance: float) -> None:
    assert _tail(statistic, degrees) == pytest.approx(chance, rel=2e-3)


def test_a_fair_sample_passes_and_a_biased_one_does_not() -> None:
    draws = random.Random(0)
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    fair = draws.choices(list(weights), list(weights.values()), k=2000)
    assert chi_square(fair, weights).p_value > 0.01
    biased = draws.choices(list(weights), [0.6, 0.2, 0.2], k=2000)
    assert chi_square(biased, weights).p_value < 1e-6


def test_p_values_of_fair_samples_are_spread_evenly() -> None:
    draws = random.Random(1)
    weights = {i: (i + 1) / 55 for i in range(10)}
    values = [
        chi_square(draws.choices(list(weights), list(weights.values()), k=400), weights).p_value for _ in range(300)
    ]
    for edge in (0.1, 0.5, 0.9):
        assert sum(value < edge for value in values) / 300 == pytest.approx(edge, abs=0.08)


def test_rare_outcomes_are_pooled() -> None:
    weights = {"a": 0.5, "b": 0.45, "c": 0.02, "d": 0.02}
    found = chi_square(["a"] * 50 + ["b"] * 44 + ["c"] * 3 + ["e"] * 3, weights)
    assert found.degrees == 2  # a, b, and the rest
    assert found.statistic == pytest.approx(1 / 45 + 1 / 5)


def test_outcomes_too_rare_for_chi_square_are_not_forgotten() -> None:
    weights = {"a": 0.9, "b": 0.099}
    usual = chi_square(["a"] * 900 + ["b"] * 99 + ["?"], weights)
    assert usual.degrees == 1
    assert usual.p_value > 0.5
    assert chi_square(["a"] * 891 + ["b"] * 97 + ["?"] * 12, weights).p_value < 1e-6


def test_an_outcome_of_probability_0_is_a_difference() -> None:
    assert chi_square(["a"] * 500 + ["b"] * 499 + ["c"], {"a": 0.5, "b": 0.5, "c": 0.0}).p_value == 0


def test_one_certain_outcome() -> None:
    assert chi_square(["a"] * 100, {"a": 1.0}) == ChiSquare(0.0, 0, 1.0)
    assert chi_square(["b"] * 100, {"a": 1.0}).p_value == 0


def test_too_small_a_sample_says_nothing() -> None:
    assert chi_square(["x"] * 4, {"a": 0.5}).p_value > 0.1
