"""Exact mode: passes of one shape, cut by position alone, that give the same bits whatever rides along."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specchat.engine import EngineConfig
from specchat.engine.backends.batch_invariant import check_batch_invariance
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.progress import ignore_progress
from specchat.engine.worker.assembly import assemble, assemble_loaded
from specchat.engine.worker.notices import INEXACT
from tests.engine.tiny import tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_check_finds_equal_bits(dtype: torch.dtype) -> None:
    loaded = tiny_model(hidden=128)
    loaded.model.to(dtype)
    found = check_batch_invariance(TransformersBackend(loaded.model, 1, 400, 17, exact=True))
    assert found.equal
    assert found.cost > 0


def test_a_device_that_cannot_give_it_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = TransformersBackend.forward

    def by_place(*given: Any) -> torch.Tensor:
        logits = forward(*given)
        logits[:, 1:] += 1e-3
        return logits

    monkeypatch.setattr(TransformersBackend, "forward", by_place)
    made = assemble_loaded(EngineConfig("tiny", Path(), slots=1, context=300, exact=True), tiny_model(), None)
    assert not made.exact.equal
    assert INEXACT in made.notices


def test_equal_models_are_loaded_once(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    config = EngineConfig(str(tiny_model()), tmp_path, dtype="float32", slots=1)
    first, second = assemble(config, ignore_progress), assemble(config, ignore_progress)
    assert first.model is second.model
    assert first.target.cache is not second.target.cache
