"""T5 (Raffel et al. 2020) on the modules of transformers' T5, with external storage of keys and values.

transformers' own layers make one position bias for all rows of a pass, from one number of tokens before it. Rows of
different lengths need one each, and so do trees; the bias here is made from the positions of queries and keys. Numbers
are those of the modelling code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Remember = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Stores keys and values [B, H, T, D] of a layer by its number; returns the attended ones [B, H, S, D]."""
Recall = Callable[[int], tuple[Tensor, Tensor]]
"""Keys and values [B, H, L, D] of the source for a layer."""


class T5Network:
    """Encoder, decoder and output layer of one T5.

    Args:
        model: a `T5ForConditionalGeneration` of transformers, in evaluation mode.
        positions: more than any token of the decoder has.
    """

    def __init__(self, model: Any, positions: int) -> None:
        self._model = model
        self._encoder, self._decoder = model.encoder, model.decoder
        config = model.config
        scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)  # as older versions say it
        self._scale = config.d_model**-0.5 if scaled else 1.0
        self.shapes = [(config.num_heads, config.d_kv) * 2] * len(self._decoder.block)
        """H and D of keys, and of values, of each layer of the decoder."""
        self._biases = _biases_by_distance(self._decoder.block[0].layer[0].SelfAttention, positions)

    def encode(self, source: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What each layer of the decoder attends to of a source [B, L]: keys and values [B, H, L, D]."""
        length = source.shape[1]
        x = self._encoder.embed_tokens(source)
        bias = self._encoder.block[0].layer[0].SelfAttention.compute_bias(length, length)
        for block in self._encoder.block:
            x = _self_attended(block.layer[0], x, bias, lambda keys, values: (keys, values))
            x = _fed_forward(block.layer[-1], x)
        states = self._encoder.final_layer_norm(x)
        attentions = [block.layer[1].EncDecAttention for block in self._decoder.block]
        return [(_by_head(each, each.k(states)), _by_head(each, each.v(states))) for each in attentions]

    def bias(self, queries: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """Bias of the decoder's attention [B, H, T, S]: by distance, and -∞ where a query does not see a key.

        Args:
            queries: positions [B, T].
            keys: positions [B, S].
            seen: [B, 1, T, S], bool.
        """
        distances = (queries[:, :, None] - keys[:, None, :]).clamp_(min=0)
        return self._biases[distances].permute(0, 3, 1, 2).masked_fill(~seen, -torch.inf)

    def decode(
        self, tokens: Tensor, bias: Tensor, remember: Remember, recall: Recall, visible: Tensor | None
    ) -> Tensor:
        """Normed hidden states [B, T, d] of tokens [B, T].

        Args:
            tokens: int64.
            bias: of `bias`.
            remember: the cache of the tokens.
            recall: what was encoded.
            visible: [B, 1, 1, L], bool, which columns of the source belong to the row; None where all do.
        """
        x = self._decoder.embed_tokens(tokens)
        for number, block in enumerate(self._decoder.block):

            def kept(keys: Tensor, values: Tensor, layer: int = number) -> tuple[Tensor, Tensor]:
                return remember(layer, keys, values)

            x = _self_attended(block.layer[0], x, bias, kept)
            x = _cross_attended(block.layer[1], x, *recall(number), visible)
            x = _fed_forward(block.layer[-1], x)
        states: Tensor = self._decoder.final_layer_norm(x)
        return states

    def score(self, states: Tensor) -> Tensor:
        """Logits [..., V] of normed hidden states [..., d]."""
        logits: Tensor = self._model.lm_head(states * self._scale if self._scale != 1 else states)
        return logits


def _self_attended(
    layer: Any, x: Tensor, bias: Tensor, keep: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    attention, normed = layer.SelfAttention, layer.layer_norm(x)
    queries, keys, values = (_by_head(attention, part(normed)) for part in (attention.q, attention.k, attention.v))
    keys, values = keep(keys, values)
    return x + _attended(attention, queries, keys, values, bias)


def _cross_attended(layer: Any, x: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    attention = layer.EncDecAttention
    queries = _by_head(attention, attention.q(layer.layer_norm(x)))
    return x + _attended(attention, queries, keys, values, visible)


def _attended(attention: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """T5 does not scale the products of queries and keys."""
    out = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1.0)
    projected: Tensor = attention.o(out.transpose(1, 2).flatten(2))
    return projected


def _fed_forward(layer: Any, x: Tensor) -> Tensor:
    """Both kinds of T5: one matrix and a ReLU, and two of which one gates the other (T5 1.1, Flan-T5)."""
    dense, normed = layer.DenseReluDense, layer.layer_norm(x)
    gated = hasattr(dense, "wi_0")
    inner = dense.act(dense.wi_0(normed)) * dense.wi_1(normed) if gated else dense.act(dense.wi(normed))
    out: Tensor = x + dense.wo(inner)
    return out


def _by_head(attention: Any, projected: Tensor) -> Tensor:
    """[B, H, T, D] of [B, T, H · D]."""
    return projected.view(*projected.shape[:2], -1, attention.key_value_proj_dim).transpose(1, 2)


@torch.inference_mode()
def _biases_by_distance(attention: Any, positions: int) -> Tensor:
    """[positions, H]: the bias of a key that many positions before the query."""
    weights: Tensor = attention.relative_attention_bias.weight
    buckets = attention._relative_position_bucket(
        -torch.arange(positions, device=weights.device),
        bidirectional=False,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    return weights[buckets]
