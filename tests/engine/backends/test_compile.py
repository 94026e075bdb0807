"""Compiled layers give what the modelling code gives, are compiled once for all layers, and can be done without."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from specchat.engine import EngineConfig
from specchat.engine.backends.captured_passes import CapturedPasses
from specchat.engine.backends.compile import compile_layers
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.graphs import GraphPool
from specchat.engine.worker.assembly import put_together
from specchat.engine.worker.notices import performance_warnings
from specchat.engine.worker.warm_up import warm_up
from tests.engine.pretend_cuda import pretended_gpu, to_gpu
from tests.engine.tiny import tiny_model


def prompted(device: str = "cpu") -> TransformersBackend:
    """Four slots with 20 random tokens each, over three layers."""
    made = TransformersBackend(tiny_model(layers=3).model.to(device), slots=4, context=400, overhang=17, taps=(0, 2))
    tokens = torch.randint(0, 250, (4, 20), generator=torch.Generator().manual_seed(1))
    made.prefill(tokens.to(device), range(4), [0] * 4)
    return made


@pytest.mark.filterwarnings("ignore:.*(torch.jit|distutils):DeprecationWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@torch.inference_mode()
@pytest.mark.slow
def test_a_compiled_layer_stands_for_all_layers_rows_and_lengths(device: str) -> None:
    model, other = prompted(device), prompted(device)
    assert compile_layers(model.model)
    compiled = CapturedPasses(
        model.cache, model._step, GraphPool(model.device, capture=device == "cuda"), compiled=True
    )
    plain = CapturedPasses(other.cache, other._step, GraphPool(other.device, capture=False))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    generator = torch.Generator().manual_seed(2)
    trees = [tree_of(2)] * 3
    for rows, length, start in ((1, 1, 20), (1, 5, 20), (4, 1, 25), (4, 4, 26), (1, 9, 300), (3, 12, 30)):
        fed = torch.randint(0, 250, (rows, length), generator=generator).to(device)
        tree_mask = TreeMask.of(trees, length, torch.device(device)) if rows == 3 else None
        ours = compiled.forward(fed, range(rows), [start] * rows, tree_mask)
        theirs = plain.forward(fed, range(rows), [start] * rows, tree_mask)
        for mine, yours in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, yours, rtol=1e-4, atol=1e-4)
    assert compiled.not_compiled is None
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 4, (
        "one or several rows, times one or several tokens"
    )


@torch.inference_mode()
def test_where_the_compiler_fails_the_modelling_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC.")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    model, other = prompted(), prompted()
    assert compile_layers(model.model)
    steps = CapturedPasses(model.cache, model._step, GraphPool(model.device, capture=False), compiled=True)
    fed = torch.tensor([[1, 2, 3]])
    ours, theirs = steps.forward(fed, [0], [20])[0], other.forward(fed, [0], [20])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert steps.not_compiled == "Failed to find C compiler"


def test_layers_whose_part_of_the_cache_is_not_plain_are_left_alone() -> None:
    network = tiny_model(layers=3).model
    network.model.layers[2].self_attn.layer_idx = 1  # two layers that share their keys
    assert not compile_layers(network)
    assert "forward" not in vars(network.model.layers[0])


def test_nothing_keeps_the_layers_alive() -> None:
    network = tiny_model().model
    assert compile_layers(network)
    layer = weakref.ref(network.model.layers[0])
    gc.collect()
    gc.disable()
    try:
        del network
        assert layer() is None
    finally:
        gc.enable()


def test_the_user_is_told_what_keeps_a_gpu_from_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    model = tiny_model()
    to_gpu(model.model)
    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(GraphPool, "_captured", refuse)
        made = put_together(EngineConfig("tiny", Path(), slots=2, context=256), model)
        warm_up(made)
        assert performance_warnings(made) == [
            "tiny: its passes cannot all be captured as CUDA graphs (operation not permitted when stream is "
            "capturing): it runs slower than it could"
        ]
