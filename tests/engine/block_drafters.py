"""Block drafters of a few kilobytes as their authors publish them, and their forward pass in plain words.

The pass is written after the published definitions (z-lab's model.py, DeepSpec's qwen3/modeling.py, speculators'
dflash/core.py and dspark/core.py, vLLM's qwen3_dflash.py and qwen3_dflash2.py): no cache, one sequence, one row of the
block and one head at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specchat.engine.models.load import LoadedModel
from tests.engine.published_heads import HIDDEN, KNOWN, LAYERS, Tensors, hidden_states, maps, matrix, norm, write
from tests.engine.tiny import VOCABULARY

HEADS, KEY_HEADS, SIZE, INNER, RANK = 4, 2, 12, 40, 8
MASK = 7
Made = tuple[dict[str, Any], Tensors]


def dflash() -> Made:
    """DFlash as z-lab writes it, with biases, and rotary embeddings of the first half of each head."""
    torch.manual_seed(21)
    config = _qwen3(2) | {
        "architectures": ["DFlashDraftModel"], "block_size": 4, "num_target_layers": LAYERS, "attention_bias": True,
        "layer_types": ["full_attention"] * 2, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 4, 6]},
        "partial_rotary_factor": 0.5,
    }  # fmt: skip
    return config, _network(2, 3, bias=True)


def dflash_sliding() -> Made:
    """DFlash with layers of sliding attention, which are causal as nothing else is stated."""
    torch.manual_seed(22)
    config = _qwen3(3) | {
        "architectures": ["DFlashDraftModel"], "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
        "sliding_window": 9, "use_sliding_window": True,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "beta_fast": 32.0,
                            "beta_slow": 1.0, "original_max_position_embeddings": 64},
        "dflash_config": {"block_size": 5, "mask_token_id": MASK, "target_layer_ids": [0, 7]},
    }  # fmt: skip
    return config, _network(3, 2)


def dflash_2() -> Made:
    """DFlash 2: convolutions, a candidate selector, sliding attention that is not causal."""
    torch.manual_seed(23)
    config = _qwen3(2) | {
        "architectures": ["DFlash2DraftModel"], "layer_types": ["sliding_attention"] * 2, "sliding_window": 8,
        "is_causal": False, "num_target_layers": LAYERS,
        "dflash_config": {"block_size": 6, "mask_token_id": MASK, "target_layer_ids": [2, 5], "conv_kernel_size": 2,
                          "conv_group_size": 4, "selector_rank": RANK, "selector_top_k": 5, "output_multiplier": 1.5,
                          "input_embedding_scale": 0.7, "final_logit_softcapping": 9.0},
    }  # fmt: skip
    tensors = _network(2, 2)
    for layer in range(2):
        for part in ("attention_conv", "mlp_conv"):
            tensors[f"layers.{layer}.{part}.base_kernel"] = matrix(2, 2, HIDDEN) + 0.5
            tensors[f"layers.{layer}.{part}.kernel_projection.weight"] = matrix(2 * 2 * HIDDEN // 4, HIDDEN)
    tensors["candidate_selector.hidden_projection.weight"] = matrix(RANK, HIDDEN)
    for part in ("predecessor", "successor"):
        tensors[f"candidate_selector.{part}_codebook"] = matrix(VOCABULARY, RANK)
    return config, tensors


def dspark() -> Made:
    """DSpark as DeepSpec writes it: all at the top level."""
    torch.manual_seed(24)
    config = _qwen3(2) | {
        "architectures": ["Qwen3DSparkModel"], "block_size": 4, "mask_token_id": MASK, "target_layer_ids": [-1, 3, 6],
        "num_target_layers": LAYERS, "layer_types": ["full_attention"] * 2, "markov_rank": RANK,
        "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
        "num_anchors": 64,
    }  # fmt: skip
    return config, _network(2, 3) | _markov() | _confidence(HIDDEN + RANK)


def dspark_gated() -> Made:
    """DSpark whose Markov head is gated by what the position is scored with."""
    config, tensors = dspark()
    gate = {"markov_head.gate_proj.weight": matrix(RANK, HIDDEN + RANK), "markov_head.gate_proj.bias": matrix(RANK)}
    return config | {"markov_head_type": "gated"}, tensors | gate


def dspark_gemma() -> Made:
    """DSpark as DeepSpec writes it for Gemma 4: keys are values, and layers have more norms and a factor."""
    config, tensors = dspark()
    for name in ("hidden_act", "head_dim", "num_key_value_heads", "rope_theta"):
        del config[name]
    rotary = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000.0}
    for layer in range(2):
        del tensors[f"layers.{layer}.self_attn.v_proj.weight"]
        names = (f"layers.{layer}.{place}_feedforward_layernorm.weight" for place in ("pre", "post"))
        tensors |= {name: norm(HIDDEN) for name in names} | {f"layers.{layer}.layer_scalar": torch.tensor([0.8])}
    return config | {
        "model_type": "gemma4_text", "architectures": ["Gemma4DSparkModel"], "attention_k_eq_v": True,
        "global_head_dim": SIZE, "num_global_key_value_heads": KEY_HEADS, "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {"full_attention": rotary}, "final_logit_softcapping": 30.0,
    }, tensors  # fmt: skip


def dspark_interleaved() -> Made:
    """DSpark as Liquid AI writes it: rotary embeddings pair neighbours."""
    torch.manual_seed(25)
    config = _qwen3(1) | {
        "architectures": ["Lfm2DSparkDraftModel"], "block_size": 5, "rope_is_neox_style": False,
        "layer_types": ["full_attention"], "markov_rank": RANK, "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2, 4, 6], "num_target_layers": LAYERS},
    }  # fmt: skip
    return config, _network(1, 4) | _markov() | _confidence(HIDDEN + RANK)


def speculators_dflash() -> Made:
    """DFlash as the library speculators writes it, with a part of the vocabulary."""
    torch.manual_seed(26)
    config = _speculators("dflash", 2, block_size=5, aux_hidden_state_layer_ids=[2, 4, 5], sample_from_anchor=False)
    config["transformer_layer_config"] |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
    tensors = _network(2, 3) | maps()
    tensors["verifier_norm.weight"] = norm(HIDDEN)
    return config | {"sliding_window_non_causal": True}, tensors


def speculators_dspark() -> Made:
    """DSpark as the library speculators writes it, all rows of which propose."""
    torch.manual_seed(27)
    config = _speculators("dspark", 1, block_size=4, aux_hidden_state_layer_ids=[1, 8], sample_from_anchor=True)
    config |= {"markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True}
    tensors = _network(1, 2) | _markov(KNOWN) | maps() | _confidence(HIDDEN)
    return config | {"confidence_head_with_markov": False}, tensors


def speculators_shifted() -> Made:
    """DSpark of speculators whose row 0 stands for the last token, as only the number of proposals says."""
    config, tensors = speculators_dspark()
    del config["sample_from_anchor"]
    config["speculators_config"] = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}]}
    return config, tensors


KINDS: dict[str, Callable[[], Made]] = {
    "dflash": dflash, "dflash sliding": dflash_sliding, "dflash 2": dflash_2, "dspark": dspark,
    "dspark gated": dspark_gated, "dspark gemma": dspark_gemma, "dspark interleaved": dspark_interleaved,
    "speculators dflash": speculators_dflash, "speculators dspark": speculators_dspark,
    "speculators shifted": speculators_shifted,
}  # fmt: skip


def write_block(folder: Path, kind: str) -> Path:
    """A drafter's folder."""
    return write(folder, *KINDS[kind]())


def draft_in_plain_words(
    made: Made, target: LoadedModel, text: Sequence[int], drafted: Sequence[int]
) -> tuple[list[Tensor], list[float | None]]:
    """Logits [V'] and confidence of each position of a draft after `text`, of which `drafted` are the tokens.

    Args:
        made: the drafter.
        target: whose states it reads.
        text: of n tokens; the states of all but the last are known.
        drafted: as many tokens as there are positions, or fewer.
    """
    config, tensors = made
    layer, nested = config.get("transformer_layer_config", config), config.get("dflash_config", {})
    embedding, output = target.model.get_input_embeddings().weight, target.model.get_output_embeddings().weight
    if "t2d" in tensors:
        output = output[tensors["t2d"]]
    ids = config.get("aux_hidden_state_layer_ids") or [
        each + 1 for each in nested.get("target_layer_ids") or config["target_layer_ids"]
    ]
    hidden = hidden_states(target, text[:-1])
    context = torch.cat([hidden[depth] for depth in ids], -1) @ tensors["fc.weight"].T
    context = _rms(context, tensors["hidden_norm.weight"])
    rows = nested.get("block_size") or config["block_size"]
    x = embedding[[text[-1], *[MASK] * (rows - 1)]] * nested.get("input_embedding_scale", 1.0)
    for number in range(layer["num_hidden_layers"]):
        x = _layer(config, tensors, number, x, context)
    x = _rms(x, tensors["norm.weight"])
    first = _proposing(config)
    logits, chances, previous = [], list[float | None](), text[-1]
    for position, token in enumerate(drafted):
        h = x[first + position]
        scores = output @ h * nested.get("output_multiplier", 1.0)
        if cap := nested.get("final_logit_softcapping", config.get("final_logit_softcapping")):
            scores = cap * (scores / cap).tanh()
        feature = h
        if "markov_head.markov_w1.weight" in tensors:
            embedded = tensors["markov_head.markov_w1.weight"][previous]
            gated = embedded * _gate(tensors, torch.cat([h, embedded]))
            scores = scores + tensors["markov_head.markov_w2.weight"] @ gated
            if tensors["confidence_head.proj.weight"].shape[1] > HIDDEN:
                feature = torch.cat([h, embedded])
        if "candidate_selector.successor_codebook" in tensors:
            scores = _selected(tensors, scores, h, previous, nested["selector_top_k"])
        logits.append(scores)
        weight = tensors.get("confidence_head.proj.weight")
        chance = None if weight is None else float((weight @ feature + tensors["confidence_head.proj.bias"]).sigmoid())
        chances.append(chance)
        previous = token
    return logits, chances


def _proposing(config: Mapping[str, Any]) -> int:
    """The first row that proposes: that of the last token for DSpark, unless speculators shifts it; else the next."""
    if "speculators_config" in config:
        return 1
    return 1 - config.get("sample_from_anchor", "markov_rank" in config)


def _gate(tensors: Tensors, x: Tensor) -> Tensor:
    if "markov_head.gate_proj.weight" not in tensors:
        return torch.ones(())
    return (tensors["markov_head.gate_proj.weight"] @ x + tensors["markov_head.gate_proj.bias"]).sigmoid()


def _selected(tensors: Tensors, scores: Tensor, h: Tensor, previous: int, count: int) -> Tensor:
    projected = tensors["candidate_selector.hidden_projection.weight"] @ h
    found = torch.full_like(scores, -torch.inf)
    for token in scores.topk(count).indices.tolist():
        edge = tensors["candidate_selector.predecessor_codebook"][previous] * projected
        found[token] = scores[token] + edge @ tensors["candidate_selector.successor_codebook"][token]
    return found


def _layer(config: Mapping[str, Any], tensors: Tensors, number: int, x: Tensor, context: Tensor) -> Tensor:
    """The output [rows, d] of a layer."""
    at, layer = f"layers.{number}.", config.get("transformer_layer_config", config)
    count, rows, gemma = len(context), len(x), layer["model_type"] == "gemma4_text"
    kind = (layer.get("layer_types") or ["full_attention"] * 9)[number]
    sliding = kind == "sliding_attention"
    causal = sliding and not config.get("sliding_window_non_causal") and config.get("is_causal", True)
    normed = _rms(x, tensors[f"{at}input_layernorm.weight"])
    entered, dynamic = _mixed_in(tensors, f"{at}attention_conv", normed)
    both = torch.cat([context, entered])
    query = _projected(tensors, f"{at}self_attn.q", entered)
    key, value = (_projected(tensors, f"{at}self_attn.{name}", both) for name in ("kk" if gemma else "kv"))
    if gemma:
        value = _rms(value, torch.ones(SIZE))
    positions, scale = torch.arange(count + rows), 1.0 if gemma else SIZE**-0.5
    query = _turned(_rms(query, tensors[f"{at}self_attn.q_norm.weight"]), positions[count:], config, layer)
    key = _turned(_rms(key, tensors[f"{at}self_attn.k_norm.weight"]), positions, config, layer)
    attended = torch.zeros(rows, HEADS, SIZE)
    for row in range(rows):
        seen = torch.ones(count + rows, dtype=torch.bool)
        if causal:
            seen &= positions <= count + row
        if sliding:
            seen &= count + row - positions < layer["sliding_window"]
        for head in range(HEADS):
            own = head // (HEADS // KEY_HEADS)
            weights = (key[:, own] @ query[row, head] * scale).masked_fill(~seen, -torch.inf).softmax(-1)
            attended[row, head] = weights @ value[:, own]
    out = _projected(tensors, f"{at}self_attn.o", attended.flatten(1)).flatten(1)
    if gemma:
        x = x + _rms(out, tensors[f"{at}post_attention_layernorm.weight"])
        entered = _rms(x, tensors[f"{at}pre_feedforward_layernorm.weight"])
        gate, up = (entered @ tensors[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        out = (functional.gelu(gate, approximate="tanh") * up) @ tensors[f"{at}mlp.down_proj.weight"].T
        return (x + _rms(out, tensors[f"{at}post_feedforward_layernorm.weight"])) * tensors[f"{at}layer_scalar"]
    x = x + _mixed_out(tensors, f"{at}attention_conv", out, dynamic)
    entered, dynamic = _mixed_in(tensors, f"{at}mlp_conv", _rms(x, tensors[f"{at}post_attention_layernorm.weight"]))
    gate, up = (entered @ tensors[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    out = (functional.silu(gate) * up) @ tensors[f"{at}mlp.down_proj.weight"].T
    return x + _mixed_out(tensors, f"{at}mlp_conv", out, dynamic)


def _projected(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    bias = tensors.get(f"{name}_proj.bias", 0.0)
    return (x @ tensors[f"{name}_proj.weight"].T + bias).unflatten(-1, (-1, SIZE if name[-1] != "o" else 1))


def _mixed_in(tensors: Tensors, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    if f"{name}.base_kernel" not in tensors:
        return x, x
    dynamic = (x @ tensors[f"{name}.kernel_projection.weight"].T).view(len(x), 2, 2, -1)
    return _mixed(x, dynamic[:, 0], tensors[f"{name}.base_kernel"][0]), dynamic[:, 1]


def _mixed_out(tensors: Tensors, name: str, x: Tensor, dynamic: Tensor) -> Tensor:
    return _mixed(x, dynamic, tensors[f"{name}.base_kernel"][1]) if f"{name}.base_kernel" in tensors else x


def _mixed(x: Tensor, dynamic: Tensor, base: Tensor) -> Tensor:
    """Each row: (base + dynamic) ⊙ itself, and the same of the row before it with the other tap."""
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for tap in range(min(2, row + 1)):
            out[row] += (base[tap] + dynamic[row, tap].repeat_interleave(4)) * x[row - tap]
    return out


def _turned(x: Tensor, positions: Tensor, config: Mapping[str, Any], layer: Mapping[str, Any]) -> Tensor:
    """x [T, heads, size] with rotary embeddings."""
    rotary = layer.get("rope_parameters") or {"rope_theta": layer.get("rope_theta", 10000.0)}
    rotary = rotary.get("full_attention", rotary)
    if share := layer.get("partial_rotary_factor"):
        x, still = x[..., : int(SIZE * share)], x[..., int(SIZE * share) :]
        return torch.cat([_turned(x, positions, config, {"rope_parameters": rotary}), still], -1)
    size = x.shape[-1]
    frequencies = rotary["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    frequencies[int(size // 2 * rotary.get("partial_rotary_factor", 1.0)) :] = 0
    factor = 1.0
    if rotary.get("rope_type") == "yarn":  # Peng et al. 2023, as transformers computes it
        low, high = (
            SIZE * torch.log(torch.tensor(64 / (turns * 2 * torch.pi))) / (2 * torch.log(torch.tensor(5000.0)))
            for turns in (32.0, 1.0)
        )
        low, high = low.floor().clamp(min=0), high.ceil().clamp(max=SIZE - 1)
        ramp = ((torch.arange(SIZE // 2) - low) / (high - low).clamp(min=1e-3)).clamp(0, 1)
        frequencies = frequencies / 4 * ramp + frequencies * (1 - ramp)
        factor = float(0.1 * torch.log(torch.tensor(4.0)) + 1)
    angles = positions[:, None] * frequencies
    cosine, sine = angles.cos()[:, None] * factor, angles.sin()[:, None] * factor
    if config.get("rope_is_neox_style", True):
        first, second = x[..., : size // 2], x[..., size // 2 :]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([first * cosine - second * sine, second * cosine + first * sine], -1).flatten(-2)


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def _qwen3(layers: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": SIZE, "num_hidden_layers": layers,
        "rms_norm_eps": 1e-6, "rope_theta": 1000.0, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
        "attention_bias": False, "tie_word_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip


def _speculators(kind: str, layers: int, **more: Any) -> dict[str, Any]:
    layer = _qwen3(layers) | {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
    del layer["rope_theta"]
    return {
        "speculators_model_type": kind, "architectures": [f"{kind}DraftModel"], "transformer_layer_config": layer,
        "draft_vocab_size": KNOWN, "mask_token_id": MASK, **more,
    }  # fmt: skip


def _network(layers: int, taps: int, *, bias: bool = False) -> Tensors:
    tensors = {"fc.weight": matrix(HIDDEN, taps * HIDDEN), "norm.weight": norm(HIDDEN)}
    tensors["hidden_norm.weight"] = norm(HIDDEN)
    shapes = {
        "self_attn.q_proj": (HEADS * SIZE, HIDDEN), "self_attn.k_proj": (KEY_HEADS * SIZE, HIDDEN),
        "self_attn.v_proj": (KEY_HEADS * SIZE, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * SIZE),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    for layer in range(layers):
        at = f"layers.{layer}."
        tensors |= {f"{at}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        if bias:
            tensors |= {f"{at}{name}.bias": matrix(shape[0]) for name, shape in shapes.items() if "attn" in name}
        tensors |= {f"{at}self_attn.{name}.weight": norm(SIZE) for name in ("q_norm", "k_norm")}
        tensors |= {f"{at}{name}.weight": norm(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
    return tensors


def _markov(known: int = VOCABULARY) -> Tensors:
    return {
        "markov_head.markov_w1.weight": matrix(VOCABULARY, RANK),
        "markov_head.markov_w2.weight": matrix(known, RANK),
    }


def _confidence(width: int) -> Tensors:
    return {"confidence_head.proj.weight": matrix(1, width), "confidence_head.proj.bias": matrix(1)}
