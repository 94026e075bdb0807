"""Whole verifications: an engine that is right passes, engines that are wrong in known ways do not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from specchat.engine import EngineError
from specchat.engine.backends import tensor_acceptance
from specchat.engine.decoding.acceptance import Drafted, Verdict, accept
from specchat.engine.sampling.sampler import SamplingRows
from specchat.engine.tools.lossless.command import LosslessOptions, run
from specchat.engine.tools.lossless.report import VerificationReport

QUICK = {"models": Path(), "command": "verify", "prompts": ("chat",), "limit": 2, "max_tokens": 16, "contexts": 1}
DRAFTERS = ("model", "suffix")


@pytest.fixture(scope="module")
def pair(tiny_model: Callable[..., Path]) -> dict[str, object]:
    target = tiny_model()
    draft = tiny_model(seed=1, num_hidden_layers=1)
    return {"target": str(target), "draft": str(draft), "models": target.parent / "store"}


def verified(pair: dict[str, object], **values: object) -> VerificationReport:
    return run(
        LosslessOptions(**{**QUICK, "samples": 200, "dtype": "float32", "temperature": 0.5, **pair, **values}),
        lambda _line: None,
    )  # type: ignore[arg-type]


def test_a_correct_engine_passes(pair: dict[str, object]) -> None:
    found = verified(pair, samples=30, max_tokens=8, drafters=DRAFTERS)
    assert found.passed
    drafters = [check.drafter for check in found.greedy]
    assert drafters == ["none", *DRAFTERS]
    assert all(not check.divergences for check in found.greedy)
    assert {check.drafter for check in found.sampled} == set(drafters[1:])
    text = found.text()
    assert "PASSED" in text
    assert "2 of 2" in text
    assert "What it cannot show" in text
    whole = json.loads(found.json())
    assert whole["passed"] is True
    assert all(check["passed"] for check in (*whole["greedy"], *whole["sampled"]))
    assert whole["sampled"][0]["result"]["p_value"] >= 0.0005


def test_what_is_finished_is_kept_when_it_is_stopped(pair: dict[str, object]) -> None:
    """ctrl+c at the second drafter's samples: the greedy checks and the first drafter's samples are reported."""
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("sampling, suffix"):
            raise KeyboardInterrupt

    options = {**QUICK, "samples": 20, "max_tokens": 8, "dtype": "float32", "drafters": DRAFTERS, **pair}
    report = run(LosslessOptions(**options), say)  # type: ignore[arg-type]
    assert report.stopped
    assert len(report.greedy) == 1 + len(DRAFTERS)
    assert [check.drafter for check in report.sampled] == ["model"]
    assert "STOPPED" in report.text()
    with pytest.raises(KeyboardInterrupt):
        run(LosslessOptions(**options), lambda line: say(line.replace("greedy, none", "sampling, suffix")))  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit", "contexts", "places"), [(1, None, 1), (2, None, 2), (5, None, 2), (1, 3, 3)])
def test_the_limit_bounds_the_places_that_are_sampled(limit: int, contexts: int | None, places: int) -> None:
    options = {**QUICK, "limit": limit, "contexts": contexts}
    assert LosslessOptions(**options).places == places  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_skewed_acceptance_is_found_by_sampling(pair: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    def lax(logits: Tensor, drafted: Drafted, settings: SamplingRows, u: Tensor, u_own: Tensor) -> Verdict:
        return accept(logits, drafted, settings, u * 0.1, u_own)

    monkeypatch.setattr(tensor_acceptance, "accept", lax)
    found = verified(pair, limit=4, samples=300, contexts=2, drafters=("model",))
    assert all(check.passed for check in found.greedy)
    assert not all(check.passed for check in found.sampled)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"gamma": "0"}, "nothing drafts here"), ({"drafters": ("none",)}, "nothing drafts here"),
        ({"drafters": ("magic",)}, "'magic' is not there"), ({"slots": 1, "context": 8}, "the context holds 8"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(pair: dict[str, object], values: dict[str, object], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        verified(pair, **values)
