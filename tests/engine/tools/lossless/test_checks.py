"""The two checks on a tiny model: replies that are right pass, replies that are not do not."""

from __future__ import annotations

import pytest
import torch

from specchat.engine import Sampling
from specchat.engine.events import Event
from specchat.engine.tools.lossless.checks import TOKENS, Context, check_greedy, check_sampled, choose_context
from specchat.engine.tools.lossless.reference import Reference
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
    return Reference(tiny_model(sharpness=SHARPNESS))


@pytest.fixture(scope="module")
def replies() -> dict[str, list[list[Event]]]:
    """Samples from one context: by drafters that copy from the text, and by a draft model that mostly errs."""
    with tiny_engine(tiny_model(sharpness=SHARPNESS), tiny_model(seed=5, sharpness=SHARPNESS), slots=8) as engine:
        return {
            name: run_requests(
                engine,
                [
                    request(Variant(name, 4), Prompt(ids=CONTEXT), Sampling(temperature=1, seed=seed), TOKENS)
                    for seed in range(SAMPLES)
                ],
                8,
            )
            for name in ("suffix", "ngram", "model", "none")
        }


@pytest.mark.parametrize("drafter", ["suffix", "ngram", "model", "none"])
def test_sampled_replies_pass(reference: Reference, replies: dict[str, list[list[Event]]], drafter: str) -> None:
    found = check_sampled(drafter, Context("c", CONTEXT, 0.5), replies[drafter], reference, {EOS}, 1.0, 0.001)
    assert found.passed
    assert found.samples == SAMPLES
    assert found.result.degrees > 5
    assert (found.tested > 0) == (drafter != "none")


def test_samples_at_another_temperature_are_told_apart(
    reference: Reference, replies: dict[str, list[list[Event]]]
) -> None:
    found = check_sampled("model", Context("c", CONTEXT, 0.5), replies["model"], reference, {EOS}, 1.3, 0.001)
    assert not found.passed


def test_an_end_of_text_counts_as_itself(reference: Reference) -> None:
    ends = [[make_round(drafted=0)]] * 50
    found = check_sampled("none", Context("c", CONTEXT, 0.5), ends, reference, {99}, 1.0, 0.001)
    assert not found.passed, "token 99 was drawn every time"


def test_distributions_are_the_softmax_of_the_last_logits(reference: Reference) -> None:
    (p,) = reference.distributions([CONTEXT], 2.0)
    scores = reference.scores(CONTEXT, [1, 2])
    assert torch.allclose(p, (scores[0].double() / 2.0).softmax(-1))
    assert p.sum().item() == pytest.approx(1)


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
    from dataclasses import replace

    placed = [replace(event, position=at) for event, at in zip(events, (7, 10, 11), strict=True)]  # type: ignore[type-var]
    found = choose_context("chat 1", prompt, placed)
    assert found is not None
    assert found.label == "chat 1, token 4"
    assert found.tokens == (*prompt, 100, 101, 99, 99)
    assert choose_context("chat 1", prompt, [make_round(drafted=0)]) is None
