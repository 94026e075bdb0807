"""The head on the quantised kernels has the scores of the head in torch, whatever is read or drafted together."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.decoding.tree import chain
from specchat.engine.drafters.head.drafter import HeadMemory
from specchat.engine.drafters.head.layer import HeadLayer
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.drafters.head.packed_layer import PackedLayer, can_be_packed
from specchat.engine.drafters.head.torch_layer import TorchLayer
from specchat.engine.models.packed.quantize import quantize_network, quantized_linear
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.drafters.heads import scores_along
from tests.engine.rows import row_of

pytestmark = pytest.mark.usefixtures("kernels")
SHAPE = HeadShape(64, 4, 2, 16, 96, (1, 2, 3), 10000.0, 1e-5)
WORDS, DRAFTED, COLUMNS, WINDOW = 120, 70, 220, 40
LENGTHS = (190, 7, 60)
STEPS = 4


class Pair:
    """The same head twice, with rows of `LENGTHS` tokens of which all but the last have been read."""

    def __init__(self, method: str = "q8", drafted: int = DRAFTED, clusters: int = 0) -> None:
        torch.manual_seed(4)
        head = DraftHead(replace(SHAPE, clusters=clusters)).eval().requires_grad_(False)
        output = torch.randn(drafted, SHAPE.hidden)
        if head.clusters is not None:
            head.clusters.weight.copy_(output.view(clusters, -1, SHAPE.hidden).mean(1))
        for norm in (head.read_norm, head.mlp_norm, head.score_norm):
            norm.weight.add_(0.2 * torch.randn(SHAPE.hidden))
        quantize_network(head, method)
        embedding = quantized_linear(torch.randn(WORDS, SHAPE.hidden))
        scores = quantized_linear(output, method=method)
        assert can_be_packed(head)
        self.torch = TorchLayer(
            head, scores, lambda tokens: embedding.weight[tokens], BlockPool(3, COLUMNS), window=WINDOW
        )
        self.packed = PackedLayer(head, scores.matrix, embedding.matrix, BlockPool(3, COLUMNS), WINDOW)
        self.tapped = torch.randn(3, COLUMNS, SHAPE.hidden * len(SHAPE.taps))

    def remembering(self, layer: HeadLayer) -> tuple[HeadMemory, list[SequenceState]]:
        memory = HeadMemory(layer, 3)
        rows = [row_of([(7 * i + n) % WORDS for i in range(n)], slot) for slot, n in enumerate(LENGTHS)]
        for row in rows:
            memory.admit(row)
            read = len(row.tokens) - 1
            memory.absorb([row], self.tapped[row.slot : row.slot + 1, : read + 1], [read])
            row.cached = read
        return memory, rows


def drafted(layer: HeadLayer, memory: HeadMemory, rows: list[SequenceState]) -> list[Tensor]:
    """What every step of a chain of fixed tokens scores."""
    tokens = torch.tensor([[(11 * i + 5 * row.slot) % WORDS for i in range(STEPS)] for row in rows])
    return scores_along(layer, memory, rows, chain(STEPS), tokens)


@pytest.mark.parametrize("method", ["q8", "q4"])
def test_it_scores_what_torch_does(method: str) -> None:
    pair = Pair(method)
    ours, theirs = (torch.stack(drafted(layer, *pair.remembering(layer))) for layer in (pair.packed, pair.torch))
    error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    assert error.max() < 0.05  # an activation on the edge between two 8-bit codes may fall to the other side
    assert error.median() < 0.01
    last = pair.packed.scores
    values, places = last.logits.topk(4, -1)
    assert torch.equal(torch.from_numpy(last.best).long(), places)
    shares = (values - last.logits.logsumexp(-1, keepdim=True)).exp()
    torch.testing.assert_close(torch.from_numpy(last.shares), shares)


def test_only_the_likeliest_clusters_are_scored() -> None:
    """The matrix of the clusters is the mean of their rows, so their scores are the means of their logits."""
    pair = Pair(drafted=192, clusters=12)
    found, all_scored = (
        torch.stack(drafted(layer, *pair.remembering(layer)))[..., 0, :] for layer in (pair.packed, pair.torch)
    )
    scored = found > -1e3
    assert (scored.sum(-1) == 32).all()
    assert (found[~scored] == found.min()).all()
    gap = found[scored] - all_scored[scored]
    assert gap.abs().median() < 0.01 * all_scored.std()
    means = all_scored.unflatten(-1, (12, 16)).mean(-1)
    chosen = scored.unflatten(-1, (12, 16)).all(-1)
    assert (means[chosen].view(-1, 2).amin(-1) + 0.05 > means.masked_fill(chosen, -9).flatten(0, -2).amax(-1)).all()
    last = pair.packed.scores
    assert torch.equal(torch.from_numpy(last.best).long(), last.logits.topk(4, -1).indices)
