"""The formulas against the paper's own tables, and predicted speedup against measured speedup."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import Baseline, Fate, Metrics, Ready, Round, SpeedupTracker, read_trace
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


TRACES = Path(__file__).parents[3] / "assets" / "traces"


@cache
def rounds_of(name: str) -> list[Round]:
    return [r for r in read_trace(TRACES / f"{name}.jsonl") if isinstance(r, Round)]


def made_of(rounds: list[Round], plain_s: tuple[float, ...] | None = None) -> tuple[SpeedupTracker, Baseline, Metrics]:
    """What the rounds add up to; `plain_s` are times of the warm-up."""
    baseline, metrics = Baseline(), Metrics()
    if plain_s:
        ready = next(r for r in read_trace(TRACES / "chat.jsonl") if isinstance(r, Ready))
        baseline.add(replace(ready, plain_s=plain_s))
    gains = SpeedupTracker(baseline)
    for record in rounds:
        baseline.add(record)
        gains.add(record)
        metrics.add(record)
    return gains, baseline, metrics


def plain(number: int, **changes: object) -> Round:
    first = next(r for r in rounds_of("chat") if not r.drafted)
    times = {"draft_s": 0.0, "verify_s": 0.04, "rest_s": 0.01}
    return replace(first, number=number, **(times | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["chat", "code", "sampled"])
def test_the_factors_multiply_to_what_was_measured(name: str) -> None:
    gains, _baseline, metrics = made_of(rounds_of(name))
    gain = gains.gain(metrics.alpha)
    product = gain.predicted * gain.acceptance * gain.passes * gain.overhead
    assert product == pytest.approx(gain.measured)
    assert gain.c > 0


def test_rounds_as_the_theory_has_them_give_what_it_predicts() -> None:
    """Passes of one cost, nothing else to do, and τ tokens a round: prediction and measurement agree."""
    drafted = [
        plain(n, drafted=(1,), pieces=("a",), p=(1.0,), q=(1.0,), u=(0.5,), beta=(1.0,), accepted=1) for n in (1, 2, 3)
    ]
    flat = [replace(r, rest_s=0.0, draft_s=0.01 if r.drafted else 0.0) for r in [*map(plain, (4, 5, 6)), *drafted]]
    gains, _baseline, metrics = made_of(flat)
    gain = gains.gain(metrics.alpha)
    assert gain.c == pytest.approx(0.25)
    lengths = {0: 3, 1: 3}  # the first plain rounds wait for the third
    assert gain.predicted == pytest.approx(speedup_of_rounds(1.0, lengths, 0.25))
    assert gain.measured == pytest.approx(gain.predicted)


def test_a_machine_that_slows_down_is_no_speedup() -> None:
    """Every round takes twice as long from some time on: rounds without drafts are still worth one another."""

    def slowed(record: Round) -> Round:
        return replace(record, verify_s=2 * record.verify_s, rest_s=2 * record.rest_s, draft_s=2 * record.draft_s)

    rounds = rounds_of("chat")
    steady = made_of(rounds)
    drifting = made_of([r if i < len(rounds) // 2 else slowed(r) for i, r in enumerate(rounds)])
    before, after = (gains.gain(metrics.alpha) for gains, _, metrics in (steady, drifting))
    assert after.measured == pytest.approx(before.measured, rel=0.15)


def test_nothing_is_measured_before_plain_rounds_were() -> None:
    gains, baseline, metrics = made_of([r for r in rounds_of("code") if r.drafted])
    assert gains.gain(metrics.alpha) is None
    assert baseline.pass_s(1, 100) is None


def drafting(number: int, **changes: object) -> Round:
    """A round that kept both of its drafts in twice the time of a plain one."""
    kept = {"drafted": (1, 2), "pieces": ("a", "b"), "accepted": 2}
    judged = dict.fromkeys(("p", "q", "u", "beta"), (1.0, 1.0))
    return replace(plain(number, **kept, **judged, last_fate=Fate.BONUS), **{"verify_s": 0.09, **changes})  # type: ignore[arg-type]


def test_the_warm_up_is_a_baseline_where_every_round_drafts() -> None:
    gains, _, metrics = made_of([drafting(number) for number in range(30)], (0.05, 0.04, 0.039, 0.041, 0.04))
    gain = gains.gain(metrics.alpha)
    assert gain.measured == pytest.approx(0.05 * 3 / 0.1)
    assert gain.error < 0.05
