"""Greedy rows compared on the host: the outcomes that the verification on tensors has."""

from __future__ import annotations

import random

import pytest
import torch

from specchat.engine.cache.kv_cache import KVCache
from specchat.engine.decoding.proposal import Proposal
from specchat.engine.decoding.tree import Tree, chain, tree_of
from specchat.engine.decoding.verify.agreement import compare
from specchat.engine.decoding.verify.chains import VerifiedChains
from specchat.engine.decoding.verify.outcome import Outcome, to_host
from specchat.engine.decoding.verify.trees import VerifiedTrees
from specchat.engine.request import Request
from specchat.engine.sequence.sequence import SequenceState

WORDS = 64


def row() -> SequenceState:
    return SequenceState(Request("r", prompt_ids=(1,)), None, 0, [1, 2], 1, 1, 77, None, "head", rounds=5)  # type: ignore[arg-type]


def by_tensors(drafted: list[int], tree: Tree | None, best: list[int]) -> Outcome:
    logits = torch.zeros(1, len(best), WORDS)
    logits[0, range(len(best)), best] = 9.0
    proposal = Proposal(torch.tensor([drafted], dtype=torch.long), [len(drafted)], None, tree and [tree])
    if tree is None:
        return to_host([VerifiedChains([0], [row()], logits, proposal, [3])], 1)[0][0]
    cache = KVCache([(1, 2, 1, 2)], 1, 32, torch.device("cpu"), torch.float32)
    return to_host([VerifiedTrees([0], [row()], logits, proposal, [3], cache)], 1)[0][0]


@pytest.mark.parametrize("tree", [None, chain(4), tree_of(2), tree_of(4), Tree((0, 0, 2, 2, 4, 0))], ids=str)
def test_outcomes_are_those_of_the_tensors(tree: Tree | None) -> None:
    draw = random.Random(2)
    count = 5 if tree is None else len(tree)
    reached = set()
    for _ in range(60):
        # Few different tokens, so that drafts are often right; those offered for one position differ.
        drafted = [draw.randrange(3) for _ in range(count)]
        for children in tree.children if tree else ():
            for token, child in zip(draw.sample(range(8), len(children)), children, strict=True):
                drafted[child - 1] = token
        best = [draw.randrange(3) for _ in range(count + 1)]
        for node, children in enumerate(tree.children if tree else ()):
            if children and draw.random() < 0.7:
                best[node] = drafted[draw.choice(children) - 1]
        ours, theirs = compare(row(), drafted, tree, best, 3), by_tensors(drafted, tree, best)
        assert ours == theirs
        reached.add(ours.accepted)
    assert len(reached) > 2


def test_a_round_without_a_draft_gives_the_targets_token() -> None:
    assert compare(row(), [], None, [7], 3) == by_tensors([], None, [7])


def test_what_is_not_a_number_is_told() -> None:
    assert compare(row(), [4, 5], None, [4, -1, 3], 2).broken
