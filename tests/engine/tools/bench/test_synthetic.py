"""Synthetic pairs: they agree as often as they are told to, speak the same language, and do their whole work."""

from pathlib import Path

import pytest
import torch

from specchat.engine import Engine, EngineConfig, EngineError, Sampling
from specchat.engine.tools.bench.suite import measure
from specchat.engine.tools.bench.synthetic import Language, synthetic, synthetic_prompts
from specchat.engine.tools.runner import Variant, running

MODEL = Variant("model", 3)


@pytest.fixture(scope="module")
def engine() -> Engine:
    with running(EngineConfig("tiny", Path(), slots=4, context=256), synthetic(0.7, "tiny/tiny")) as (engine, *_):
        yield engine


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.75, 1.0])
def test_the_draft_is_right_at_a_fraction_alpha(alpha: float) -> None:
    language = Language(128_256, alpha)
    tokens, positions = torch.randint(128_256, (200, 500)), torch.arange(500).expand(200, 500)
    right = (language.guess(tokens, positions) == language.next(tokens, positions)).double()
    assert right.mean().item() == pytest.approx(alpha, abs=0.006)
    # Being right is independent from one position to the next.
    if 0 < alpha < 1:
        both = (right[:, 1:] * right[:, :-1]).mean().item()
        assert both == pytest.approx(alpha**2, abs=0.01)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_measured_acceptance_is_alpha(engine: Engine, temperature: float) -> None:
    prompts = synthetic_prompts("tiny/tiny").prompts[:8]
    counted = measure(engine, MODEL, prompts, 4, Sampling(temperature=temperature, seed=1), 60)
    assert counted.figures.tested > 150
    assert counted.figures.acceptance == pytest.approx(0.7, abs=0.08)
    assert counted.figures.alpha == pytest.approx(counted.figures.acceptance, abs=0.01)


def test_too_little_memory_is_said_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.engine.device.device.available_memory", lambda _device: 1 << 30)
    starting = running(EngineConfig("x", Path(), dtype="float32"), synthetic(0.5, "llama-3.2-3b"))
    with pytest.raises(EngineError, match=r"a synthetic llama-3\.2-3b needs 12\.9 GB"), starting:
        pass
