"""What a head's layer says of rows, step by step along a tree."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.device.graphs import Graphs
from specchat.engine.drafters.head.drafter import HeadMemory
from specchat.engine.drafters.head.folder import LoadedHead
from specchat.engine.drafters.head.layer import HeadLayer, Rows, levels_of
from specchat.engine.drafters.head.steps import HeadSteps
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.rows import row_of

CPU = torch.device("cpu")
TEXT = [(7 * i + 3) % 250 for i in range(40)]


@torch.inference_mode()
def scores_along(
    layer: HeadLayer,
    memory: HeadMemory,
    rows: Sequence[SequenceState],
    tree: Tree | None = None,
    tokens: Tensor | None = None,
) -> list[Tensor]:
    """What each step scores [B, P, V'] of a tree of these tokens [B, K]; without a tree, of the first step alone."""
    steps = HeadSteps(layer, Support.of(torch.arange(1), 1), Graphs(CPU, len(rows), None))
    state = steps.read(rows, memory.take_unread(rows))
    ends = [len(row.tokens) - 1 for row in rows]
    there = Rows(torch.tensor([row.slot for row in rows]), torch.tensor(ends), max(ends))
    found = []
    for depth, level in enumerate(levels_of(tree or chain(1), CPU)):
        if depth and tokens is not None:
            state = layer.follow(there, level, state[:, level.sources], tokens[:, level.tokens - 1])
        found.append(layer.score(state, depth))
    return found


@torch.inference_mode()
def scored_places(
    loaded: LoadedHead, backend: Backend, tree: Tree, drafted: Sequence[int]
) -> Iterator[tuple[list[int], list[int], Tensor]]:
    """Logits [V'] that a head scores after a text, read at once and after a first draft, and along a drafted tree.

    Yields the text, the drafted tokens after it, and the logits.
    """
    layer, _ = loaded.head.layer_of(loaded.vocabulary, backend)
    row, memory = row_of(TEXT[:21], 1), HeadMemory(layer, 2)
    memory.admit(row)
    for end in (20, 39):
        row.tokens = TEXT[: end + 1]
        memory.absorb([row], backend.prefill(torch.tensor([TEXT[row.cached : end]]), [1], [row.cached]))
        row.cached = end
        found = scores_along(layer, memory, [row], tree, torch.tensor([drafted]))
        for level, scores in zip(tree.levels, found, strict=True):
            for place, node in enumerate(level):
                yield row.tokens, [drafted[each - 1] for each in tree.path(node)], scores[0, place]
