"""The layer of a draft head beside its target: on the quantised kernels where they fit, else in torch."""

from __future__ import annotations

from torch import Tensor, nn

from specchat.engine.kernels.packed_matrix import PackedMatrix
from specchat.engine.kernels.quantized_linear import QuantizedLinear
from specchat.engine.runner.quantized_runner import QuantizedRunner
from specchat.engine.runner.runner import Runner
from specchat.engine.speculation.drafters.head.eagle import EagleHead
from specchat.engine.speculation.drafters.head.layer import HeadLayer
from specchat.engine.speculation.drafters.head.medusa import MedusaHeads, MedusaLayer
from specchat.engine.speculation.drafters.head.network import DraftHead
from specchat.engine.speculation.drafters.head.packed_layer import PackedLayer, can_be_packed
from specchat.engine.speculation.drafters.head.torch_layer import TorchLayer
from specchat.engine.speculation.drafters.head.weights import score_layer

Head = DraftHead | EagleHead | MedusaHeads
_LONGEST_LOOK = 2048
"""Places that a published head looks back: as far as their authors train them."""


def layer_of(head: Head, vocabulary: Tensor, target: Runner) -> tuple[HeadLayer, int]:
    """The head beside a target, and the bytes of what scores its vocabulary, where that is not a part of the head.

    Args:
        head: on the target's device, in its dtype.
        vocabulary: [V'], int64, the tokens that it drafts.
        target: whose hidden states it reads.
    """
    slots, columns = target.cache.slots, target.cache.columns
    if isinstance(head, MedusaHeads):
        output, size = _shared_output(head, vocabulary, target)
        return MedusaLayer(head, output, target.embedding_rows(vocabulary[:1]), slots, columns), size
    if isinstance(head, EagleHead):
        window = min(columns, head.shape.window or _LONGEST_LOOK)
        scores_of, size = _output(head, vocabulary, target)
        embed = head.embed_tokens or target.embedding_rows
        return TorchLayer(head, lambda outcome: scores_of(head.scored(outcome)), embed, slots, columns, window), size
    scores, size = score_layer(_rows(target, vocabulary), quantized=_is_quantized(head.fuse))
    if isinstance(target, QuantizedRunner) and isinstance(scores, QuantizedLinear) and can_be_packed(head):
        return PackedLayer(head, scores.matrix, target.embedding, slots, columns), size
    return TorchLayer(head, scores, target.embedding_rows, slots, columns), size


def _shared_output(heads: MedusaHeads, vocabulary: Tensor, target: Runner) -> tuple[nn.Module | None, int]:
    """The target's output layer, and the bytes of it; None where each head has its own."""
    if not heads.shared:
        return None, 0
    return score_layer(_rows(target, vocabulary), quantized=any(map(_is_quantized, heads.modules())))


def _output(head: EagleHead, vocabulary: Tensor, target: Runner) -> tuple[nn.Module, int]:
    """Its own output layer; else the target's, and the bytes of it."""
    if head.lm_head is not None:
        return head.lm_head, 0
    return score_layer(_rows(target, vocabulary), quantized=_is_quantized(head.layer.mlp["up_proj"]))


def _rows(target: Runner, vocabulary: Tensor) -> Tensor | PackedMatrix:
    """The target's output layer for these tokens: its own codes where it has any, else the weights [V', d]."""
    part = target.output_part(vocabulary) if isinstance(target, QuantizedRunner) else None
    return part or target.output_rows(vocabulary)


def _is_quantized(layer: object) -> bool:
    return isinstance(layer, QuantizedLinear)
