"""The two checks on a tiny model: replies that are right pass, replies that are not do not."""

import random
from dataclasses import replace

import pytest

from specchat.engine import Event, Sampling
from specchat.engine.tools.lossless.checks import (
    TOKENS,
    ChiSquare,
    Context,
    Reference,
    check_greedy,
    check_sampled,
    chi_square,
    choose_context,
    model_reference,
)
from specchat.engine.tools.prompts import Prompt
from specchat.engine.tools.runner import NONE, Variant, run_pass, run_requests
from specchat.engine.tools.runner import make_request as request
from specchat.engine.tools.runner import reply_tokens as reply
from tests.engine.records import make_round
from tests.engine.tiny import EOS, tiny_engine, tiny_model

CONTEXT = tuple(b"a context, a context, a conte")
SAMPLES = 300
SHARPNESS = 25.0


@pytest.fixture(scope="module")
def reference() -> Reference:
    return model_reference(tiny_model(sharpness=SHARPNESS))


@pytest.fixture(scope="module")
def replies() -> list[list[Event]]:
    """Samples from one context, by a draft model that mostly errs."""
    with tiny_engine(tiny_model(sharpness=SHARPNESS), tiny_model(seed=5, sharpness=SHARPNESS), slots=8) as engine:
        variant, prompt = Variant("model", 4), Prompt(ids=CONTEXT)
        requests = [request(variant, prompt, Sampling(temperature=1), TOKENS) for _ in range(SAMPLES)]
        return run_requests(engine.submit, requests, 8)


@pytest.mark.parametrize(("temperature", "passed"), [(1.0, True), (1.3, False)])
def test_samples_of_another_temperature_are_told_apart(
    reference: Reference, replies: list[list[Event]], temperature: float, passed: bool
) -> None:
    found = check_sampled("model", Context("c", CONTEXT, 0.5), replies, reference, {EOS}, temperature, 0.001)
    assert (found.passed, found.samples) == (passed, SAMPLES)
    assert found.result.degrees > 5
    assert found.tested


def test_an_end_of_text_counts_as_itself(reference: Reference) -> None:
    ends = [[make_round(drafted=0)]] * 50
    found = check_sampled("none", Context("c", CONTEXT, 0.5), ends, reference, {99}, 1.0, 0.001)
    assert not found.passed, "token 99 was drawn every time"


def test_greedy_replies_pass_and_tampered_ones_do_not(reference: Reference) -> None:
    with tiny_engine(tiny_model(sharpness=SHARPNESS)) as engine:
        plain = reply(run_pass(engine, NONE, [Prompt(ids=CONTEXT)], 1, Sampling(), 20)[0])
        drafted = reply(run_pass(engine, Variant("ngram", 4), [Prompt(ids=CONTEXT)], 1, Sampling(), 20)[0])
    prompts = [("chat 1", CONTEXT)]
    good = check_greedy("ngram", prompts, [plain], [drafted], reference, 1e-3)
    assert good.passed
    assert (good.tokens, good.divergences) == (20, ())
    tampered = [*plain[:7], (plain[7] + 1) % 256, *plain[8:]]
    bad = check_greedy("ngram", prompts, [plain], [tampered], reference, 1e-3)
    assert not bad.passed
    (divergence,) = bad.divergences
    assert (divergence.position, divergence.plain, divergence.speculative) == (7, plain[7], tampered[7])
    assert divergence.top2_gap > 1e-3
    assert bad.worst_deficit >= divergence.top2_gap
    assert check_greedy("ngram", prompts, [plain], [tampered], reference, 1e6).passed


def test_the_least_decided_place_is_sampled() -> None:
    events: list[Event] = [
        make_round(drafted=2, number=0, beta=1.0),
        make_round(drafted=0, number=1),
        make_round(drafted=2, accepted=0, rejected=True, number=2, beta=0.4),
    ]
    prompt = list(range(7))
    placed = [replace(event, position=at) for event, at in zip(events, (7, 10, 11), strict=True)]  # type: ignore[type-var]
    found = choose_context("chat 1", prompt, placed)
    assert found.label == "chat 1, token 4"
    assert found.tokens == (*prompt, 100, 101, 99, 99)
    assert choose_context("chat 1", prompt, [make_round(drafted=0)]) is None


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
    assert (found.degrees, found.statistic) == (2, pytest.approx(1 / 45 + 1 / 5))  # a, b, and the rest
    assert chi_square(["a"] * 100, {"a": 1.0}) == ChiSquare(0.0, 0, 1.0)


@pytest.mark.parametrize(
    ("sample", "weights", "least", "most"),
    [
        (["a"] * 900 + ["b"] * 99 + ["?"], {"a": 0.9, "b": 0.099}, 0.5, 1),
        (["a"] * 891 + ["b"] * 97 + ["?"] * 12, {"a": 0.9, "b": 0.099}, 0, 1e-6),
        (["a"] * 500 + ["b"] * 499 + ["c"], {"a": 0.5, "b": 0.5, "c": 0.0}, 0, 0),
        (["b"] * 100, {"a": 1.0}, 0, 0),
        (["x"] * 4, {"a": 0.5}, 0.1, 1),
    ],
    ids=["as rare as expected", "too often", "impossible", "never the certain one", "too small a sample"],
)
def test_rare_outcomes_are_tested_too(sample: list[str], weights: dict[str, float], least: float, most: float) -> None:
    assert least <= chi_square(sample, weights).p_value <= most
