"""Small models of every family with random weights: as transformers runs them, and as the kernels do."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specchat.engine.cache.paged_cache import TYPES, PackedStates
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.kernels.decoder import Decoder, Lengths
from specchat.engine.kernels.packed_matrix import Format, MatrixArrays, pack
from specchat.engine.models.packed.build import decoder_weights
from specchat.engine.models.packed.decoder_description import describe_decoder, packed_family
from specchat.engine.models.packed.load import PackedModel
from specchat.engine.models.packed.quantize import quantize
from tests.engine import families
from tests.engine.mxfp4 import rounded_to_mxfp4

RECURRENT = ("lfm2", "lfm2-moe", "qwen3.5", "qwen3.5-moe", "granite-hybrid", "granite-hybrid-moe")
"""Families whose layers a decoder needs states for; of chains only."""
_MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases of the MLP": ("llama", {"mlp_bias": True}),
    "qwen3 of other sizes": ("qwen3", {"head_dim": 48, "num_key_value_heads": 1}),
    "gemma2 with low caps": ("gemma2", {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 7.0}),
    "gemma4 unified": ("gemma4-dense", {"model_type": "gemma4_unified_text"}),
}
"""Others, with the family that they are like and what differs."""
_LOADED = ("gpt-oss-mxfp4", "llama-window")
"""Families that differ from others in how they are loaded."""
FAMILIES = (*(name for name in families.FAMILIES if name not in (*RECURRENT, *_LOADED)), *_MORE)
CONTEXT = 512


def tiny_network(family: str) -> Any:
    """A model of transformers in float32, eager attention."""
    like, more = _MORE.get(family, (family, {}))
    config = families.family_config(like, **more)
    torch.manual_seed(len(family))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:  # initialised to what changes nothing
            # Where an activation has limits it meets them.
            parameter.data.add_(torch.randn_like(parameter) * (4.0 if name.endswith("gate_up_proj_bias") else 0.2))
        if family.startswith("gemma4") and "q_norm" in name:  # its scores are not divided by √head_size
            parameter.data.mul_(0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.mul_(0.8)
    return model.requires_grad_(False)


class RoundedWeights:
    """Weights of a network in one format, as a source for packing and as packed weights.

    The network gets the rounded values.
    """

    format = ""

    def __init__(self, network: Any, kind: Format) -> None:
        self._state, self._kind = network.state_dict(), kind
        in_turn = network.config.model_type == "gpt_oss"
        self._experts = Format.MXFP4 if in_turn and kind is not Format.F32 else kind
        for name in [name for name in self._state if ".experts." in name]:
            values, suffix = self._state[name], "bias" if name.endswith("bias") else "weight"
            if in_turn and suffix == "weight":
                values = values.transpose(1, 2)
            stem, _, part = name.removesuffix("_bias").rpartition(".")
            rows = [values[:, i::2] for i in range(2)] if in_turn else values.chunk(2, dim=1)
            parts = dict(zip(("gate_proj", "up_proj"), rows, strict=True)) if "gate_up" in part else {part: values}
            self._state |= {f"{stem}.{each}.{suffix}": view for each, view in parts.items()}
        self._rounded: dict[str, MatrixArrays] = {}
        self.packed: dict[str, Any] = {}

    def has(self, name: str) -> bool:
        return name in (self.packed or self._state)

    def matrix(self, name: str, cut: Any = None) -> Any:
        if self.packed:
            return self.packed[name]
        if cut:
            return self.matrix(cut[0]).rows(cut[1])
        if name not in self._rounded:
            weight = self._state[name]
            kind = self._experts if ".experts." in name else self._kind
            arrays = rounded(weight.reshape(-1, weight.shape[-1]).numpy(), kind)
            weight.copy_(torch.from_numpy(arrays.values()).view(weight.shape))
            self._rounded[name] = arrays
        return self._rounded[name]

    def vector(self, name: str) -> Any:
        return self.packed[name] if self.packed else self._state[name].flatten().numpy()

    def sample(self, name: str, places: Any) -> Any:
        raise NotImplementedError


def rounded(weight: np.ndarray, kind: Format) -> MatrixArrays:
    """A weight in one of four formats, rounded to the nearest code."""
    if kind is Format.MXFP4:
        return rounded_to_mxfp4(torch.from_numpy(weight))
    if kind is Format.F32:
        return MatrixArrays(kind, weight)
    return quantize(torch.from_numpy(weight), "q8" if kind is Format.Q8 else "q4")


def tiny_decoder(
    network: Any, kind: Format, slots: int = 3, tables: Lengths | None = None, cache_type: str = "f16"
) -> Decoder:
    """The decoder of a network on the kernels, with a cache; the network takes the rounded weights.

    Recurrent layers can read one text in one pass. By default the slots' tables have all blocks in no order.
    """
    described, weights = describe_decoder(network.config), RoundedWeights(network, kind)
    weights.packed = {
        name: pack(weight) if isinstance(weight, MatrixArrays) else weight
        for name, weight, _ in list(
            decoder_weights(weights, described, packed_family(network.config).parts(network.config))
        )
    }
    unused: Any = None
    model = PackedModel(weights, described, *[unused] * 9)  # type: ignore[arg-type]
    decoder = model.decoder(CONTEXT, CONTEXT)
    shapes = [described.layer_shape(layer).cached for layer in range(described.layers)]
    # NaN in unused columns must not be read.
    if described.recurrent:
        states = PackedStates(len(described.recurrent), slots, decoder.shape.taps, decoder.shape.recurrent_sizes)
        states.commits[:] = CONTEXT
        decoder.attach_states(*states.tensors)
    recurrent = [layer in described.recurrent for layer in range(described.layers)]
    sizes = [(0, 0) if passed else size for passed, size in zip(recurrent, shapes, strict=True)]

    def filled(sizes: Iterable[tuple[int, int]], dtype: torch.dtype) -> list[Tensor]:
        value = 99 if dtype is torch.int8 else torch.nan
        return [torch.full((slots * CONTEXT // BLOCK, heads, BLOCK, size), value, dtype=dtype) for heads, size in sizes]

    keys, values = (filled(sizes, TYPES[cache_type]) for _ in range(2))
    scales = [filled([(heads, 1) for heads, _ in sizes], torch.float32) for _ in range(2)]
    if tables is None:
        tables = np.random.default_rng(0).permutation(slots * CONTEXT // BLOCK).astype(np.int32).reshape(slots, -1)
    keys = [each.mT.contiguous() for each in keys]
    decoder.attach(tables, keys, values, *(scales if cache_type == "q8" else ()))
    return decoder


class RoundingCache:
    """Cache for a single pass, which only rounds keys and values."""

    is_compileable = False

    def __init__(self, cache_type: str) -> None:
        self._type = cache_type

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return self._rounded(key), self._rounded(value)

    def _rounded(self, x: Tensor) -> Tensor:
        if self._type == "f16":
            return x.half().float()
        most = x.abs().amax(-1, keepdim=True)
        return (x * (127 / most)).round() * (most / 127)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        return (query_length if isinstance(query_length, int) else len(query_length)), 0
