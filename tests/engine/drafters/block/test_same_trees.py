"""A block drafter grows the same trees on tensors and on the kernels."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specchat.engine import Request, Sampling
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.decoding.draft import Budget, RowOrder
from specchat.engine.decoding.tree_growth import EXPECTED
from specchat.engine.drafters.block.drafter import BlockDrafter
from specchat.engine.drafters.block.packed_drafter import PackedBlockDrafter
from specchat.engine.drafters.block.reading import LoadedBlock
from specchat.engine.request import MAX_GAMMA
from tests.engine.drafters.block.networks import SHAPES, packable_network
from tests.engine.drafters.models import packed_family
from tests.engine.rows import row_of

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
