"""Predicted and measured speedup, and that what lies between them multiplies."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from specchat.engine import Baseline, Fate, Metrics, Ready, Round, SpeedupTracker, read_trace
from specchat.engine.stats import speedup as theory

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
    assert gain.predicted == pytest.approx(theory.speedup_of_rounds(1.0, lengths, 0.25))
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


def test_more_than_the_tokens_per_round_is_no_measurement() -> None:
    """A warm-up on a busy machine: its passes took four times as long as the rounds that followed."""
    rounds = [drafting(number, plain_s=0.04 if number >= 20 else 0.0) for number in range(40)]
    gains, _, metrics = made_of(rounds[:20], (0.4,) * 5)
    assert gains.gain(metrics.alpha) is None
    gains, baseline, metrics = made_of(rounds, (0.4,) * 5)
    assert gains.gain(metrics.alpha) is None  # half of the rounds are still compared with the warm-up
    fresh = SpeedupTracker(baseline)
    fresh.add(drafting(41))
    fresh.add(drafting(42))
    assert fresh.gain(1.0).measured == pytest.approx(0.05 * 3 / 0.1)


def test_the_error_shrinks_with_the_rounds_and_is_large_at_first() -> None:
    """Two rounds of which one was held up: 0.05 times, which is no measurement."""
    held_up = [plain(n) for n in (1, 2, 3)] + [drafting(4, draft_s=3.0), drafting(5)]
    gains, _baseline, metrics = made_of(held_up)
    gain = gains.gain(metrics.alpha)
    assert gain.error > 0.15
    uneven = [plain(n) if n % 3 == 0 else drafting(n) for n in range(1, 200)]
    few, _, metrics_of_few = made_of(uneven[:20])
    many, _, metrics_of_many = made_of(uneven)
    before, after = few.gain(metrics_of_few.alpha), many.gain(metrics_of_many.alpha)
    assert after.error < before.error < 0.15


def test_only_wholly_plain_batches_are_a_baseline() -> None:
    baseline = Baseline()
    drafted = next(r for r in rounds_of("chat") if r.drafted)
    # "b" has ended in the same call of the kernels, one round before: there is no other record of this round.
    baseline.add(plain(1, request_id="a", rows=2, verify_s=1.0))
    for number in range(2, 10):
        names = ("a", "c") if number % 2 else ("c", "a")
        both = {
            names[0]: plain(number, request_id=names[0], rows=2, verify_s=float(number)),
            names[1]: replace(drafted, request_id=names[1], rows=2, number=number, verify_s=float(number)),
        }
        baseline.add(both["c"])
        baseline.add(both["a"])
    assert baseline.round_s(2, 100) is None
    for number in range(10, 14):
        for name in ("a", "c"):
            baseline.add(plain(number, request_id=name, rows=2))
    assert baseline.round_s(2, 100) == pytest.approx(0.05)
    assert baseline.round_s(1, 100) is None


def test_passes_of_another_context_are_no_baseline() -> None:
    """A chat of 7,000 tokens after short ones: their passes took a fifth of the time."""
    short = [plain(n) for n in range(1, 20)]
    long = [drafting(n, position=7000 + n, verify_s=0.2) for n in range(20, 60)]
    _, baseline, _ = made_of([*short, *long], (0.04,) * 5)
    gains = SpeedupTracker(baseline)
    for record in long:
        gains.add(record)
    assert gains.gain(1.0) is None
    assert baseline.pass_s(1, 7000) is None
    assert baseline.pass_s(1, 100) == pytest.approx(0.04)
    timed = [replace(r, plain_s=0.18) if r.number % 10 == 0 else r for r in long]
    gains = SpeedupTracker(baseline)
    for record in timed:
        baseline.add(record)
        gains.add(record)
    assert gains.gain(1.0).measured == pytest.approx(3 * (0.18 + 0.01) / (0.2 + 0.01))
    assert gains.rounds == len(long)  # rounds before the first three passes waited for them
    assert baseline.pass_s(1, 7500) == pytest.approx(0.18)
    assert baseline.pass_s(1, 3500) is None
