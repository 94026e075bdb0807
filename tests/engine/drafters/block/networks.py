"""Random block drafters whose sizes the quantised kernels can compute with."""

from dataclasses import replace

import torch
from torch import Tensor

from specchat.engine.drafters.block.network import BlockNetwork, _Attention
from specchat.engine.drafters.block.shape import BlockShape
from specchat.engine.models.packed.quantize import quantize_network

WORDS = 180
DFLASH = BlockShape(
    hidden=64, intermediate=96, heads=4, key_heads=2, head_size=16, epsilon=1e-6, rotation_factor=1.0,
    frequencies=tuple((1000.0 ** (-torch.arange(0, 16, 2) / 16)).tolist()), windows=(None, None),
    causal=(False, False), rows=5, first=1, mask=7, taps=(1, 2, 3), vocabulary=WORDS, draft_vocabulary=WORDS, bias=True,
)  # fmt: skip
SLIDING = replace(DFLASH, windows=(20, None, 9), causal=(True, False, False), bias=False, softcap=20.0, logit_scale=0.8)
DSPARK = replace(DFLASH, first=0, bias=False, markov_rank=32, confidence=True, confidence_reads_markov=True)
PARTIAL = replace(DSPARK, draft_vocabulary=100, confidence=False, confidence_reads_markov=False, embedding_scale=0.7)
GATED = replace(PARTIAL, markov_gate=True)
DFLASH_2 = replace(DFLASH, windows=(20, 30), kernel=2, kernel_group=16, selector_rank=32, candidates=5, softcap=9.0)
GEMMA = replace(DSPARK, gemma=True, values_are_keys=True, key_heads=1)
SHAPES = {
    "dflash": DFLASH, "sliding": SLIDING, "dspark": DSPARK, "part of the vocabulary": PARTIAL, "gated": GATED,
    "dflash 2": DFLASH_2, "gemma": GEMMA,
}  # fmt: skip


class InHalves(_Attention):
    """Keeps keys and values in float16, as the kernels' cache does."""

    def keys_and_values(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        key, value = super().keys_and_values(x, turns)
        return key.half().float(), value.half().float()


def packable_network(shape: BlockShape) -> BlockNetwork:
    """A network with 8-bit codes, and keys and values in float16."""
    torch.manual_seed(5)
    network = BlockNetwork(shape).eval().requires_grad_(requires_grad=False)
    for name, weight in network.named_parameters():
        weight.normal_(0.0, 0.2) if "norm" not in name else weight.add_(0.2 * torch.randn_like(weight))
        if name.endswith(("layer_scalar", "base_kernel")):
            weight += 0.8
    quantize_network(network)
    for layer in network.layers:
        layer.self_attn.__class__ = InHalves
    return network
