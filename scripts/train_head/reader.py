"""The target's network, reading one token per row: plain matrix products, which a CUDA graph can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from scripts.train_head.attention import attention
from specchat.engine.drafters.head.network import rotate


class Reader:
    """Reads tokens, all rows at the same column, and keeps their keys and values.

    Args:
        network: a Llama network of transformers.
        taps: depths whose hidden states are wanted: 0 the embeddings, the last one after the final norm.
        rows: R.
        length: L, the columns.
    """

    def __init__(self, network: Any, taps: Sequence[int], rows: int, length: int) -> None:
        config, device = network.config, network.device
        self._config, self._taps = config, taps
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._size = config.hidden_size // self._heads
        self._layers = [_layer(layer) for layer in network.model.layers]
        self._norm, self._embedding = network.model.norm.weight, network.model.embed_tokens.weight
        self._output = network.get_output_embeddings().weight
        shape = rows, self._key_heads, length, self._size
        self._cache = [[torch.zeros(shape, dtype=network.dtype, device=device) for _ in "kv"] for _ in self._layers]
        rope = getattr(config, "rope_parameters", None) or {}
        steps = torch.arange(0, self._size, 2, device=device).float() / self._size
        columns = torch.arange(length, device=device)
        angles = columns[:, None].float() * float(rope.get("rope_theta", 10_000.0)) ** -steps
        self._angles = torch.cat([angles, angles], -1)
        self._attend = attention(device)

    def read(self, token: Tensor, begin: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [R, taps x d] and logits [R, V], float32, of one token per row.

        Args:
            token: [R], int64.
            begin: [R], int64: the first column that each row attends to. Positions are columns, whichever it is: rotary
                embeddings know only distances.
            column: [1], int64: where the tokens are.
        """
        epsilon, d = self._config.rms_norm_eps, self._config.hidden_size
        stream = self._embedding[token]
        angle = self._angles.index_select(0, column)
        rotation = angle.cos()[None], angle.sin()[None]
        kept = {0: stream}
        for depth, (layer, (keys, values)) in enumerate(zip(self._layers, self._cache, strict=True), 1):
            mixed = functional.linear(functional.rms_norm(stream, (d,), layer.read_norm, epsilon), layer.qkv)
            mixed = mixed.view(len(stream), -1, self._size)
            asked = self._heads + self._key_heads
            turned = rotate(mixed[:, :asked], rotation)
            query = turned[:, : self._heads].reshape(len(stream), self._key_heads, -1, self._size)
            keys.index_copy_(2, column, turned[:, self._heads :, None])
            values.index_copy_(2, column, mixed[:, asked:, None])
            attended = self._attend(query, keys, values, begin, column)
            stream = stream + functional.linear(attended.reshape(len(stream), -1), layer.out)
            gate_up = functional.linear(functional.rms_norm(stream, (d,), layer.mlp_norm, epsilon), layer.gate_up)
            gate, up = gate_up.chunk(2, dim=-1)
            stream = stream + functional.linear(functional.silu(gate) * up, layer.down)
            kept[depth] = stream
        kept[len(self._layers)] = functional.rms_norm(stream, (d,), self._norm, epsilon)
        scores = functional.linear(kept[len(self._layers)], self._output).float()
        return torch.cat([kept[tap] for tap in self._taps], -1), scores


class _Layer(NamedTuple):
    """Weights of a layer; matrices that read the same input are joined."""

    read_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        layer.input_layernorm.weight,
        torch.cat([each.weight for each in (attention.q_proj, attention.k_proj, attention.v_proj)]),
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        mlp.down_proj.weight,
    )
