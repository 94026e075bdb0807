"""Draft heads of a few kilobytes as their authors publish them, and their forward passes in plain words.

The passes are written after the published definitions (EAGLE's cnets1.py and cnets.py, SpecForge's llama3_eagle.py,
speculators' eagle3, Medusa's medusa_model.py): no cache, one sequence, everything computed again for every token.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from specchat.engine.models.load import LoadedModel
from tests.engine.tiny import SIZES, VOCABULARY, in_memory, tiny_model

HIDDEN, HEADS, KEY_HEADS, INTERMEDIATE = 32, 4, 2, 48
KNOWN = 100
"""Tokens of a draft vocabulary."""
LAYERS = 8

Tensors = dict[str, Tensor]
Pass = Callable[[Tensors, Mapping[str, Any], LoadedModel, Sequence[int], Sequence[int]], Tensor]
"""Scores [V'] after a text and drafted tokens, from tensors, config.json, target, text, drafted tokens."""


def llama() -> LoadedModel:
    """A target of the Llama family."""
    return tiny_model(layers=LAYERS, sharpness=4.0)


def qwen3() -> LoadedModel:
    """A target of the Qwen3 family."""
    torch.manual_seed(3)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": LAYERS, "head_dim": 16}
    config = Qwen3Config(**SIZES | sizes, tie_word_embeddings=False, initializer_range=0.1)
    return in_memory(Qwen3ForCausalLM(config).eval().requires_grad_(False), "tiny qwen3")


TARGETS = {"llama": llama, "qwen3": qwen3}


def write(folder: Path, config: Mapping[str, Any], tensors: Tensors, file: str = "model.safetensors") -> Path:
    """A head's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


def eagle_1() -> tuple[dict[str, Any], Tensors]:
    """EAGLE-1 and EAGLE-2 as the authors write them."""
    torch.manual_seed(11)
    tensors = {"fc.weight": matrix(HIDDEN, 2 * HIDDEN), "fc.bias": matrix(HIDDEN)}
    tensors |= _layer("layers.0.", HIDDEN, HIDDEN // HEADS)
    config = _sizes() | {"architectures": ["LlamaForCausalLM"], "bias": True}
    return config, tensors


def eagle_3() -> tuple[dict[str, Any], Tensors]:
    """EAGLE-3 as the authors and SpecForge write it."""
    torch.manual_seed(12)
    tensors = {"fc.weight": matrix(HIDDEN, 3 * HIDDEN), "norm.weight": norm(HIDDEN)}
    tensors |= {"lm_head.weight": matrix(KNOWN, HIDDEN), **maps(), **_layer("midlayer.", 2 * HIDDEN, 12)}
    tensors |= {f"midlayer.{name}.weight": norm(HIDDEN) for name in ("hidden_norm", "input_layernorm")}
    config = _sizes() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": KNOWN,
        "head_dim": 12,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 6]},
    }
    return config, tensors


def speculators() -> tuple[dict[str, Any], Tensors]:
    """EAGLE-3 as the library speculators writes it, with a layer of Qwen3 and every choice that it knows."""
    torch.manual_seed(13)
    tensors = {"fc.weight": matrix(HIDDEN, 3 * HIDDEN), "norm.weight": norm(HIDDEN)}
    tensors |= {"lm_head.weight": matrix(KNOWN, HIDDEN), **maps(), **_layer("layers.0.", 2 * HIDDEN, 12)}
    tensors |= {f"layers.0.{name}.weight": norm(HIDDEN) for name in ("hidden_norm", "input_layernorm")}
    tensors |= {f"layers.0.self_attn.{name}.weight": norm(12) for name in ("q_norm", "k_norm")}
    tensors |= {f"fc_norm.{i}.weight": norm(HIDDEN) for i in range(3)}
    tensors["embed_tokens.weight"] = matrix(VOCABULARY, HIDDEN)
    layer = _sizes() | {"model_type": "qwen3", "head_dim": 12}
    layer["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    config = {
        "speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"], "transformer_layer_config": layer,
        "draft_vocab_size": KNOWN, "norm_before_residual": True, "fc_norm": True, "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 6],
    }  # fmt: skip
    return config, tensors


def medusa() -> tuple[dict[str, Any], Tensors]:
    """Three Medusa heads of two blocks."""
    torch.manual_seed(14)
    tensors: Tensors = {}
    for head in range(3):
        for block in range(2):
            tensors[f"{head}.{block}.linear.weight"] = matrix(HIDDEN, HIDDEN)
            tensors[f"{head}.{block}.linear.bias"] = matrix(HIDDEN)
        tensors[f"{head}.2.weight"] = matrix(VOCABULARY, HIDDEN)
    return {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "tiny"}, tensors


def scores_of_eagle_1(
    tensors: Tensors, _: Mapping[str, Any], target: LoadedModel, text: Sequence[int], drafted: Sequence[int]
) -> Tensor:
    """cnets1.py: the target's last hidden states, its embedding, its output layer."""
    embedding, output = target.model.get_input_embeddings().weight, target.model.get_output_embeddings().weight
    states = list(hidden_states(target, text[:-1])[-1])
    tokens = [*text[1:], *drafted]
    for end in range(len(text) - 1, len(tokens) + 1):
        x = torch.cat([embedding[tokens[:end]], torch.stack(states)], dim=-1)
        x = functional.linear(x, tensors["fc.weight"], tensors["fc.bias"])
        out = _finished(tensors, "layers.0.", x, x, HIDDEN // HEADS, 10000.0)
        states.append(out[-1])
    return output @ states[-1]


def scores_of_eagle_3(
    tensors: Tensors, config: Mapping[str, Any], target: LoadedModel, text: Sequence[int], drafted: Sequence[int]
) -> Tensor:
    """cnets.py, llama3_eagle.py, and speculators' eagle3/core.py."""
    layered = config.get("transformer_layer_config", config)
    prefix = "midlayer." if layered is config else "layers.0."
    embedding = tensors.get("embed_tokens.weight", target.model.get_input_embeddings().weight)
    if layered is config:
        depths, theta, factor = [i + 1 for i in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]], 1e6, 1.0
    else:
        depths, theta, factor = config["eagle_aux_hidden_state_layer_ids"], 5000.0, 2.0
    hidden = hidden_states(target, text[:-1])
    parts = [hidden[depth] for depth in depths]
    if config.get("fc_norm"):
        parts = [_rms(part, tensors[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)]
    states = list(torch.cat(parts, dim=-1) @ tensors["fc.weight"].T)
    tokens = [*text[1:], *drafted]
    for end in range(len(text) - 1, len(tokens) + 1):
        state = torch.stack(states)
        normed = _rms(state, tensors[f"{prefix}hidden_norm.weight"])
        seen = _rms(embedding[tokens[:end]], tensors[f"{prefix}input_layernorm.weight"])
        residual = normed if config.get("norm_before_residual") else state
        out = _finished(tensors, prefix, torch.cat([seen, normed], dim=-1), residual, 12, theta, factor)[-1]
        scored = _rms(out, tensors["norm.weight"])
        states.append(scored if layered is not config and config.get("norm_output") else out)
    return tensors["lm_head.weight"] @ scored


def medusa_of_ours() -> tuple[dict[str, Any], Tensors]:
    """Three Medusa heads of two blocks, scored by the target's output layer of some tokens."""
    config, tensors = medusa()
    for head in range(3):
        del tensors[f"{head}.2.weight"]
    known = torch.randperm(VOCABULARY)[:KNOWN].sort().values
    maps = {
        "d2t": known - torch.arange(KNOWN),
        "t2d": torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, known, value=True),
    }
    return config | {"medusa_shared_output": True, "draft_vocab_size": KNOWN}, tensors | maps


def scores_of_medusa(
    tensors: Tensors, _: Mapping[str, Any], target: LoadedModel, text: Sequence[int], drafted: Sequence[int]
) -> Tensor:
    """medusa_model.py: what was drafted before does not matter, only how much."""
    x, head = hidden_states(target, text[:-1])[-1][-1], len(drafted)
    for block in range(2):
        linear = f"{head}.{block}.linear"
        x = x + functional.silu(tensors[f"{linear}.weight"] @ x + tensors[f"{linear}.bias"])
    if "d2t" in tensors:
        return target.model.get_output_embeddings().weight[tensors["t2d"]] @ x
    return tensors[f"{head}.2.weight"] @ x


KINDS: dict[str, tuple[Callable[[], tuple[dict[str, Any], Tensors]], Pass]] = {
    "eagle-1": (eagle_1, scores_of_eagle_1), "eagle-3": (eagle_3, scores_of_eagle_3),
    "speculators": (speculators, scores_of_eagle_3), "medusa": (medusa, scores_of_medusa),
    "medusa of ours": (medusa_of_ours, scores_of_medusa),
}  # fmt: skip


def hidden_states(target: LoadedModel, tokens: Sequence[int]) -> list[Tensor]:
    """[T, d] of every depth, 0 the embeddings, the last one normed."""
    with torch.inference_mode():
        out = target.model(torch.tensor([tokens]), output_hidden_states=True)
    return [hidden[0].clone() for hidden in out.hidden_states]


def _finished(
    tensors: Tensors, prefix: str, x: Tensor, residual: Tensor, size: int, theta: float, factor: float = 1.0
) -> Tensor:
    """A decoder layer's output [T, d] from what its projections read [T, n]."""
    count = len(x)
    query, key, value = (
        (x @ tensors[f"{prefix}self_attn.{name}_proj.weight"].T).view(count, -1, size) for name in "qkv"
    )
    if f"{prefix}self_attn.q_norm.weight" in tensors:
        query = _rms(query, tensors[f"{prefix}self_attn.q_norm.weight"])
        key = _rms(key, tensors[f"{prefix}self_attn.k_norm.weight"])
    query, key = (_turned(part, theta, factor) for part in (query, key))
    key, value = (part.repeat_interleave(HEADS // KEY_HEADS, dim=1) for part in (key, value))
    weights = torch.einsum("qhd,khd->hqk", query, key) / size**0.5
    weights = weights.masked_fill(torch.ones(count, count).triu(1) > 0, -torch.inf).softmax(-1)
    attended = torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
    stream = residual + attended @ tensors[f"{prefix}self_attn.o_proj.weight"].T
    x = _rms(stream, tensors[f"{prefix}post_attention_layernorm.weight"])
    gate, up = (x @ tensors[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return stream + (functional.silu(gate) * up) @ tensors[f"{prefix}mlp.down_proj.weight"].T


def _turned(x: Tensor, theta: float, factor: float) -> Tensor:
    """x [T, heads, size] with rotary embeddings; `factor` divides positions (linear scaling)."""
    size = x.shape[-1]
    angles = (torch.arange(len(x)) / factor)[:, None] * theta ** (-torch.arange(0, size, 2) / size)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def _sizes() -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 2048, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
        "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY,
    }  # fmt: skip


def _layer(prefix: str, width: int, size: int) -> Tensors:
    shapes = {
        "self_attn.q_proj": (HEADS * size, width), "self_attn.k_proj": (KEY_HEADS * size, width),
        "self_attn.v_proj": (KEY_HEADS * size, width), "self_attn.o_proj": (HIDDEN, HEADS * size),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }  # fmt: skip
    matrices = {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    return matrices | {f"{prefix}post_attention_layernorm.weight": norm(HIDDEN)}


def maps() -> Tensors:
    """d2t and t2d of a draft vocabulary spread over the target's."""
    known = torch.randperm(VOCABULARY)[:KNOWN].sort().values
    mask = torch.zeros(VOCABULARY, dtype=torch.bool)
    mask[known] = True
    return {"d2t": known - torch.arange(KNOWN), "t2d": mask}


def matrix(*shape: int) -> Tensor:
    """Random weights."""
    return torch.randn(*shape) * 0.3


def norm(size: int) -> Tensor:
    """Random weights of a norm."""
    return 1 + 0.3 * torch.randn(size)
