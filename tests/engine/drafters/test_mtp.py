"""Multi-token-prediction layers in a target's own files: every logit is that of the definition."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from specchat.engine import EngineConfig, Notice
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import chain
from specchat.engine.drafters.published.mtp import load_mtp
from specchat.engine.models.load import LoadedModel
from specchat.engine.tools.runner import running
from tests.engine.drafters.heads import scored_places
from tests.engine.hybrids import hybrid
from tests.engine.tiny import ask, assert_drafters_agree, ids_of

Tensors = dict[str, Tensor]
HIDDEN, HEADS, KEYS, SIZE, INNER, EXPERTS = 32, 4, 2, 16, 64, 4


def mtp_tensors(*, experts: bool) -> Tensors:
    """Random weights of the published names; experts are stored one by one."""
    generator = torch.Generator().manual_seed(7)
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (HIDDEN, 2 * HIDDEN),
        "layers.0.self_attn.q_proj": (2 * HEADS * SIZE, HIDDEN),
        "layers.0.self_attn.k_proj": (KEYS * SIZE, HIDDEN),
        "layers.0.self_attn.v_proj": (KEYS * SIZE, HIDDEN),
        "layers.0.self_attn.o_proj": (HIDDEN, HEADS * SIZE),
        **{f"layers.0.self_attn.{name}_norm": (SIZE,) for name in "qk"},
        **dict.fromkeys(("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"), (HIDDEN,)),
        **{f"layers.0.{name}_layernorm": (HIDDEN,) for name in ("input", "post_attention")},
    }
    inner = HIDDEN if experts else INNER
    parts = ["", *(f"experts.{i}." for i in range(EXPERTS)), "shared_expert."][slice(1, None) if experts else slice(1)]
    for part in parts:
        shapes |= {f"layers.0.mlp.{part}{name}_proj": (inner, HIDDEN) for name in ("gate", "up")}
        shapes[f"layers.0.mlp.{part}down_proj"] = HIDDEN, inner
    if experts:
        shapes |= {"layers.0.mlp.gate": (EXPERTS, HIDDEN), "layers.0.mlp.shared_expert_gate": (1, HIDDEN)}
    return {f"mtp.{name}.weight": 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_target(kind: str, folder: Path, tensors: Tensors, **more: int) -> LoadedModel:
    """A tiny target whose files contain these tensors too."""
    target = hybrid(kind, **more)
    target.model.config.mtp_num_hidden_layers = 1
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(load_file(file) | tensors, file, {"format": "pt"})
    return target


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + weight)


def layer_alone(tensors: Tensors, target: LoadedModel, folder: Path) -> Any:
    """Transformers' network of one layer: the layer and the norm of these tensors, and the target's vocabulary."""
    config = deepcopy(target.model.config)
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    config.save_pretrained(folder)
    names = {"mtp.layers.": "model.layers.", "mtp.norm.": "model.norm."}
    own = {new + name.removeprefix(old): x for old, new in names.items() for name, x in tensors.items() if old in name}
    network = target.model
    both = {"model.embed_tokens": network.get_input_embeddings(), "lm_head": network.get_output_embeddings()}
    shared = {f"{name}.weight": module.weight.clone() for name, module in both.items()}
    save_file(own | shared, folder / "model.safetensors", {"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


@torch.inference_mode()
def expected_scores(tensors: Tensors, target: LoadedModel, layer: Any, text: list[int], drafted: list[int]) -> Tensor:
    """Logits of what follows drafted tokens: the layer over the whole text, then over its own output."""
    network = target.model
    out = network(input_ids=torch.tensor([text]), output_hidden_states=True, use_cache=False)
    states, tokens = out.hidden_states[-1][0, :-1], torch.tensor([*text[1:], *drafted])
    while True:
        embedded = network.get_input_embeddings()(tokens[: len(states)])
        parts = zip((embedded, states), ("embedding", "hidden"), strict=True)
        both = [norm(part, tensors[f"mtp.pre_fc_norm_{name}.weight"]) for part, name in parts]
        entered = torch.cat(both, -1) @ tensors["mtp.fc.weight"].T
        after = layer.model(inputs_embeds=entered[None], use_cache=False).last_hidden_state[0, -1:]
        if len(states) == len(tokens):
            return layer.lm_head(after[0])
        states = torch.cat([states, after])  # a drafted token is read with what came out before it


@pytest.mark.parametrize("kind", ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"])
@torch.inference_mode()
def test_every_logit_is_that_of_the_definition(kind: str, tmp_path: Path) -> None:
    tensors = mtp_tensors(experts=kind != "qwen3_5_text")
    target, plain = write_target(kind, tmp_path, tensors), hybrid(kind)
    alone = layer_alone(tensors, plain, tmp_path / "alone")
    loaded = load_mtp(tmp_path, target)
    runner = TransformersBackend(target.model, 2, 128, 17, loaded.taps)
    for text, drafted, scores in scored_places(loaded, runner, chain(4), [11, 12, 13, 14]):
        expected = expected_scores(tensors, plain, alone, text, drafted)[loaded.vocabulary]
        torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)


def config_of(folder: Path, tmp_path: Path, quantize: str = "none") -> EngineConfig:
    dtype = "float32" if quantize == "none" else "auto"
    return EngineConfig(str(folder), tmp_path / "models", context=256, dtype=dtype, slots=3, quantize=quantize)


@pytest.mark.parametrize("quantize", ["none", "q8"])
def test_a_target_uses_its_own_layer_and_says_the_same(quantize: str, tmp_path: Path) -> None:
    sizes = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    write_target("qwen3_5_text", tmp_path / "m", mtp_tensors(experts=False), **sizes)
    with running(config_of(tmp_path / "m", tmp_path, quantize)) as (engine, *_):
        assert_drafters_agree(engine, ("head", "combined"), gamma=None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mtp.fc.weight": None}, "lacks the tensor fc.weight"),
        ({"mtp.fc.weight": torch.ones(HIDDEN, 5)}, r"fc.weight of shape \[32, 5\]"),
        (dict.fromkeys(mtp_tensors(experts=False)), "states a multi-token-prediction layer that its files lack"),
    ],
)
def test_an_incomplete_layer_is_left_out(change: dict[str, Tensor | None], sentence: str, tmp_path: Path) -> None:
    tensors = mtp_tensors(experts=False) | change
    write_target("qwen3_5_text", tmp_path / "m", {name: x for name, x in tensors.items() if x is not None})
    with running(config_of(tmp_path / "m", tmp_path)) as (engine, *_):
        assert ids_of(engine.stream(ask("rivers", max_tokens=5)))
        notices = " ".join(event.text for event in engine.drain() if isinstance(event, Notice))
        assert re.search(sentence, notices), notices
