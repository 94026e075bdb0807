"""Trees of drafts: their shape, and that a pass over one gives what passes over its branches give."""

import pytest
import torch

from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.tree import BRANCHES, LONGEST, Tree, chain, tree_of
from specchat.engine.decoding.tree_mask import TreeMask
from tests.engine.scored import make_static, places
from tests.engine.tiny import tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("gamma", range(1, LONGEST + 1))
def test_a_tree_fills_as_many_positions_as_were_asked_for(gamma: int) -> None:
    tree = tree_of(gamma)
    assert tree.depth == gamma
    assert len(tree) <= 16
    assert max(map(len, tree.children)) <= BRANCHES
    assert all(parent <= child for child, parent in enumerate(tree.parents)), "what it follows comes first"
    assert len(tree.first_branch(0)) == gamma + 1, "the first choices go all the way"
    assert [len(tree.path(end)) for end in range(len(tree) + 1)] == list(tree.depths)


def prompted(device: torch.device = CPU) -> TransformersBackend:
    """Three slots with 20 random tokens each."""
    made = TransformersBackend(tiny_model().model.to(device), slots=3, context=400, overhang=17, taps=(1, 2))
    tokens = torch.randint(0, 250, (3, 20), generator=torch.Generator().manual_seed(1)).to(device)
    made.prefill(tokens, range(3), [0] * 3)
    return made


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_pass_over_trees_gives_what_passes_over_their_branches_give(static: bool, device: str) -> None:
    place = torch.device(device)
    trees, starts, slots = [tree_of(3), Tree((0, 0, 1)), chain(2)], [20, 12, 17], [2, 0, 1]
    width = max(map(len, trees)) + 1
    fed = torch.randint(0, 250, (3, width), generator=torch.Generator().manual_seed(2)).to(place)
    model = prompted(place)
    model.captured = make_static(model, capture=device == "cuda") if static else None
    logits, tapped = model._forward(fed, slots, starts, TreeMask.of(trees, width, place))
    assert (model.captured is not None) is static, "nothing was given up on"
    assert tapped is not None
    for row, tree in enumerate(trees):
        for end in range(len(tree) + 1):
            branch = [0, *tree.path(end)]
            other = prompted(place)
            other.captured = None
            alone, states = other._forward(fed[row : row + 1, branch], [slots[row]], [starts[row]])
            torch.testing.assert_close(logits[row, end], alone[0, -1], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(tapped[row, end], states[0, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_tree_that_is_read_in_parts_gives_what_passes_over_its_branches_give(device: str) -> None:
    place = torch.device(device)
    tree = Tree((0, 0, 0, 0, 0, 0, 2, 3, 3, 8))  # more children of one token than in a drafted tree
    fed = torch.randint(0, 250, (1, len(tree) + 1), generator=torch.Generator().manual_seed(4)).to(place)
    model, other = prompted(place), prompted(place)
    root = model.forward(fed[:, :1], [1], [20])[0]
    logits = torch.cat([root, *(model.extend(places(tree, fed[0], 1, 20)[a:b]) for a, b in ((0, 6), (6, 10)))])
    other.captured = None
    for end in range(len(tree) + 1):
        alone = other.forward(fed[:, [0, *tree.path(end)]], [1], [20])
        torch.testing.assert_close(logits[end], alone[0, -1], rtol=1e-4, atol=1e-4)
