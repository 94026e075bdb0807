"""Sampled texts: α is the mean of Σ min(p, q), and τ agrees with generation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from specchat.engine import EngineError, Sampling
from specchat.engine.tools.evaluate import EvaluateOptions
from specchat.engine.tools.evaluate.evaluation import Evaluation
from specchat.engine.tools.evaluate.figures import Figures
from specchat.engine.tools.evaluate.rounds import Course, Way, expected_rounds
from tests.engine.tools.evaluate.generated import GAMMA, Generated
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    folder = tmp_path_factory.mktemp("home")
    target = write_tiny_model(folder / "target", eos_token_id=3)
    generated = Generated(target, write_tiny_model(folder / "draft", eos_token_id=3, num_hidden_layers=1), folder)
    generated.generate(["model"], [("the fox", Sampling(temperature=1.0, seed=seed)) for seed in range(12)], 80)
    return generated


@pytest.fixture(scope="module")
def found(sampled: Generated) -> Evaluation:
    return sampled.evaluate(drafters=("model", "ngram", "random"), temperature=1.0)


@pytest.mark.slow
def test_alpha_and_tau_agree_with_generation(sampled: Generated, found: Evaluation) -> None:
    (model,) = (each for each in found.figures() if each.drafter == "model" and not each.category)
    tested = sum(each.tested for each in sampled.rounds["model"])
    alpha = sum(sum(each.beta) for each in sampled.rounds["model"]) / tested
    tau = sum(len(each.emitted) for each in sampled.rounds["model"]) / len(sampled.rounds["model"])
    # Both are means over texts: they differ by chance.
    assert model.alpha == pytest.approx(alpha, abs=0.06)
    assert model.tau == pytest.approx(tau, rel=0.12)
    assert model.tau_interval.low <= model.tau <= model.tau_interval.high


@pytest.mark.slow
def test_alpha_of_a_model_is_the_overlap_of_both_networks(sampled: Generated, found: Evaluation) -> None:
    from transformers import AutoModelForCausalLM

    networks = [AutoModelForCausalLM.from_pretrained(folder) for folder in (sampled.target, sampled.draft)]
    for text, course in zip(found.texts, found.courses[Way("model", GAMMA)], strict=True):
        ids = torch.tensor([[*text.prompt, *text.reply]])
        with torch.inference_mode():
            p, q = (network(ids).logits[0, len(text.prompt) - 1 : -1].softmax(-1) for network in networks)
        assert course.accepted[0] == pytest.approx(torch.minimum(p, q).sum().item(), rel=1e-3)


@pytest.mark.slow
def test_certain_drafts_are_accepted_with_chance_p(found: Evaluation) -> None:
    courses = found.courses[Way("ngram", GAMMA)]
    assert all(0 <= course.accepted[0] <= course.tested[0] <= course.emitted for course in courses)
    assert 0 < sum(course.accepted[0] for course in courses) < sum(course.tested[0] for course in courses)
    assert json.loads(found.json())["temperature"] == 1.0
    assert "at temperature 1 on 12 texts" in found.text()


def test_rounds_are_counted_by_their_chances() -> None:
    assert expected_rounds([1.0] * 8, 3) == 2.0
    assert expected_rounds([0.0] * 8, 3) == 8.0
    assert expected_rounds([0.5], 3) == 1.0
    alpha, gamma = 0.7, 4
    tau = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert 20_000 / expected_rounds([alpha] * 20_000, gamma) == pytest.approx(tau, rel=1e-3)


def test_a_temperature_that_is_none_is_refused() -> None:
    with pytest.raises(EngineError, match="temperature is -1: it must be 0"):
        EvaluateOptions(Path(), "x", (Path("y"),), temperature=-1)


def test_rounding_makes_no_acceptance_rate_of_more_than_one() -> None:
    course = Course(
        "sure", rounds=1, emitted=4, tested=Counter({0: 3}), accepted={0: 3.0000003}, lengths=Counter({3: 1})
    )
    figures = Figures.of("model", 3, "", [course])
    assert (figures.alpha, figures.predicted_speedup) == (1.0, 4.0)
