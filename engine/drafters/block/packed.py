"""A block drafter on the packed CPU kernels, which draft in the call of the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from specchat.engine.cache.block_pool import BlockPool, BlockStore
from specchat.engine.cache.kv_cache import packed_blocks
from specchat.engine.cache.prefix_tree import BLOCK
from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.drafter import NetworkRecipe
from specchat.engine.drafters.block.network import BlockNetwork
from specchat.engine.drafters.block.shape import BlockShape
from specchat.engine.drafters.head.layer import FOUR_BITS
from specchat.engine.drafters.head.packed_layer import UnreadStates
from specchat.engine.kernels.decoder_shape import DecoderShape, LayerShape, sizes_fit
from specchat.engine.kernels.decoder_weights import DecoderWeights, Floats, LayerWeights
from specchat.engine.kernels.drafters import BlockRows, Confidence, PackedBlock, TokenBias
from specchat.engine.kernels.packed_matrix import PackedMatrix, QuantizedEmbedding, QuantizedLinear, array_of, pack
from specchat.engine.models.packed.names import MATRICES
from specchat.engine.models.packed.quantize import quantize, quantized_rows
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState

LARGE = 1 << 25
"""Weights of an output layer, of which a copy is made; the codes of a smaller one stay in the processor's caches."""
_CONVOLUTIONS = {f"{part}_conv": f"{part}_conv.kernel_projection" for part in ("attention", "mlp")}
"""Linear layers by their names in the kernels."""
_NORMS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
_GEMMA_NORMS = _NORMS | {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


class PackedContext(BlockStore):
    """Keys and values of the context in all layers, by block, and the network that reads them.

    Args:
        network: its linear layers are `QuantizedLinear`.
        scores: [V', d], the target's output layer.
        embedding: [V, d], the target's.
        pool: the blocks of the target's cache.
        copy: of `scores`, in shorter codes; then `scores` itself scores the likeliest tokens only.

    Raises:
        KernelError: the kernels cannot compute with these sizes.
    """

    def __init__(
        self,
        network: BlockNetwork,
        scores: PackedMatrix,
        embedding: PackedMatrix,
        pool: BlockPool,
        copy: PackedMatrix | None = None,
    ) -> None:
        self._shape, self._tables = network.shape, pool.tables
        shape = network.shape
        self._block = _packed(network, scores, embedding, pool.width * BLOCK, copy)
        self.unread = UnreadStates(self._block)
        """Hidden states of the target that it has not read."""
        self.column_bytes = 4 * shape.layers * shape.key_heads * shape.head_size
        self.allocate(pool.blocks)
        super().__init__(pool)

    @property
    def bytes(self) -> int:
        """Memory of all blocks."""
        return sum(each.nbytes for each in self.memory)

    def allocate(self, blocks: int) -> None:
        """Have memory for this number of blocks; pages are taken when they are first written to."""
        shape = self._shape
        pairs = [packed_blocks(blocks, shape.key_heads, shape.head_size) for _ in range(shape.layers)]
        keys, values = map(list, zip(*pairs, strict=True))
        self.memory = [*(each.movedim(3, 1) for each in keys), *(each.movedim(2, 1) for each in values)]
        self._block.attach(self._tables, keys, values)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first columns of a block."""
        self.unread.flush()
        super().copy(source, target, count)

    def load(self, slot: int, length: int) -> None:  # noqa: ARG002
        """Passes read the blocks."""
        self.unread.flush()

    def recipe(self, name: str, support: Support | None, branches: int) -> NetworkRecipe:
        """What the kernels need to draft.

        Args:
            name: of such drafts in records.
            support: the V' tokens; None for the whole vocabulary.
            branches: maximum number of tokens after one.
        """
        return NetworkRecipe(
            name,
            self._block.drafter,
            first=1,
            deepest=min(self._shape.proposals, MAX_GAMMA),
            support=support,
            take_unread=_last_places,
            has_read=lambda row, end: None,  # noqa: ARG005
            width=self._block.width,
            take_states=self.unread.take,
            branches=branches,
            one_step=True,
        )


def _last_places(rows: Sequence[SequenceState]) -> list[int]:
    """Place of the last token, per row: what is before it comes from hidden states."""
    return [len(row.tokens) - 2 for row in rows]


def can_be_packed(network: BlockNetwork) -> bool:
    """Whether the kernels can draft with a network whose linear layers have been quantised."""
    shape = network.shape
    near = any(
        window and window < shape.rows and not causal
        for window, causal in zip(shape.windows, shape.causal, strict=True)
    )
    kinds = nn.Linear, nn.Embedding
    plain = [name for name, each in network.named_modules() if isinstance(each, kinds) and "confidence" not in name]
    # Slots have as many columns after their text as the longest draft needs.
    fits = sizes_fit(shape.hidden, shape.head_size, shape.intermediate) and shape.rows <= MAX_GAMMA + 1
    return fits and not (plain or near)


def short_copy(scores: PackedMatrix) -> PackedMatrix | None:
    """A copy of an output layer with 4-bit codes; None if it has no more, or is small."""
    if scores.rows * scores.columns <= LARGE or scores.format in FOUR_BITS:
        return None
    return quantized_rows(
        lambda rows: torch.from_numpy(scores.rows_of(rows.numpy())), torch.arange(scores.rows), "q4"
    ).matrix


def _packed(
    network: BlockNetwork, scores: PackedMatrix, embedding: PackedMatrix, positions: int, copy: PackedMatrix | None
) -> PackedBlock:
    """The network on the kernels, its linear layers in the memory that they are in."""
    shape, pairs = network.shape, network.shape.head_size // 2
    layers = [
        _layer(shape, layer, window or 0, causal)
        for layer, window, causal in zip(network.layers, shape.windows, shape.causal, strict=True)
    ]
    turns = network.turns(torch.arange(positions)[None])
    cosines, sines = (array_of(part[0, :, :pairs]) for part in turns)
    norm, described = array_of(network.norm.weight), _described(shape, scores.rows)
    confidence = None
    if (predictor := network.confidence_head) is not None:
        confidence = Confidence(array_of(predictor.proj.weight[0]), float(predictor.proj.bias))
    return PackedBlock(
        DecoderWeights(
            *(described, layers, embedding, copy or scores, norm, [(cosines, sines)]), exact=scores if copy else None
        ),
        _matrix(network.fc),
        array_of(network.hidden_norm.weight),
        len(shape.taps),
        BlockRows(shape.rows, shape.first, shape.mask),
        _bias(network),
        confidence,
    )


def _bias(network: BlockNetwork) -> TokenBias | None:
    """What the token before adds to logits: by the Markov head or by the candidate selector."""
    if (selector := network.candidate_selector) is not None:
        successor, predecessor = _matrix(selector.successor_codebook), _matrix(selector.predecessor_codebook)
        return TokenBias(successor, predecessor, _matrix(selector.hidden_projection), candidates=selector.candidates)
    if (head := network.markov_head) is None:
        return None
    plain = TokenBias(_matrix(head.markov_w2), _matrix(head.markov_w1))
    if head.gate_proj is None:
        return plain
    weight, hidden = head.gate_proj.weight, network.shape.hidden
    of_state, of_token = (pack(quantize(part, "q8")) for part in (weight[:, :hidden], weight[:, hidden:]))
    return replace(plain, factor=of_state, factor_previous=of_token, factor_bias=array_of(head.gate_proj.bias))


def _layer(shape: BlockShape, layer: nn.Module, window: int, causal: bool) -> LayerWeights:
    sizes = LayerShape(shape.key_heads, shape.head_size, shape.intermediate, values_are_keys=shape.values_are_keys)
    modules, parts = dict(layer.named_modules()), dict[str, PackedMatrix | Floats]()
    for part, name in (_GEMMA_NORMS if shape.gemma else _NORMS).items():
        parts[part] = array_of(modules[name].weight)
    if shape.gemma:
        parts["value_norm"] = np.ones(shape.head_size, np.float32)
    for part, name in (MATRICES | _CONVOLUTIONS).items():
        if (linear := modules.get(name)) is not None:
            parts[part] = _matrix(linear)
            if linear.bias is not None:
                parts[f"{part}_bias"] = array_of(linear.bias)
    if shape.kernel:
        parts |= {f"{part}_base": array_of(modules[part].base_kernel) for part in ("attention_conv", "mlp_conv")}
    scale = float(array_of(layer.layer_scalar)[0]) if shape.gemma else 1.0
    return LayerWeights(sizes, parts, window=window, sees_later=not causal, scale=scale)


def _described(shape: BlockShape, scored: int) -> DecoderShape:
    return DecoderShape(
        hidden=shape.hidden,
        heads=shape.heads,
        key_heads=shape.key_heads,
        head_size=shape.head_size,
        intermediate=shape.intermediate,
        vocabulary=scored,
        epsilon=shape.epsilon,
        activation="gelu_tanh" if shape.gemma else "silu",
        attention_scale=1.0 if shape.gemma else shape.head_size**-0.5,
        embedding_scale=shape.embedding_scale,
        logit_scale=shape.logit_scale,
        logit_cap=shape.softcap,
        taps=shape.kernel,
        conv_groups=shape.hidden // shape.kernel_group if shape.kernel else 0,
    )


def _matrix(layer: nn.Module) -> PackedMatrix:
    assert isinstance(layer, QuantizedLinear | QuantizedEmbedding)
    return layer.matrix
