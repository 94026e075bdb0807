"""Attention by blocks gives what attention by a mask gives: chains, trees, ragged batches, sliding windows."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM, PreTrainedModel

from specchat.engine.backends import flex
from specchat.engine.backends.captured_passes import CapturedPasses
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import chain, tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from specchat.engine.device.graphs import GraphPool
from tests.engine.tiny import tiny_model

SIZES = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 12,
}


def full() -> PreTrainedModel:
    return tiny_model(hidden=64).model


def windowed() -> PreTrainedModel:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SIZES)).eval().requires_grad_(False)


def mixed() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"])
    return Gemma3ForCausalLM(config).eval().requires_grad_(False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", [full, windowed, mixed], ids=["full", "window", "mixed"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@torch.inference_mode()
def test_blocks_give_what_a_mask_gives(network: object, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "is_available", lambda *_: True)
    place, generator = torch.device(device), torch.Generator().manual_seed(1)
    runner = TransformersBackend(network().to(place), slots=4, context=400, overhang=17)  # type: ignore[operator]
    runner.captured = CapturedPasses(runner.cache, runner._step, GraphPool(place, capture=False))
    tokens = torch.randint(0, 250, (4, 130), generator=generator).to(place)
    runner.prefill(tokens, range(4), [0] * 4)
    tree = tree_of(3)
    for slots, starts, drafts in (
        ([0], [130], [chain(0)]),
        ([0, 1, 2], [130, 40, 127], [chain(4)] * 3),
        ([0, 2, 3], [129, 3, 90], [tree, tree.first(6), chain(5)]),
        ([1, 3], [30, 128], [chain(2)] * 2),
        ([2], [126], [tree]),
    ):
        width = max(map(len, drafts)) + 1
        fed = torch.randint(0, 250, (len(slots), width), generator=generator).to(place)
        tree_mask = TreeMask.of(drafts, runner.width(width), place) if tree in drafts else None
        runner.flex = False
        expected = runner._forward(fed, slots, starts, tree_mask)[0].clone()
        runner.flex = True
        found = runner._forward(fed, slots, starts, tree_mask)[0]
        assert runner.flex, runner.performance_warnings
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_where_it_fails_a_mask_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(flex, "is_available", lambda *_: True)
    runner = TransformersBackend(full(), slots=1, context=300, overhang=17)
    runner.captured = runner.graph_runner = CapturedPasses(
        runner.cache, runner._step, GraphPool(runner.device, capture=False)
    )
    runner.flex = False
    expected = runner.forward(torch.tensor([[1, 2, 3]]), [0], [0]).clone()
    monkeypatch.setattr("specchat.engine.backends.attention.attend", fail)
    runner.flex = True
    torch.testing.assert_close(runner.forward(torch.tensor([[1, 2, 3]]), [0], [0]), expected)
    assert runner.performance_warnings == ["its attention cannot be compiled (no such kernel)"]
