"""The head on the quantised kernels beside the head in torch: the same scores, whatever is read or drafted together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specchat.engine.decoding.tree import chain, tree_of
from specchat.engine.drafters.growing.scores import Place, Scores
from specchat.engine.drafters.head.layer import HeadLayer
from specchat.engine.drafters.head.memory import HeadMemory
from specchat.engine.drafters.head.network import DraftHead, HeadShape
from specchat.engine.drafters.head.packed_layer import PackedLayer, can_be_packed
from specchat.engine.drafters.head.torch_layer import TorchLayer
from specchat.engine.kernels.library import library, missing
from specchat.engine.models.packed.quantize import quantize_network, quantized_linear
from specchat.engine.sequence.sequence import SequenceState

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
SHAPE = HeadShape(64, 4, 2, 16, 96, (1, 2, 3), 10000.0, 1e-5)
WORDS, DRAFTED, COLUMNS, WINDOW = 120, 70, 220, 40
LENGTHS = (190, 7, 60)
TREE = tree_of(4)


class Pair:
    """The same head twice, with rows of `LENGTHS` tokens of which all but the last have been read."""

    def __init__(self, method: str = "q8") -> None:
        torch.manual_seed(4)
        head = DraftHead(SHAPE).eval().requires_grad_(False)
        for norm in (head.read_norm, head.mlp_norm, head.score_norm):
            norm.weight.add_(0.2 * torch.randn(SHAPE.hidden))
        quantize_network(head, method)
        embedding = quantized_linear(torch.randn(WORDS, SHAPE.hidden))
        scores = quantized_linear(torch.randn(DRAFTED, SHAPE.hidden), method=method)
        assert can_be_packed(head)
        self.torch = TorchLayer(head, scores, lambda tokens: embedding.weight[tokens], 3, COLUMNS, WINDOW)
        self.packed = PackedLayer(head, scores.matrix, embedding.matrix, 3, COLUMNS, WINDOW)
        self.tapped = torch.randn(3, COLUMNS, SHAPE.hidden * len(SHAPE.taps))

    def remembering(self, layer: HeadLayer) -> tuple[HeadMemory, list[SequenceState]]:
        memory = HeadMemory(layer, 3)
        rows = [
            SequenceState(None, None, slot, [(7 * i + n) % WORDS for i in range(n)], 1, 0, 0, None, "head")  # type: ignore[arg-type]
            for slot, n in enumerate(LENGTHS)
        ]
        for row in rows:
            memory.admit(row)
            read = len(row.tokens) - 1
            memory.absorb([row], self.tapped[row.slot : row.slot + 1, : read + 1], [read])
            row.cached = read
        return memory, rows


def drafted(layer: HeadLayer, memory: HeadMemory, rows: list[SequenceState]) -> list[Scores]:
    """What every step of a tree of fixed tokens scores."""
    scores, before = [memory.read(rows)], TREE.levels[0]
    tokens = torch.tensor([[(11 * i + 5 * row.slot) % WORDS for i in range(len(TREE))] for row in rows])
    for level in TREE.levels[1:]:
        parents = [before.index(TREE.parents[token - 1]) for token in level]
        scores.append(layer.extend(rows, TREE, level, parents, tokens[:, [token - 1 for token in level]]))
        before = level
    return scores


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """An activation on the edge between two 8-bit codes may fall to the other side."""
    error = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    assert error.max() < 0.05
    assert error.median() < 0.01


@pytest.mark.parametrize("method", ["q8", "q4"])
def test_it_scores_what_torch_does(method: str) -> None:
    pair = Pair(method)
    found = [drafted(layer, *pair.remembering(layer)) for layer in (pair.packed, pair.torch)]
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours.logits, theirs.logits)
        assert ours.best is not None
        assert ours.shares is not None
        values, places = ours.logits.flatten(0, 1).topk(4, -1)
        assert torch.equal(torch.from_numpy(ours.best).long(), places)
        shares = (values - ours.logits.flatten(0, 1).logsumexp(-1, keepdim=True)).exp()
        torch.testing.assert_close(torch.from_numpy(ours.shares), shares)


@pytest.mark.parametrize("method", ["q8", "q4"])
def test_bits_depend_neither_on_the_rows_beside_nor_on_what_is_read_when(method: str) -> None:
    pair = Pair(method)
    memory, rows = pair.remembering(pair.packed)
    together = drafted(pair.packed, memory, rows)
    for i in range(3):
        memory, rows = pair.remembering(pair.packed)
        row = rows[i]
        whole = row.tokens
        for length in (3, 5, len(whole)):  # as rounds go on
            row.tokens = whole[:length]
            alone = drafted(pair.packed, memory, [row])
        for one, all_rows in zip(alone, together, strict=True):
            assert torch.equal(one.logits[0], all_rows.logits[i])


def test_a_step_may_go_on_from_any_places_of_the_step_before() -> None:
    pair = Pair()
    memory, rows = pair.remembering(pair.packed)
    tokens = torch.tensor([[5, 9]])
    memory.read(rows)
    first, last = rows[0], rows[2]
    mixed = pair.packed.go_on([Place(first, 5, 1, (), 0), Place(first, 8, 2, (), 0), Place(last, 5, 1, (), 2)])
    deeper = pair.packed.go_on([Place(last, 9, 2, (1,), 2), Place(first, 9, 3, (1,), 0)])
    for row, place, deep in ((first, 0, 1), (last, 2, 0)):
        memory, rows = pair.remembering(pair.packed)
        row = rows[row.slot]
        memory.read([row])
        alone = pair.packed.extend([row], chain(3), (1,), (0,), tokens[:, :1])
        assert torch.equal(alone.logits[0, 0], mixed.logits[0, place])
        alone = pair.packed.extend([row], chain(3), (2,), (0,), tokens[:, 1:])
        assert torch.equal(alone.logits[0, 0], deeper.logits[0, deep])


def test_what_is_copied_is_as_if_it_had_been_read_there() -> None:
    pair = Pair()
    memory, rows = pair.remembering(pair.packed)
    wanted = memory.read([rows[2]]).logits
    memory, rows = pair.remembering(pair.packed)
    memory.read(rows)
    memory.release(rows[2])
    again = SequenceState(None, None, 1, rows[2].tokens, 1, rows[2].cached, 0, None, "head")  # type: ignore[arg-type]
    memory.release(rows[1])
    assert memory.admit(again) == again.cached
    assert torch.equal(memory.read([again]).logits, wanted)


def test_every_instruction_set_gives_the_same_bits() -> None:
    pair = Pair()
    found = []
    try:
        for variant in library().variants:
            library().use(variant)
            found.append(drafted(pair.packed, *pair.remembering(pair.packed)))
    finally:
        library().use(None)
    for scores in found[1:]:
        for one, other in zip(scores, found[0], strict=True):
            assert torch.equal(one.logits, other.logits)
            assert one.best is not None
            assert np.array_equal(one.best, other.best)
            assert np.array_equal(one.shares, other.shares)
