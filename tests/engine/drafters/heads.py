"""What a head's layer says of rows, step by step along a tree."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Support
from specchat.engine.decoding.tree import Tree, chain
from specchat.engine.device.graphs import Graphs
from specchat.engine.drafters.head.drafter import HeadMemory
from specchat.engine.drafters.head.layer import HeadLayer, Rows, levels_of
from specchat.engine.drafters.head.steps import HeadSteps
from specchat.engine.sequence.sequence import SequenceState
from tests.engine.rows import row_of

CPU = torch.device("cpu")


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


def reading(backend: Backend, layer: HeadLayer, text: list[int]) -> Iterator[tuple[HeadMemory, SequenceState]]:
    """A row of slot 1 that has read a text up to two places: at once, and after a first draft."""
    row, memory = row_of(text[:21], 1), HeadMemory(layer, 2)
    memory.admit(row)
    for end in (20, 39):
        row.tokens = text[: end + 1]
        tapped = backend.prefill(torch.tensor([text[row.cached : end]]), [1], [row.cached])
        memory.absorb([row], tapped)
        row.cached = end
        yield memory, row
