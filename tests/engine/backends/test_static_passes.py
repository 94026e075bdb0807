"""Passes of fixed shape, as on a GPU: padded, in place, compiled; they give what passes as they come give."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    MistralConfig,
    MistralForCausalLM,
)

from specchat.engine.backends import attention
from specchat.engine.backends.captured_passes import compile_layers
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import chain, tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from tests.engine.scored import make_static
from tests.engine.tiny import tiny_model
from tests.failing import fails

CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

SIZES = {
    "vocab_size": 260, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 12,
}  # fmt: skip
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
SHARED = {
    "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
    "global_head_dim": 32, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 260,
}  # fmt: skip
NETWORKS = {
    "full": lambda: tiny_model(hidden=64).model,
    "window": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
    "mixed": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **MIXED)),
    "shared keys": lambda: Gemma4ForCausalLM(Gemma4TextConfig(**SIZES | SHARED)),
    "seven heads": lambda: MistralForCausalLM(MistralConfig(**SIZES | {"num_attention_heads": 14})),
    "eight heads": lambda: MistralForCausalLM(MistralConfig(**SIZES | {"num_attention_heads": 16})),
}


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 250, shape, generator=torch.Generator().manual_seed(seed))


def prompted(network: Any, device: str = "cpu", length: int = 30, **options: Any) -> TransformersBackend:
    """Five slots with random tokens."""
    made = TransformersBackend(network.eval().requires_grad_(False).to(device), 5, 400, 17, **options)
    made.prefill(drawn(5, length).to(device), range(5), [0] * 5)
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slots", [[2], [1, 2], [0, 3, 1]], ids=["one row", "neighbours", "scattered"])
@pytest.mark.parametrize("network", NETWORKS)
@torch.inference_mode()
def test_prompts_need_no_mask(network: str, slots: list[int], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, found, asked = torch.bfloat16 if device == "cuda" else torch.float32, [], []
    has_flash = attention.has_flash_attention if device == "cuda" else lambda *_: True
    for maskless in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(attention, "has_flash_attention", lambda *given: asked.append(0) or has_flash(*given))
            if not maskless:
                patch.setattr(attention, "has_flash_attention", lambda *_: False)
            torch.manual_seed(0)
            backend = TransformersBackend(
                NETWORKS[network]().eval().requires_grad_(False).to(device, dtype), 5, 400, 17
            )
            for start, length in ((0, 7), (7, 50), (57, 130)):
                backend.prefill(drawn(len(slots), length, seed=start).to(device), slots, [start] * len(slots))
            found.append(backend.forward(drawn(len(slots), 1).to(device), slots, [187] * len(slots)).float().cpu())
    torch.testing.assert_close(found[0], found[1], atol=0.05 if device == "cuda" else 1e-4, rtol=0.02)
    assert asked, "the first tokens of any network see all before them"


@pytest.mark.parametrize(
    ("slots", "starts", "length"),
    [
        ([0], [30], 1), ([3], [25], 4), ([1, 4], [30, 12], 5), ([0, 1, 2, 3, 4], [30, 29, 28, 27, 30], 7),
        ([2], [399], 17),
    ],
    ids=["one row", "not the first", "scattered and ragged", "all rows", "the end of the context"],
)  # fmt: skip
@pytest.mark.parametrize("device", DEVICES)
def test_padded_passes_touch_nobody_elses_cache(slots: list[int], starts: list[int], length: int, device: str) -> None:
    tokens = drawn(len(slots), length, seed=2).to(device)
    exact, padded = (prompted(tiny_model().model, device) for _ in range(2))
    exact.captured = None
    make_static(padded, capture=device == "cuda")
    for _ in range(2):
        expected = exact.forward(tokens, slots, starts)
        torch.testing.assert_close(padded.forward(tokens, slots, starts), expected, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(padded.cache.keys, exact.cache.keys, strict=True):
        for slot, start in zip(slots, starts, strict=True):
            torch.testing.assert_close(ours[slot, :, : start + length], theirs[slot, :, : start + length])
        for slot in set(range(5)) - set(slots):
            assert torch.equal(ours[slot, :, :-1], theirs[slot, :, :-1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("device", DEVICES)
@torch.inference_mode()
def test_attention_in_place_gives_what_that_to_copies_gives(network: Any, device: str) -> None:
    torch.manual_seed(0)
    runner, place = prompted(network(), device, length=130), torch.device(device)
    make_static(runner)
    tree = tree_of(3)
    for slots, starts, drafts in (
        ([0], [130], [chain(0)]),
        ([0, 1, 2], [130, 40, 127], [chain(4)] * 3),
        ([0, 2, 3], [129, 3, 90], [tree, tree.first(6), chain(5)]),
        ([1, 3], [30, 128], [chain(2)] * 2),
        ([2], [126], [tree]),
        ([0, 4], [60, 128], [chain(16)] * 2),
    ):
        width = max(map(len, drafts)) + 1
        fed = drawn(len(slots), width, seed=3).to(place)
        tree_mask = TreeMask.of(drafts, runner.width(width), place) if tree in drafts else None
        runner.in_place = False
        expected = runner._forward(fed, slots, starts, tree_mask)[0].clone()
        runner.in_place = True
        found = runner._forward(fed, slots, starts, tree_mask)[0]
        assert runner.in_place, runner.performance_warnings
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("broken", "name", "returned", "reason"),
    [
        (attention, "attend", None, "no such kernel"),
        (attention.AttentionMasks, "rows", {}, "the model's layers do not pass on where the rows are"),
    ],
)
def test_a_failing_kernel(broken: Any, name: str, returned: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(*_: object, **__: object) -> Any:
        if returned is None:
            raise RuntimeError(reason)
        return returned

    runner = prompted(tiny_model(hidden=64).model)
    make_static(runner)
    runner.in_place = False
    expected = runner.forward(torch.tensor([[1, 2, 3]]), [0], [0]).clone()
    monkeypatch.setattr(broken, name, instead)
    runner.in_place = True
    torch.testing.assert_close(runner.forward(torch.tensor([[1, 2, 3]]), [0], [0]), expected)
    assert runner.performance_warnings == [f"its attention kernel cannot be used ({reason})"]


@pytest.mark.parametrize(
    ("compiles", "reason"),
    [
        (lambda _: fails(RuntimeError("Failed to find C compiler.\nSet CC.")), "Failed to find C compiler"),
        (lambda layer: lambda *given, **named: layer(*given, **named) + 1, "the results of compiled layers are wrong"),
    ],
    ids=["it fails", "its code is wrong"],
)
@torch.inference_mode()
def test_without_a_compiler_modelling_code_runs(compiles: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda layer, **_: compiles(layer))
    model, other = (prompted(tiny_model(layers=3).model) for _ in range(2))
    assert compile_layers(model.model)
    steps = make_static(model, compiled=True)
    fed = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(steps.forward(fed, [0], [20])[0], other.forward(fed, [0], [20]), rtol=1e-4, atol=1e-4)
    assert steps.not_compiled == reason


@torch.inference_mode()
@pytest.mark.parametrize("length", [1, 2, 6, 13, 17, 20, 33])
def test_logits_and_cache_are_those_of_the_tokens_alone(length: int) -> None:
    network, reference = tiny_model().model, tiny_model().model
    tokens = torch.randint(0, 250, (2, 40), generator=torch.Generator().manual_seed(1))
    model = TransformersBackend(network, slots=2, context=40 - 1, overhang=17)
    model.prefill(tokens[:, :3], range(2), [0, 0])
    logits = model.forward(tokens[:, 3 : 3 + length], range(2), [3, 3])
    expected = reference(tokens).logits[:, 3 : 3 + length]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    # Padding is masked, and then overwritten: tokens that follow are scored as if it had not been there.
    more = model.forward(tokens[:, 3 + length : 5 + length], range(2), [3 + length] * 2)
    expected = reference(tokens).logits[:, 3 + length : 5 + length]
    torch.testing.assert_close(more, expected, rtol=1e-4, atol=1e-4)


def test_a_prompt_may_end_where_the_cache_ends() -> None:
    network, reference = tiny_model().model, tiny_model().model
    tokens = torch.randint(0, 250, (1, 60), generator=torch.Generator().manual_seed(1))
    model = TransformersBackend(
        network, slots=1, context=60, overhang=1
    )  # 62 columns, and a chunk of 40 would be padded to 64
    model.prefill(tokens[:, :20], [0], [0])
    model.prefill(tokens[:, 20:59], [0], [20])
    torch.testing.assert_close(
        model.forward(tokens[:, 59:], [0], [59]), reference(tokens).logits[:, 59:], rtol=1e-4, atol=1e-4
    )
