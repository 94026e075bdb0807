"""The layer of a draft head next to its target: on the quantised kernels where they fit, else in torch."""

from __future__ import annotations

from torch import Tensor, nn

from specchat.engine.decoding.backend import Backend
from specchat.engine.drafters.head.eagle import EagleHead
from specchat.engine.drafters.head.layer import HeadLayer
from specchat.engine.drafters.head.network import DraftHead
from specchat.engine.drafters.head.packed_layer import PackedLayer, can_be_packed
from specchat.engine.drafters.head.torch_layer import TorchLayer
from specchat.engine.drafters.head.weights import score_layer
from specchat.engine.kernels.packed_matrix import Format
from specchat.engine.kernels.quantized_layers import QuantizedLinear


class LayeredHead(nn.Module):
    """A head of another kind, which makes its layer itself."""

    taps: tuple[int, ...]
    """Depths of the target's hidden states that it reads."""

    def layer_of(self, vocabulary: Tensor, target: Backend) -> tuple[HeadLayer, int]:
        """As the function `layer_of`."""
        raise NotImplementedError


Head = DraftHead | EagleHead | LayeredHead
_FOUR_BITS = (Format.Q4, Format.Q4_SUPER)
_LONGEST_LOOK = 2048
"""Places that a published head looks back: as far as their authors train them."""


def layer_of(head: Head, vocabulary: Tensor, target: Backend) -> tuple[HeadLayer, int]:
    """The head next to a target, and the bytes of what scores its vocabulary, where that is not a part of the head.

    Args:
        head: on the target's device, in its dtype.
        vocabulary: [V'], int64, the tokens that it drafts.
        target: whose hidden states it reads.
    """
    slots, columns = target.cache.slots, target.cache.columns
    if isinstance(head, EagleHead):
        window = min(columns, head.shape.window or _LONGEST_LOOK)
        scores_of, size = _output(head, vocabulary, target)
        embed = head.embed_tokens or target.embedding_rows
        return TorchLayer(head, lambda outcome: scores_of(head.scored(outcome)), embed, slots, columns, window), size
    if not isinstance(head, DraftHead):
        return head.layer_of(vocabulary, target)
    scores, size = target_output(target, vocabulary, codes_of(head.fuse))
    if target.packed_embedding is not None and isinstance(scores, QuantizedLinear) and can_be_packed(head):
        return PackedLayer(head, scores.matrix, target.packed_embedding, slots, columns), size
    return TorchLayer(head, scores, target.embedding_rows, slots, columns), size


def _output(head: EagleHead, vocabulary: Tensor, target: Backend) -> tuple[nn.Module, int]:
    """Its own output layer; else the target's, and the bytes of it."""
    if head.lm_head is not None:
        return head.lm_head, 0
    return target_output(target, vocabulary, codes_of(head.layer.mlp["up_proj"]))


def target_output(target: Backend, vocabulary: Tensor, codes: str | None) -> tuple[nn.Module, int]:
    """The target's output layer for these tokens, and its bytes: in codes like the head's, or its own if no longer."""
    part = target.packed_output(vocabulary)
    if part is None or (codes == "q4" and part.format not in _FOUR_BITS):
        return score_layer(target.output_rows(vocabulary), codes)
    return score_layer(part, codes)


def codes_of(layer: object) -> str | None:
    """The codes that a layer's weight was given; None for a plain weight."""
    if not isinstance(layer, QuantizedLinear):
        return None
    return "q4" if layer.matrix.format in _FOUR_BITS else "q8"
