"""A block drafter on the quantised kernels drafts as the network in torch: its tokens, and its trees."""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specchat.engine import Request, Sampling
from specchat.engine.backends.kernel_drafting import KernelDrafting, PenaltiesOfRows
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.cache.block_pool import BlockPool
from specchat.engine.decoding.draft import Budget, Draft, RowOrder, Support
from specchat.engine.decoding.drafter import Recipe
from specchat.engine.decoding.tree_growth import EDGES, EXPECTED, GRADES, fixed_budget
from specchat.engine.drafters.block.drafter import BlockDrafter
from specchat.engine.drafters.block.packed import PackedContext, can_be_packed
from specchat.engine.drafters.block.packed_drafter import PackedBlockDrafter
from specchat.engine.drafters.block.reading import LoadedBlock
from specchat.engine.drafters.block.shape import BlockShape
from specchat.engine.kernels.packed_matrix import QuantizedEmbedding, QuantizedLinear, pack
from specchat.engine.models.packed.quantize import quantize, quantized_linear
from specchat.engine.request import MAX_GAMMA
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.drafters.block.networks import DFLASH, SHAPES, WORDS, packable_network
from tests.engine.drafters.models import packed_family
from tests.engine.rows import row_of

pytestmark = pytest.mark.usefixtures("kernels")
COLUMNS = 300
LENGTHS = (190, 7, 150)
DRAWN = Sampling(temperature=1.0)


class Pair:
    """The same drafter twice, and texts of which all but the last token has been read."""

    def __init__(self, shape: BlockShape) -> None:
        self.network = network = packable_network(shape)
        assert can_be_packed(network)
        self.embedding = QuantizedEmbedding(pack(quantize(torch.randn(WORDS, shape.hidden), "q8")))
        self.scores: QuantizedLinear = quantized_linear(torch.randn(shape.draft_vocabulary, shape.hidden) * 0.3)
        self.known = torch.randperm(WORDS)[: shape.draft_vocabulary].sort().values
        support = Support.of(self.known, WORDS) if len(self.known) < WORDS else None
        self.context = PackedContext(network, self.scores.matrix, self.embedding.matrix, BlockPool(3, COLUMNS))
        self.recipe = Recipe(network=self.context.recipe("block", support, branches=4))
        self.tapped = torch.randn(3, COLUMNS, shape.hidden * len(shape.taps))

    def draft(self, rows: Sequence[SequenceState], gamma: int) -> list[Draft]:
        drafting = KernelDrafting(self.recipe, PenaltiesOfRows(WORDS), len(rows))
        return drafting.grow([RowOrder(row, gamma, fixed_budget(gamma)) for row in rows])

    def rows(self) -> list[SequenceState]:
        """Texts whose hidden states have been read, up to 60 tokens at a time."""
        request, rows = Request("r", prompt_ids=(1,), sampling=DRAWN), list[SequenceState]()
        for slot, length in enumerate(LENGTHS):
            row = row_of([(7 * i + length) % WORDS for i in range(length)], slot, request, seed=slot)
            for start in range(0, length - 1, 60):
                states = self.tapped[slot : slot + 1, start : min(start + 60, length - 1)]
                self.context.unread.absorb([slot], [start], states)
            row.cached = length - 1
            rows.append(row)
        return rows

    @torch.inference_mode()
    def scores_of(self, row: SequenceState, drafted: Sequence[int]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Logits [V'] of each position of a draft, and its confidence, by the network in torch."""
        network, shape, end = self.network, self.network.shape, len(row.tokens) - 1
        columns = torch.arange(end)[None]
        keys, values = network.context(self.tapped[row.slot : row.slot + 1, :end], network.turns(columns))
        ids, place = torch.tensor([[row.tokens[-1], *[shape.mask] * (shape.rows - 1)]]), torch.tensor([end])
        turns = network.turns(place[:, None] + torch.arange(shape.rows))
        out = network.block(self.embedding(ids), turns, keys, values, network.visibility(place, columns))[0]
        for i, previous in enumerate([row.tokens[-1], *drafted[:-1]]):
            outcome, before = out[None, shape.first + i], torch.tensor([previous])
            logits = network.after(network.logits(self.scores(outcome)), outcome, before)[0]
            yield logits, network.confidence(outcome, before)


@pytest.mark.parametrize("kind", SHAPES)
def test_tokens_are_drawn_from_what_the_network_in_torch_says(kind: str) -> None:
    pair = Pair(SHAPES[kind])
    length = pair.network.shape.proposals
    rows = pair.rows()
    errors = []
    for row, draft in zip(rows, pair.draft(rows, length), strict=True):
        assert len(draft.tokens) == length
        assert draft.steps == 1
        assert draft.q is not None
        expected = pair.scores_of(row, draft.on_host)
        for token, own, bucket, (logits, chance) in zip(draft.on_host, draft.q, draft.buckets, expected, strict=True):
            assert token in pair.known
            errors.append((own.log().clamp(min=-60) - logits.log_softmax(-1).clamp(min=-60)).abs().max())
            share = logits.softmax(-1).max() if chance is None else chance
            assert abs(bucket - GRADES - bisect(EDGES, float(share))) <= 1
    assert max(errors) < 0.5  # an activation on the edge between two 8-bit codes may fall to the other side
    assert torch.stack(errors).median() < 1e-4


@pytest.mark.parametrize("special", [{"rows": 18}, {"windows": (4, None)}, {"intermediate": 100}])
def test_what_the_kernels_cannot_compute_stays_in_torch(special: dict[str, Any]) -> None:
    assert can_be_packed(packable_network(DFLASH))
    assert not can_be_packed(packable_network(replace(DFLASH, **special)))


CHEAP = Budget([0.02 * n for n in range(MAX_GAMMA + 1)], 0.0, EXPECTED, repeatable=True)
TEXTS = [[(11 * i + n) % 250 for i in range(n)] for n in (40, 7, 90)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.5)], ids=["plain", "penalised"])
@pytest.mark.parametrize("kind", ["dflash", "dspark", "dflash 2"])
def test_trees_are_the_same(kind: str, sampling: Sampling, tmp_path: Path) -> None:
    model = packed_family("llama", tmp_path)
    target, words = PackedBackend(model, len(TEXTS), 200, 17), model.vocab_size
    network = packable_network(replace(SHAPES[kind], vocabulary=words, draft_vocabulary=words))
    loaded = LoadedBlock(network, torch.arange(words), "block", 1)
    request = Request("r", prompt_ids=(1,), sampling=sampling)
    states = [torch.randn(len(text) - 1, 64 * len(network.taps)) for text in TEXTS]
    trees = []
    for drafter in (BlockDrafter(loaded, target), PackedBlockDrafter(loaded, target)):
        rows = [row_of(text, slot, request) for slot, text in enumerate(TEXTS)]
        for row in rows:
            drafter.admit(row)
        drafter.on_hidden_states(rows, states, [len(each) for each in states])
        for row in rows:
            row.cached = len(row.tokens) - 1
        drafts = drafter.propose([RowOrder(row, 4, CHEAP) for row in rows])
        trees.append([(draft.on_host, draft.tree.parents, draft.buckets) for draft in drafts])
    assert trees[0] == trees[1]
    assert any(set(parents) != {*range(len(parents))} for _, parents, _ in trees[0])
