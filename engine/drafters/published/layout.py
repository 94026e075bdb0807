"""Layout of a published head: which kind it is and how large, from its config.json and the names of its tensors.

Kinds: EAGLE-3 as its authors (Li et al. 2025) and SpecForge write it (`LlamaForCausalLMEagle3`) and as the library
speculators does; EAGLE-1 and EAGLE-2, whose layout is one (Li et al. 2024). Medusa heads are read by
`engine.research.medusa`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from specchat.engine.drafters.head.eagle import ACTIVATIONS, EagleLayout
from specchat.engine.errors import EngineError

MEDUSA = "medusa_num_heads"
MARKS = ("speculators_model_type", "draft_vocab_size", MEDUSA)
"""Keys of config.json that only heads have."""
TARGET, FINGERPRINT = "base_model_name_or_path", "target_fingerprint"
"""Keys of config.json: the target's name, as Medusa's authors state it, and ours, which tells its weights apart."""
_SPECULATORS = "eagle3"


def layout_of(folder: Path, config: Mapping[str, Any], names: Collection[str]) -> EagleLayout:
    """The layout of a head.

    Args:
        folder: where it is, for messages.
        config: its config.json.
        names: of its tensors.

    Raises:
        EngineError: it is of a kind that is not known, or its configuration says something that no head can be.
    """
    try:
        return _eagle(folder, config, names)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise EngineError(
            f"the draft head {folder} cannot be used: its config.json does not state {error}: fetch it again"
        ) from None


def _eagle(folder: Path, config: Mapping[str, Any], names: Collection[str]) -> EagleLayout:
    kind = config.get("speculators_model_type")
    if kind not in (None, _SPECULATORS):
        raise EngineError(
            f"the draft head {folder} is of the kind {kind!r} of speculators, which is not supported: choose one of "
            f"the kind {_SPECULATORS}"
        )
    layer = dict(config["transformer_layer_config"] if kind else config)
    prefix = next((each for each in ("midlayer.", "layers.0.") if f"{each}self_attn.q_proj.weight" in names), None)
    if prefix is None or "fc.weight" not in names:
        raise EngineError(
            f"the draft head {folder} is of no kind that is known (EAGLE-1 to EAGLE-3, speculators' eagle3, Medusa): "
            "choose another"
        )
    third = f"{prefix}hidden_norm.weight" in names
    layers = int(layer.get("num_hidden_layers", 1))
    if layers != 1:
        raise EngineError(f"the draft head {folder} has {layers} layers, and one is supported: choose another")
    activation = layer.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise EngineError(f"the draft head {folder} has the activation {activation!r}, which is not supported")
    hidden, heads, intermediate, vocabulary = (
        _positive(layer, name) for name in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    )
    sliding = kind and "sliding_attention" in (layer.get("layer_types") or ())
    return EagleLayout(
        third=third,
        prefix=prefix,
        hidden=hidden,
        target_hidden=int(config.get("target_hidden_size") or hidden),
        heads=heads,
        key_heads=int(layer.get("num_key_value_heads") or heads),
        head_size=int(layer.get("head_dim") or hidden // heads),
        intermediate=intermediate,
        activation=activation,
        epsilon=float(layer.get("rms_norm_eps", 1e-6)),
        taps=_taps(config) if third else None,
        vocabulary=vocabulary,
        draft_vocabulary=int(config.get("draft_vocab_size") or vocabulary) if third else vocabulary,
        positions=int(layer.get("max_position_embeddings", 2048)),
        rotary={key: layer[key] for key in ("rope_theta", "rope_scaling", "rope_parameters") if layer.get(key)},
        window=int(layer["sliding_window"]) if sliding else None,
        projection_bias=f"{prefix}self_attn.q_proj.bias" in names,
        output_bias=f"{prefix}self_attn.o_proj.bias" in names,
        fuse_bias="fc.bias" in names,
        head_norms=f"{prefix}self_attn.q_norm.weight" in names,
        tap_norms=bool(config.get("fc_norm", False)),
        joint_norm=bool(kind and config.get("norm_before_fc", False)),
        normed_residual=bool(kind and config.get("norm_before_residual", False)),
        normed_again=bool(kind and config.get("norm_output", False)),
        normed_score=third and bool(kind or config.get("norm_output", True)),
    )


def _positive(layer: Mapping[str, Any], name: str) -> int:
    size = int(layer[name])
    if size < 1:
        raise ValueError(name)
    return size


def _taps(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The depths that are stated: by speculators as such, elsewhere as layers, whose output is one deeper."""
    stated = config.get("eagle_aux_hidden_state_layer_ids")
    if stated:
        return tuple(int(depth) for depth in stated)
    layers = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return tuple(int(layer) + 1 for layer in layers) if layers else None
