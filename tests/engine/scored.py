"""Scores of given tokens by a backend, without an engine; passes of fixed shapes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specchat.engine.backends.captured_passes import CapturedPasses
from specchat.engine.backends.packed import PackedBackend
from specchat.engine.backends.tensor_backend import TensorBackend
from specchat.engine.backends.transformers_backend import TransformersBackend
from specchat.engine.decoding.backend import Backend
from specchat.engine.decoding.draft import Draft, DraftBatch
from specchat.engine.decoding.tree import Tree
from specchat.engine.decoding.tree_mask import TreePlace
from specchat.engine.device.graphs import GraphPool, Graphs
from tests.engine.rows import row_of


def scored(
    backend: Backend, fed: Sequence[Sequence[int]], slots: Sequence[int], starts: Sequence[int], trees: Sequence[Tree]
) -> Any:
    """Scores of rows that each feed their last token and a draft: of each row its own, or as `TensorBackend.score`."""
    rows = [row_of(tokens[:1], slot, cached=start) for tokens, slot, start in zip(fed, slots, starts, strict=True)]
    drafts = [Draft(list(tokens[1:]), tree) for tokens, tree in zip(fed, trees, strict=True)]
    if isinstance(backend, PackedBackend):
        (judged,) = backend.run_rounds(rows, drafts)
        return [torch.from_numpy(judged.logits(i)) for i in range(len(rows))]
    assert isinstance(backend, TensorBackend)
    return backend.score(rows, DraftBatch.of(drafts, backend.device))


def places(tree: Tree, tokens: Tensor, slot: int, first: int) -> list[TreePlace]:
    """All nodes but the root, each in its own column.

    Args:
        tree: of the nodes.
        tokens: [nodes], the root's first.
        slot: of the cache.
        first: column of the root.
    """
    return [TreePlace(slot, first, int(tokens[node]), node, tree.path(node)[:-1]) for node in range(1, len(tree) + 1)]


def make_static(runner: TransformersBackend, *, capture: bool = False, compiled: bool = False) -> CapturedPasses:
    """Its passes have fixed shapes from now on."""
    graphs = Graphs(runner.device, runner.cache.slots, GraphPool(runner.device, capture=capture))
    runner.captured = CapturedPasses(runner.cache, runner._step, graphs, compiled=compiled)
    return runner.captured
